"""A store behind an fsspec address (s3://, gs://, abfs://, file://, ...), for workers that share no file system.

A worker keeps its run in a local directory and copies it to the store after each new checkpoint: first everything else,
then the checkpoint's arrays, then its manifest, so that what the store holds can be resumed at any moment. There are no
locks behind such an address; a claim is a lease that its holder renews and that ends by itself.
"""

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ringfence.errors import MissingExtra
from ringfence.experiments.grid import short_digest
from ringfence.experiments.store import Result, log_name, rows_text
from ringfence.files import TEMPORARY, atomic_write, cache_directory, sealed, unsealed
from ringfence.training.rundir import LOCK

LEASE = 180.0  # seconds after which a claim that is not renewed has ended
Answer = TypeVar("Answer")
TRIES, PAUSE = 3, 1.0  # of a request that fails, and seconds between them
RENEW = 30.0  # seconds between renewals, and between looks for a new checkpoint


class RemoteStore:
    """See `ringfence.experiments.store.Store`."""

    look_every = 30.0  # a request for each claimed cell

    def __init__(self, address: str, renew: float = RENEW, lease: float = LEASE):
        try:
            import fsspec
        except ImportError as error:
            raise MissingExtra(f"the store {address} needs fsspec: pip install 'ringfence[ray]'") from error
        self.address, self.renew, self.lease = address.rstrip("/"), renew, lease
        try:
            self.files, self.root = fsspec.core.url_to_fs(self.address)
        except (ImportError, ValueError) as error:  # the address's own package is missing, or no one knows the protocol
            raise MissingExtra(f"the store {address} cannot be opened: {error}") from error
        self.files.use_listings_cache = False
        self.protocols = (self.files.protocol,) if isinstance(self.files.protocol, str) else self.files.protocol

    def result(self, cell: str) -> Result | None:
        return unsealed(self._read(f"cells/{cell}.json"))

    def finished(self) -> set[str]:
        return self._names("cells")

    def put_result(self, cell: str, result: Mapping[str, Any]) -> None:
        if self.result(cell) is None:
            self._write(f"cells/{cell}.json", rows_text(sealed(result)))
        with suppress(FileNotFoundError):
            self.files.rm_file(self._path(f"failures/{cell}.json"))

    def failure(self, cell: str) -> str | None:
        return (self._read(f"failures/{cell}.json") or {}).get("reason")

    def put_failure(self, cell: str, reason: str) -> None:
        self._write(f"failures/{cell}.json", json.dumps({"cell": cell, "reason": reason}))

    def running(self, cells: Collection[str]) -> set[str]:
        return {cell for cell in self._names("locks").intersection(cells) if self._holder(cell) is not None}

    @contextmanager
    def claim(self, cell: str, owner: str) -> Iterator[bool]:
        """A lease. A claim of the same driver does not stand in the way: it starts a cell again only when the worker
        before is gone. If two drivers write at the same moment, the one whose lease is read back afterwards has it."""
        if self._holder(cell) not in (None, owner):
            yield False
            return
        self._lease(cell, owner)
        if self._holder(cell) != owner:
            yield False
            return
        ended = threading.Event()
        thread = threading.Thread(target=self._keep_lease, args=(cell, owner, ended), daemon=True)
        thread.start()
        try:
            yield True
        finally:
            ended.set()
            thread.join()
            with suppress(OSError):  # a lease that cannot be removed ends by itself
                if self._holder(cell) == owner:
                    self.files.rm_file(self._path(f"locks/{cell}.json"))

    @contextmanager
    def workspace(self, cell: str) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix="ringfence-cell-"))
        path, ended = folder / cell, threading.Event()
        self._download(f"runs/{cell}", path)
        thread = threading.Thread(target=self._mirror, args=(cell, path, ended), daemon=True)
        thread.start()
        try:
            yield path
        finally:
            ended.set()
            thread.join()
            patiently(lambda: self._upload(cell, path))
            shutil.rmtree(folder, ignore_errors=True)

    def steps_done(self, cell: str) -> int | None:
        return None  # to read a file of each running cell twice a second would be too much

    def put_log(self, path: Path, fingerprint: str) -> str:
        """Copied once, under a name with its fingerprint."""
        name = f"logs/{log_name(path, fingerprint)}"
        if not self.files.exists(self._path(name)):
            self.files.makedirs(self._path("logs"), exist_ok=True)
            self.files.put_file(str(path), self._path(name))
        return name

    def fetch_log(self, address: str) -> Path:
        """Downloaded once for each machine, into the cache directory. Names in the store are relative: an absolute path is
        the driver's own file, which a worker on the same machine reads where it is."""
        if os.path.isabs(address):
            return Path(address)
        local = cache_directory() / "logs" / short_digest(self.address) / Path(address).name
        if not local.exists():
            with atomic_write(local) as temporary:
                self.files.get_file(self._path(address), str(temporary))
        return local

    # Leases

    def _holder(self, cell: str) -> str | None:
        lease = self._read(f"locks/{cell}.json")
        return str(lease["owner"]) if lease and time.time() < lease["until"] else None

    def _lease(self, cell: str, owner: str) -> None:
        self._write(f"locks/{cell}.json", json.dumps({"owner": owner, "until": time.time() + self.lease}))

    def _keep_lease(self, cell: str, owner: str, ended: threading.Event) -> None:
        while not ended.wait(self.renew):
            with suppress(OSError):  # it is tried again, several times before the lease ends
                self._lease(cell, owner)

    # Run directories

    def _mirror(self, cell: str, path: Path, ended: threading.Event) -> None:
        seen = ""
        while not ended.wait(self.renew):
            newest = max((file.name for file in (path / "checkpoints").glob("step-*.json")), default="")
            if newest != seen:
                with suppress(OSError):  # it is tried again; at the end `workspace` uploads, and raises
                    self._upload(cell, path)
                    seen = newest

    def _upload(self, cell: str, path: Path) -> None:
        """Copy the run so that the store's copy can be resumed at any moment, then drop what is no longer there."""
        if not path.exists():
            return
        files = sorted((f for f in path.rglob("*") if f.is_file() and not is_passing(f)), key=upload_order)
        kept = set()
        for file in files:
            name = self._path(f"runs/{cell}/{file.relative_to(path).as_posix()}")
            with suppress(FileNotFoundError):  # a checkpoint that was dropped meanwhile
                self._put(name, file.read_bytes())
                kept.add(os.path.basename(name))
        old = self._path(f"runs/{cell}/checkpoints")
        for name in sorted(self._list(old)):  # of a pair the manifest first, so that it never stands alone
            if os.path.basename(name) not in kept:
                with suppress(FileNotFoundError):
                    self.files.rm_file(name)

    def _download(self, name: str, path: Path) -> None:
        root = self._path(name)
        with suppress(FileNotFoundError):
            for source in self.files.find(root):
                if TEMPORARY.fullmatch(os.path.basename(source)):
                    continue
                target = path / os.path.relpath(source, root)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.files.cat_file(source))

    # Small files

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _names(self, folder: str) -> set[str]:
        names = (os.path.basename(name) for name in self._list(self._path(folder)))
        return {
            name.removesuffix(".json") for name in names if name.endswith(".json") and not TEMPORARY.fullmatch(name)
        }

    def _list(self, folder: str) -> list[str]:
        try:
            found: list[str] = patiently(lambda: self.files.ls(folder, detail=False))
        except FileNotFoundError:
            return []
        return found

    def _read(self, name: str) -> Result | None:
        try:
            value = json.loads(patiently(lambda: self.files.cat_file(self._path(name))))
        except (FileNotFoundError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def _write(self, name: str, text: str) -> None:
        patiently(lambda: self._put(self._path(name), text.encode()))

    def _put(self, path: str, content: bytes) -> None:
        """A file whole or not at all. Object stores do; in a directory behind file:// a kill would leave half of it."""
        if "file" in self.protocols:
            with atomic_write(path) as temporary:
                temporary.write_bytes(content)
        else:
            self.files.makedirs(os.path.dirname(path), exist_ok=True)
            self.files.pipe_file(path, content)


def patiently(request: Callable[[], Answer]) -> Answer:
    """The answer to a request that may fail once or twice, as requests over a network do."""
    for _ in range(TRIES - 1):
        try:
            return request()
        except FileNotFoundError:  # an answer, too
            raise
        except OSError:
            time.sleep(PAUSE)
    return request()


def is_passing(file: Path) -> bool:
    """Half-written files and the lock are of no use to another machine."""
    return bool(TEMPORARY.fullmatch(file.name)) or file.name == LOCK


def upload_order(file: Path) -> tuple[int, str]:
    """Streams before checkpoints, so that no checkpoint is newer than the metrics beside it; manifests last."""
    in_checkpoints = file.parent.name == "checkpoints"
    return (2 if file.suffix == ".json" else 1) if in_checkpoints else 0, file.name
