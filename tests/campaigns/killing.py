"""Kill a process at its n-th operation on the files of a run: deterministic, whatever the machine's speed.

python -m tests.campaigns.killing N FOLDER PATTERN train LOG --limit 5 ...

Only operations that match the pattern count, such as "rename .*config" or "open .*metrics"; "" counts all of them.
"""

import errno
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}


def before_each_change(folder: Path, act: Callable[[str], None]) -> None:
    """Call `act` with a name before each operation of this process that changes something under `folder`."""

    def watch(event: str, arguments: tuple) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in CHANGES) and str(arguments[0]).startswith(str(folder)):
            act(f"{event} {Path(arguments[0]).name}")

    sys.addaudithook(watch)


def fill_disk_at(number: int, folder: Path) -> Callable[[], int]:
    """From the `number`-th change under `folder` on, whatever needs room fails; what moves or removes does not. The
    function that is returned ends this, and says how many changes there were."""
    seen, full = 0, True

    def fail(operation: str) -> None:
        nonlocal seen
        seen += full
        if full and seen >= number and operation.startswith(("open", "os.mkdir")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), operation)

    def end() -> int:
        nonlocal full
        full = False
        return seen

    before_each_change(folder, fail)
    return end


def kill_at(number: int, folder: Path, pattern: str = "") -> None:
    """SIGKILL this process just before its `number`-th such operation that matches the pattern."""
    seen = 0

    def count(operation: str) -> None:
        nonlocal seen
        seen += bool(re.search(pattern, operation))
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    before_each_change(folder, count)


if __name__ == "__main__":
    from ringfence.cli import main

    kill_at(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    sys.exit(main(sys.argv[4:]))
