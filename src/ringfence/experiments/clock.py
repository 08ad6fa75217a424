"""How long a cell takes over all of its attempts, of which some may be killed: `clock.json` in its run directory."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ringfence.files import read_json, write_json
from ringfence.training.rundir import RunDirectory

FILE = "clock.json"
NOTE_EVERY = 30.0  # seconds: what a kill may take from the count


class Clock:
    """Counts the seconds of an attempt, on top of those of earlier ones. A thread notes them while the run goes on, because
    a killed process cannot."""

    def __init__(self, path: Path, every: float = NOTE_EVERY):
        self.path, self.every = path, every
        self.before, self.began = spent_before(path), time.monotonic()
        self.seconds = self.before  # of all attempts, when the clock has stopped
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._note_again_and_again, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.seconds = self._so_far()
        if error is not None:
            self._note_if_begun()

    def note(self) -> None:
        """Keep what all attempts took, for the next one."""
        write_json(self.path / FILE, {"seconds": self._so_far()})

    def _so_far(self) -> float:
        return self.before + time.monotonic() - self.began

    def _note_again_and_again(self) -> None:
        while not self._ended.wait(self.every):
            self._note_if_begun()

    def _note_if_begun(self) -> None:
        """What is refused before it has begun must leave an empty directory."""
        if RunDirectory(self.path).has_begun:
            with suppress(OSError):  # the count is for people; it is tried again
                self.note()


def spent_before(path: Path) -> float:
    """Seconds of earlier attempts, as far as they were noted."""
    try:
        return float(read_json(path / FILE)["seconds"])
    except (ValueError, KeyError, TypeError):
        return 0.0
