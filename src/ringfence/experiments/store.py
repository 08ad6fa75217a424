"""Where an experiment's cells leave what they make, seen by every worker.

cells/ID.json      the result of a finished cell: small, never changed once it is there
failures/ID.json   why a cell has no result
runs/ID/           its run directory (checkpoints, metrics, policies)
runs/ID.log        what its workers printed
locks/ID.lock      held by the process that works on the cell
logs/              copies of logs, for workers that do not share a file system with the driver
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

from ringfence.files import atomic_write, file_word, read_json, sealed, unsealed, write_json
from ringfence.training.rundir import RunDirectory

Result = dict[str, Any]


class Store(Protocol):
    """What drivers and workers need of a store."""

    address: str
    look_every: float  # seconds between looks at what runs

    def result(self, cell: str) -> Result | None:
        """The result of a finished cell, or None."""

    def finished(self) -> set[str]:
        """The names of the cells that have a result."""

    def put_result(self, cell: str, result: Mapping[str, Any]) -> None:
        """Keep a result, unless there is one already: the first one stays."""

    def failure(self, cell: str) -> str | None:
        """Why the cell failed, if it did."""

    def put_failure(self, cell: str, reason: str) -> None: ...

    def running(self, cells: Collection[str]) -> set[str]:
        """Those of these cells that a live process works on."""

    def claim(self, cell: str, owner: str) -> Any:
        """A context that gives True if the cell is now ours, False if another process works on it."""

    def workspace(self, cell: str) -> Any:
        """A context that gives a local directory for the cell's run, with what earlier workers left in it."""

    def steps_done(self, cell: str) -> int | None:
        """How far the cell's run is, for people; None if that is not known."""

    def put_log(self, path: Path, fingerprint: str) -> str:
        """Make a log visible to all workers; the address to fetch it from."""

    def fetch_log(self, address: str) -> Path:
        """A local file with the log of this address."""


def open_store(address: str | os.PathLike[str]) -> Store:
    """The store in a directory, or at an fsspec address such as s3://bucket/experiment."""
    text = os.fspath(address)
    if "://" in text:
        from ringfence.experiments.remote import RemoteStore

        return RemoteStore(text)
    return DirectoryStore(text)


class DirectoryStore:
    """A store in a directory: on this machine, or on a file system that all workers share and that has locks."""

    look_every = 1.0

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()
        self.address = str(self.path)

    def result(self, cell: str) -> Result | None:
        return unsealed(_mapping(self.path / "cells" / f"{cell}.json"))

    def finished(self) -> set[str]:
        return {file.stem for file in (self.path / "cells").glob("*.json") if not file.name.startswith(".")}

    def put_result(self, cell: str, result: Mapping[str, Any]) -> None:
        if self.result(cell) is None:
            write_rows(self.path / "cells" / f"{cell}.json", sealed(result))
        (self.path / "failures" / f"{cell}.json").unlink(missing_ok=True)

    def failure(self, cell: str) -> str | None:
        return (_mapping(self.path / "failures" / f"{cell}.json") or {}).get("reason")

    def put_failure(self, cell: str, reason: str) -> None:
        write_json(self.path / "failures" / f"{cell}.json", {"cell": cell, "reason": reason})

    def running(self, cells: Collection[str]) -> set[str]:
        """Locks stay when their cells have ended: only those that are asked for are opened."""
        files = (file for file in (self.path / "locks").glob("*.lock") if file.stem in cells)
        return {file.stem for file in files if _is_locked(file)}

    @contextmanager
    def claim(self, cell: str, owner: str) -> Iterator[bool]:
        """A lock of the operating system: it goes with the process, however that ends."""
        file = self.path / "locks" / f"{cell}.lock"
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a") as handle:
            yield _lock(handle)

    @contextmanager
    def workspace(self, cell: str) -> Iterator[Path]:
        path = self.path / "runs" / cell
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path

    def steps_done(self, cell: str) -> int | None:
        return RunDirectory(self.path / "runs" / cell).last_step()

    def put_log(self, path: Path, fingerprint: str) -> str:
        """Copied once, under a name with its fingerprint: a driver's own files may be out of sight of other machines."""
        copy = self.path / "logs" / log_name(path, fingerprint)
        if not copy.exists():
            with atomic_write(copy) as temporary:
                shutil.copyfile(path, temporary)
        return str(copy)

    def fetch_log(self, address: str) -> Path:
        return Path(address)


def log_name(path: Path, fingerprint: str) -> str:
    """What a log's copy is called: its suffix says how it is read."""
    return f"{fingerprint}-{file_word(path.stem)}{path.suffix}"


def write_rows(path: Path, result: Mapping[str, Any]) -> None:
    """JSON with a line for each row of a list, so that results are small and differences readable."""
    with atomic_write(path) as temporary:
        temporary.write_text(rows_text(result), encoding="utf-8")


def rows_text(result: Mapping[str, Any]) -> str:
    def shown(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join("  " + json.dumps(row) for row in value) + "\n ]"
        return json.dumps(value)

    return "{\n" + ",\n".join(f" {json.dumps(name)}: {shown(value)}" for name, value in result.items()) + "\n}\n"


def _lock(handle: TextIO) -> bool:
    """Lock the file if no one else works under it; `running` looks at it for an instant, hence a few tries."""
    for _ in range(5):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
            continue
        return True
    return False


def _is_locked(file: Path) -> bool:
    try:
        with open(file, "r+") as handle:  # NFS wants the right to read for a shared lock
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _mapping(file: Path) -> Result | None:
    value = read_json(file)
    return value if isinstance(value, dict) else None
