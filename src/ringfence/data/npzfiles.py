"""NumPy archives: one array per column."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ringfence.data.arrayfiles import KEYS, PLAIN_HEADER, filled, float32_or_as_written, names_present, plain
from ringfence.data.ids import set_text_ids, text_codes
from ringfence.data.rawlog import ENTRY, RawLog, pack_entry, reading, unpack_entry
from ringfence.data.sizes import require_plausible
from ringfence.errors import UnreadableFile, WrongShape

SUFFIX = ".npy"
BLOCK_BYTES = 1 << 20


def read_npz(path: Path) -> RawLog:
    with reading(path, "a NumPy archive"), zipfile.ZipFile(path) as archive:
        members = _members(archive)
        names = names_present(members)
        wanted = {*names.values(), *({ENTRY} & set(members) or set(PLAIN_HEADER) & set(members))}
        _require_sizes([members[name] for name in wanted], path.stat().st_size)
        log = RawLog({}, labels={column: (name,) for column, name in names.items()}, present=tuple(members))
        if ENTRY in members:
            log.header, log.checksum = unpack_entry(_read(archive, members, ENTRY, "").item())
        else:
            log.header = {key: plain(_read(archive, members, key, "")) for key in PLAIN_HEADER if key in members}
        for column, name in names.items():
            values = _read(archive, members, name, column)
            if values.dtype.kind in "US" and column in ("episode", "source"):
                texts = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
                set_text_ids(log, column, *text_codes(np.ravel(texts).tolist()))
            else:
                log.columns[column] = values
    return log


def write_npz(log: RawLog, path: Path) -> None:
    arrays = {KEYS[column][0]: array for column, array in log.columns.items()}
    # Our entry comes first, where damage to another member's place in the index cannot hide it.
    np.savez(path, allow_pickle=False, **{ENTRY: np.bytes_(pack_entry(log))}, **arrays)


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Every member by its name without suffix; an error if one comes twice or differs from the member's own header."""
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        archive.open(member).close()  # raises where the index and the member's header disagree
        name = member.filename.removesuffix(SUFFIX)
        if name in found:
            raise UnreadableFile(f"the archive holds '{name}' more than once; keep the one that is meant")
        found[name] = member
    return found


def _require_sizes(members: list[zipfile.ZipInfo], file_size: int) -> None:
    for member in members:
        stored = member.compress_type == zipfile.ZIP_STORED
        if member.compress_size > file_size or (stored and member.compress_size != member.file_size):
            raise UnreadableFile(f"'{member.filename}' does not have the size that the archive's index states")
    require_plausible(sum(member.file_size for member in members), file_size)


def _read(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo], name: str, column: str) -> NDArray[Any]:
    """One array, block by block into its place; reading to the member's end makes the archive check its CRC."""
    with archive.open(members[name]) as stream:
        shape, fortran_order, dtype = _header(stream, name)
        declared = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if stream.tell() + declared != members[name].file_size:
            raise UnreadableFile(
                f"'{name}' declares {declared:,} bytes of values, its member of the archive holds others"
            )
        values = np.empty(declared // dtype.itemsize, float32_or_as_written(column, dtype))
        done = 0
        while block := stream.read(max(BLOCK_BYTES // dtype.itemsize, 1) * dtype.itemsize):
            part = np.frombuffer(block, dtype)
            with np.errstate(over="ignore"):  # becomes infinity, which the checks report
                values[done : done + len(part)] = part
            done += len(part)
        values = filled(values, done, name)
    return values.reshape(shape[::-1]).T if fortran_order else values.reshape(shape)


def _header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise UnreadableFile(f"'{name}' is in version {version} of NumPy's format; save it again with numpy.savez")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(stream)
    if dtype.hasobject:
        # Pickled arrays could run any program.
        raise UnreadableFile(f"'{name}' is pickled, which ringfence does not read; save plain numbers or text")
    if dtype.kind not in "biufSU" or dtype.itemsize == 0:
        raise WrongShape(f"column '{name}' holds values of type {dtype}; needed: numbers")
    if len(shape) > 2:
        raise WrongShape(f"column '{name}' has shape {shape}; needed: (rows,) or (rows, dimensions)")
    return shape, fortran_order, dtype
