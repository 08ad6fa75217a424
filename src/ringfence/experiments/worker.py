"""The part of an experiment that runs where the work is done: claim a cell, run it, keep its result.

`python -m ringfence.experiments.worker MODULE:FUNCTION` takes one job from its standard input and says on its standard
output how it ended. When its input closes, because the driver has died, it saves and stops.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from ringfence.errors import DataError, InvalidSetting, MissingExtra, RingfenceError, UnknownName
from ringfence.experiments.grid import Cell
from ringfence.experiments.store import open_store

Work = Callable[[Cell, Path, Path], dict[str, Any] | None]
"""Given a cell, its run directory and its log: the result, or None if it was interrupted and has saved its state."""

Status = Literal["done", "elsewhere", "stopped", "refused", "failed"]
REFUSALS = (DataError, InvalidSetting, MissingExtra, UnknownName)  # to try again would change nothing


@dataclass(frozen=True)
class Job:
    """A cell, the address of its log and of the store, and which driver asks."""

    cell: Cell
    log: str
    store: str
    owner: str

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cell": self.cell.to_dict()}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Job":
        return cls(Cell.from_dict(value["cell"]), value["log"], value["store"], value["owner"])


@dataclass(frozen=True)
class Outcome:
    """How a job ended. "elsewhere": another process works on the cell; "stopped": interrupted and saved;
    "refused": the request makes no sense, as it stands; "failed": anything else without a result."""

    status: Status
    reason: str = ""


def execute(job: Job, work: Work) -> Outcome:
    """Run a job to its end, whatever that is. Never raises."""
    cell = job.cell.id
    try:
        store = open_store(job.store)
        with store.claim(cell, job.owner) as ours:
            if not ours:
                return Outcome("elsewhere")
            if store.result(cell) is not None:
                return Outcome("done")
            with store.workspace(cell) as path:
                result = work(job.cell, path, store.fetch_log(job.log))
            if result is None:
                return Outcome("stopped")
            store.put_result(cell, result)
            return Outcome("done")
    except KeyboardInterrupt:
        return Outcome("stopped")
    except REFUSALS as error:
        return Outcome("refused", " ".join(str(error).split()))
    except RingfenceError as error:
        return Outcome("failed", " ".join(str(error).split()))
    except Exception as error:
        traceback.print_exc()
        return Outcome("failed", f"{type(error).__name__}: {error}")


def thread_environment(threads: int) -> dict[str, str]:
    """What keeps a worker to its share of the machine: XLA, BLAS and OpenMP count their threads by these."""
    names = ("NPROC", "PJRT_NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {name: str(threads) for name in names}


def work_named(name: str) -> Work:
    module, _, function = name.partition(":")
    found: Work = getattr(import_module(module), function)
    return found


def name_of(work: Work) -> str:
    return f"{work.__module__}:{work.__name__}"


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what a shell started in the background
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for the answer
    try:
        job = Job.from_dict(json.loads(sys.stdin.readline()))
        threading.Thread(target=stop_with_driver, daemon=True).start()
        outcome = execute(job, work_named(sys.argv[1]))
    except KeyboardInterrupt:
        outcome = Outcome("stopped")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver closes our input when it has the answer
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(asdict(outcome)), file=answer, flush=True)
    return 0


def stop_with_driver() -> None:
    """Nothing more comes on the standard input, so its end means that the driver is gone."""
    while sys.stdin.read(1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
