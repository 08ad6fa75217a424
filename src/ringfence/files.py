"""Writing files so that they are either whole or not there."""

import hashlib
import json
import os
import platform
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ringfence.errors import NoCacheDirectory

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp(\.[^.]+)?")  # the names that `atomic_write` gives

SEAL = "sha256"
WORD = 60  # bytes of a word in a file name: a few of them, a suffix and what `atomic_write` adds stay below 255


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path`; what is written there becomes `path` when the block ends without error.

    The data is on the disk before the name changes, so a crash at any moment leaves the old file or the new one.
    Missing parent directories are made. An existing file is replaced: ask before you call.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Same directory, because a rename is atomic only within one file system; same suffix, because some writers
    # choose the format by it or add their own.
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(6)}.tmp{path.suffix}")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if it is not there or damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as readable JSON, atomically; NumPy numbers and arrays become plain ones."""
    text = json.dumps(value, indent=2, default=_plain) + "\n"
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def file_word(text: str) -> str:
    """The text as a part of a file's name: letters, digits and "-_." alone, at most WORD bytes of them.

    >>> file_word("tau=0.01 (mine)"), len(file_word("x" * 300)), len(file_word("é" * 300))
    ('tau_0.01__mine_', 60, 30)
    """
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in text)
    return plain.encode()[:WORD].decode(errors="ignore")  # a letter of which a part is left goes


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum of its own, for a file that no one edits by hand."""
    content = {name: part for name, part in value.items() if name != SEAL}
    return {**content, SEAL: digest(content)}


def unsealed(value: Any) -> dict[str, Any] | None:
    """What was sealed, without its checksum; None if it is damaged. What has no checksum is older, and taken as it is.

    >>> unsealed(sealed({"cost": 1.5})), unsealed({**sealed({"cost": 1.5}), "cost": 0.5}), unsealed({"cost": 1.5})
    ({'cost': 1.5}, None, {'cost': 1.5})
    """
    if not isinstance(value, dict):
        return None
    content = {name: part for name, part in value.items() if name != SEAL}
    return content if value.get(SEAL) in (None, digest(content)) else None


def digest(content: Any) -> str:
    """sha256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def cache_directory() -> Path:
    """Where ringfence keeps what it can make again: $RINGFENCE_CACHE, else ringfence under $XDG_CACHE_HOME, else
    ~/.cache/ringfence; for a user without a home directory one of the user's own among the temporary files."""
    if asked := os.environ.get("RINGFENCE_CACHE"):
        try:
            return Path(asked).expanduser()
        except RuntimeError:
            raise NoCacheDirectory(f"RINGFENCE_CACHE={asked}: no such home directory; write the path in full") from None
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ringfence"
    except RuntimeError:  # neither HOME nor an entry for this user in the list of users, as in some containers
        return private_temporary_directory()


def private_temporary_directory() -> Path:
    """A directory among the temporary files that only this user can read and write; made if it is not there. Programs are
    loaded from it, so one that somebody else could have filled is refused."""
    try:
        path = Path(tempfile.gettempdir()) / f"ringfence-{os.getuid()}"
        path.mkdir(mode=0o700, exist_ok=True)
        alone = is_this_users_alone(path, others=0o077) and not path.is_symlink()
    except OSError as error:
        raise NoCacheDirectory(
            f"there is no home directory, and {error}; name a directory with RINGFENCE_CACHE"
        ) from None
    if not alone:
        raise NoCacheDirectory(
            f"there is no home directory, and {path} is not this user's alone; name another directory with RINGFENCE_CACHE"
        )
    return path


def is_this_users_alone(path: Path, others: int = 0o022) -> bool:
    """Whether this is a directory of this user's in which nobody else may do what the bits `others` of its mode say: write,
    if not told. A link to one must be this user's too, or its owner could point it elsewhere."""
    link, found = path.lstat(), path.stat()
    mine = link.st_uid == found.st_uid == os.getuid()
    return mine and stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & others


def machine_fingerprint() -> str:
    """Programs are compiled for one kind of processor; another must not load them."""
    flags = " ".join(processor_flags())
    return hashlib.sha256(f"{platform.machine()} {platform.processor()} {flags}".encode()).hexdigest()[:12]


def processor_flags() -> list[str]:
    """What the processor can do, in the words of Linux; empty where they cannot be read."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split() for line in lines if line.startswith(("flags", "Features"))), [])


def _plain(value: object) -> Any:
    import numpy as np  # not at the top: `ringfence --help` comes here and does without it

    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
