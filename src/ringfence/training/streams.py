"""Lines of JSON that a run adds to as it goes: metrics, evaluations, warnings.

Each line ends with a checksum of its own. A line that is damaged is left out and named; what follows it is kept. A last
line without its end is what a kill leaves: it is made again when the run goes on, so it is not reported.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ringfence.errors import CheckpointError
from ringfence.files import atomic_write

Row = dict[str, Any]
CHECK = "crc32"
END_BYTES = 8192  # a few lines


def encode(row: Mapping[str, Any]) -> bytes:
    text = json.dumps(row)
    return f'{text[:-1]}, "{CHECK}": "{zlib.crc32(text.encode()):08x}"}}\n'.encode()


def decode(line: bytes) -> Row | None:
    """The row of a line, None if it is damaged."""
    try:
        row = json.loads(line)
        check = row.pop(CHECK)
        sound = check == f"{zlib.crc32(json.dumps(row).encode()):08x}" and isinstance(row["overall_step"], int)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    return row if sound else None


def append(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add lines; they are on the disk when this returns, so that no checkpoint is newer than the lines before it."""
    content = b"".join(encode(row) for row in rows)
    with open(file, "ab") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def read(file: Path) -> tuple[list[Row], list[str]]:
    """The sound rows, and a sentence for each damaged line."""
    rows, damage = [], []
    lines = _lines(file)
    for number, line in enumerate(lines, 1):
        row = decode(line)
        if row is not None:
            rows.append(row)
        elif number < len(lines) or line.endswith(b"\n"):
            damage.append(f"line {number} of {file} is damaged and left out")
    return rows, damage


def last(file: Path) -> Row | None:
    """The last sound row, from the end of the file alone; None if there is none."""
    try:
        with open(file, "rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - END_BYTES))
            lines = opened.read().split(b"\n")
    except OSError:
        return None
    return next((row for line in reversed(lines) if (row := decode(line)) is not None), None)


def rewind(file: Path, keep: Callable[[Row], bool]) -> None:
    """Drop the rows that are not to be kept. A damaged line stays where rows that are kept follow it."""
    if not file.exists():
        return
    kept: list[bytes] = []
    waiting: list[bytes] = []
    for line in _lines(file):
        row = decode(line)
        if row is None:
            waiting.append(line)
        elif keep(row):
            kept += [*waiting, line]
            waiting = []
    with atomic_write(file) as temporary:
        temporary.write_bytes(b"".join(kept))


def _lines(file: Path) -> list[bytes]:
    """The file cut after each newline, and nowhere else."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror})") from None
    return [line + b"\n" for line in content.split(b"\n")[:-1]] + [last for last in content.split(b"\n")[-1:] if last]
