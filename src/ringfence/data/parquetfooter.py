"""A Parquet footer is checked against the file and against itself: it has no checksum.

It says most things twice (names, types, numbers of rows), and a library believes one of the two, or ends the process
when it meets what it did not expect. So it is read here first.
"""

import base64
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ringfence.data import thrift
from ringfence.data.sizes import require_apart, require_plausible
from ringfence.errors import EmptyData, UnreadableFile

MAGIC = b"PAR1"
UNCOMPRESSED = 0
OPTIONAL, REPEATED = 1, 2
BYTES_PER_NUMBER = 4  # as it is kept in memory
# How the least and greatest value are written, by physical type.
NUMBERS = {0: "<?", 1: "<i", 2: "<q", 4: "<f", 5: "<d"}


@dataclass(frozen=True)
class Column:
    """A leaf of the schema: its path, physical type, and whether it may lack values."""

    path: tuple[bytes, ...]
    physical_type: int
    nullable: bool
    repeated: bool


@dataclass(frozen=True)
class Footer:
    """What a file says of its contents, once all of it agrees."""

    columns: tuple[Column, ...]
    rows: tuple[int, ...]  # in each row group
    chunks: tuple[tuple[dict[int, Any], ...], ...]  # of each row group, what is said of each column
    keys: dict[bytes, bytes]

    def stated_range(self, group: int, name: str) -> tuple[float, float] | None:
        """The least and greatest number of a column in a row group, if the file states them."""
        index = [column.path for column in self.columns].index((name.encode(),))
        statistics = self.chunks[group][index].get(12, {})
        packed = NUMBERS.get(self.columns[index].physical_type)
        low, high = statistics.get(6), statistics.get(5)
        if packed is None or low is None or high is None:
            return None
        if not len(low) == len(high) == struct.calcsize(packed):
            raise _damaged(f"the range stated for column '{name}' is of another type")
        return float(struct.unpack(packed, low)[0]), float(struct.unpack(packed, high)[0])


def read_footer(path: Path) -> Footer:
    """The footer of a Parquet file; raises `UnreadableFile` where it contradicts itself or the file."""
    file_size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(file_size - 8, 0))
        tail = file.read(8)
        size = int.from_bytes(tail[:4], "little")
        if tail[4:] != MAGIC or size + 12 > file_size:
            raise UnreadableFile(f"{path} cannot be read as Parquet: it was cut short or is something else")
        file.seek(file_size - 8 - size)
        content = file.read(size)
    try:
        fields, used = thrift.read_struct(content)
        footer = _footer(fields)
    except (KeyError, TypeError, AttributeError, IndexError, thrift.Malformed) as error:
        raise _damaged(f"its footer makes no sense ({error})") from None
    if used != size:
        raise _damaged("its footer is shorter than declared")
    if not sum(footer.rows):
        raise EmptyData(f"{path} has no rows; check that the program that wrote it ran to its end")
    require_plausible(sum(footer.rows) * len(footer.columns) * BYTES_PER_NUMBER, file_size)
    end = require_apart([*_extents(footer), *_indexes(fields)], file_size - 8 - size)
    if end != file_size - 8 - size:
        raise _damaged(f"{file_size - 8 - size - end:,} bytes before its footer belong to nothing")
    return footer


def _footer(fields: dict[int, Any]) -> Footer:
    columns = tuple(_leaves(fields[2]))
    groups = fields.get(4, [])
    rows = tuple(group[3] for group in groups)
    if min([fields[3], *rows]) < 0 or sum(rows) != fields[3]:
        raise _damaged(f"its {len(rows)} row groups hold {sum(rows)} rows, but {fields[3]} are declared")
    chunks = []
    for group in groups:
        if len(group[1]) != len(columns):
            raise _damaged("a row group lacks columns or has too many")
        if any(1 in chunk for chunk in group[1]):
            raise UnreadableFile("a column is stored in another file; ringfence reads only what a file itself holds")
        chunks.append(tuple(chunk[3] for chunk in group[1]))
    keys = {pair[1]: pair.get(2, b"") for pair in fields.get(5, [])}
    return Footer(columns, rows, tuple(chunks), keys)


def _leaves(elements: Sequence[dict[int, Any]]) -> Iterator[Column]:
    """The columns, from the schema's elements in depth-first order."""
    parents: list[tuple[bytes, int, bool]] = []  # name, children still to come, repeated
    for index, element in enumerate(elements):
        children = element.get(5, 0)
        repetition = element.get(3, 0)
        if index and not parents:
            raise _damaged("its schema has parts that belong to nothing")
        if index:
            name, left, repeated = parents.pop()
            parents.append((name, left - 1, repeated))
        if children or not index:
            parents.append((element[4], children, index > 0 and repetition == REPEATED))
        else:
            path = (*(name for name, _, _ in parents[1:]), element[4])
            repeated = repetition == REPEATED or any(parent[2] for parent in parents)
            yield Column(path, element[1], repetition == OPTIONAL, repeated)
        while parents and parents[-1][1] <= 0:
            parents.pop()
    if parents:
        raise _damaged("its schema lacks columns")


def _extents(footer: Footer) -> Iterator[tuple[int, int, str]]:
    """Where each column's values of each row group lie, once what is said of them agrees."""
    yield 0, len(MAGIC), "the file's beginning"
    for rows, chunks in zip(footer.rows, footer.chunks, strict=True):
        for column, chunk in zip(footer.columns, chunks, strict=True):
            name = b".".join(column.path).decode("utf-8", "backslashreplace")
            if tuple(chunk[3]) != column.path:
                raise _damaged(f"column '{name}' is also called {b'.'.join(chunk[3])!r}")
            if chunk[1] != column.physical_type:
                raise _damaged(f"column '{name}' is of two types")
            if not column.repeated and chunk[5] != rows:
                raise _damaged(f"column '{name}' holds {chunk[5]} values in a group of {rows} rows")
            if chunk[4] == UNCOMPRESSED and chunk[6] != chunk[7]:
                raise _damaged(f"column '{name}' is not compressed and yet has two sizes")
            yield min(chunk[9], chunk.get(11) or chunk[9]), chunk[7], name


def _indexes(fields: dict[int, Any]) -> Iterator[tuple[int, int, str]]:
    """Where indexes of pages and filters lie: (place, size) are fields 4, 5 and 6, 7 of a chunk, 14, 15 of what it says."""
    for group in fields.get(4, []):
        for chunk in group[1]:
            for about, place, size in ((chunk, 4, 5), (chunk, 6, 7), (chunk[3], 14, 15)):
                if place in about:
                    yield about[place], about.get(size, 0), "an index"


def require_stored_schema(footer: Footer, read: pa.Schema, used: Sequence[str]) -> None:
    """Files of Arrow carry their schema a second time, with the exact types."""
    packed = footer.keys.get(b"ARROW:schema")
    if packed is None:
        return
    stored = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(packed)))
    if stored.names != read.names:
        raise _damaged("it states the names of its columns twice, and differently")
    for name in used:
        written, found = stored.field(name), read.field(name)
        if _kind(written.type) != _kind(found.type) or written.nullable != found.nullable:
            raise _damaged(f"column '{name}' is both of type {written.type} and {found.type}")


def _kind(kind: pa.DataType) -> str:
    """Types that Parquet may exchange for one another count as one."""
    types = pa.types
    if types.is_dictionary(kind):
        return _kind(kind.value_type)
    if types.is_integer(kind):
        return "integer"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    return "time" if types.is_temporal(kind) else str(kind)


def _damaged(reason: str) -> UnreadableFile:
    return UnreadableFile(f"the file is damaged: {reason}")
