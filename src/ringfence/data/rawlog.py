"""What every file format is turned into first, and what keeps a damaged file from passing for a good one."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringfence.data.checks import BLOCK_ROWS
from ringfence.errors import DataError, RingfenceError, UnreadableFile

ENTRY = "ringfence"
"""Where a file that ringfence wrote keeps what does not fit into columns: JSON with `header` and `checksum`."""


@dataclass
class RawLog:
    """Columns under the names of `Dataset.from_arrays`, not yet checked, and what the file says about them."""

    columns: dict[str, NDArray[Any]]
    # JSON values: name, notes, metadata, source_names, action_low, action_high; each may be absent.
    header: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)  # what the file calls each column
    present: tuple[str, ...] = ()  # every name in the file, for the message when one is missing
    checksum: str | None = None  # of columns and header, if ringfence wrote the file


def columns_digest(columns: Mapping[str, NDArray[Any]]) -> "hashlib._Hash":
    """SHA-256 over names, types, shapes and contents, in blocks; the same on every machine."""
    digest = hashlib.sha256()
    for name in sorted(columns):
        array = np.ascontiguousarray(columns[name])
        little_endian = array.dtype.newbyteorder("<")
        digest.update(f"{name} {little_endian.str} {array.shape} ".encode())
        for start in range(0, len(array), BLOCK_ROWS):
            digest.update(array[start : start + BLOCK_ROWS].astype(little_endian, copy=False).data)
    return digest


def checksum(columns: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> str:
    """Over everything in a file that ringfence writes: most formats would not notice a flipped bit."""
    digest = columns_digest(columns)
    digest.update(json.dumps(header, sort_keys=True).encode())
    return digest.hexdigest()


def pack_entry(log: RawLog) -> bytes:
    return json.dumps({"header": log.header, "checksum": checksum(log.columns, log.header)}).encode()


def unpack_entry(entry: bytes) -> tuple[dict[str, Any], str]:
    saved = json.loads(entry)
    if not (
        isinstance(saved, dict) and isinstance(saved.get("header"), dict) and isinstance(saved.get("checksum"), str)
    ):
        raise UnreadableFile(f"the '{ENTRY}' entry is not what ringfence writes; the file is damaged")
    return saved["header"], saved["checksum"]


def verify(log: RawLog, path: Path) -> None:
    if log.checksum is not None and log.checksum != checksum(log.columns, log.header):
        raise UnreadableFile(
            f"{path} is damaged: its contents do not match the checksum written with them. Restore it from a "
            f"copy; if you changed it on purpose, delete its '{ENTRY}' entry"
        )


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Whatever a format's library raises on a bad file becomes one line about that file.

    These libraries document no closed set of exceptions for damaged input, hence `Exception`.
    """
    try:
        yield
    except DataError as error:
        if path.name in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error
    except RingfenceError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableFile(f"{path} cannot be read as {what}: {reason[:300]}") from error
