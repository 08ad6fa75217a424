"""Where an HDF5 file keeps its values: inside the file, all of them, each in a place of its own.

HDF5 reads 0 where nothing was written, and may read other files of the machine in place of its own (virtual data sets,
external storage, links). None of that is a log.
"""

import math
from collections.abc import Iterable
from pathlib import Path

import h5py

from ringfence.data.hdf5structures import structures
from ringfence.data.sizes import require_apart, require_plausible
from ringfence.errors import UnreadableFile, WrongShape

STANDARD_FLOATS = tuple(getattr(h5py.h5t, f"IEEE_F{bits}{order}") for bits in (16, 32, 64) for order in ("LE", "BE"))
MOST_DIMENSIONS = 2
SIGNATURE = b"\x89HDF\r\n\x1a\n"
BYTES_OF_ADDRESS = 8
LEAST_HEADER_BYTES = 16  # of a data set
Piece = tuple[int, int, str]  # where values lie: first byte, bytes, the column's name


def require_whole(path: Path, file_size: int) -> None:
    """Raise unless the file ends where its beginning says: HDF5 itself does not mind bytes that were put in."""
    with path.open("rb") as file:
        start = file.read(52)
    # Where the end is stated, by version of the format; and before it, from where addresses count.
    places = {0: (24, 40), 1: (28, 44), 2: (12, 28), 3: (12, 28)}
    width = {0: 13, 1: 13, 2: 9, 3: 9}
    version = start[8]
    if not start.startswith(SIGNATURE) or version not in places or start[width[version]] != BYTES_OF_ADDRESS:
        raise UnreadableFile("it is not laid out as usual (HDF5 with a user block or addresses of other than 8 bytes)")
    base, end = (int.from_bytes(start[place : place + 8], "little") for place in places[version])
    if base != 0 or end != file_size:
        raise UnreadableFile(
            f"it has {file_size:,} bytes but states {end:,}: it was damaged, or the program that wrote it did not close it"
        )


def own_dataset(group: h5py.Group, name: str) -> h5py.Dataset:
    """The data set of that name, if it is stored in the file itself."""
    full_name = f"{group.name.rstrip('/')}/{name}".lstrip("/")
    link = group.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink):
        kind = "an external link" if isinstance(link, h5py.ExternalLink) else "a soft link"
        raise _reaches_outside(full_name, kind)
    item = group[name]
    if not isinstance(item, h5py.Dataset):
        raise WrongShape(f"'{full_name}' is a group of arrays; needed: one array")
    properties = item.id.get_create_plist()
    if properties.get_layout() == h5py.h5d.VIRTUAL:
        raise _reaches_outside(full_name, "a virtual data set")
    if properties.get_external_count():
        raise _reaches_outside(full_name, "data in an external file")
    return item


def require_sound(datasets: Iterable[h5py.Dataset], path: Path) -> None:
    """Raise unless the data sets hold numbers or text of a standard type and all their values lie in the file, apart
    from each other and from the file's own structures."""
    file_size = path.stat().st_size
    extents: dict[int, list[Piece]] = {}  # by object: two names of one data set share its place
    declared = 0
    found = list(datasets)
    for dataset in found:
        name = dataset.name.lstrip("/")
        _require_standard_type(name, dataset.id.get_type())
        if dataset.shape is None or len(dataset.shape) > MOST_DIMENSIONS or not dataset.shape:
            raise WrongShape(f"column '{name}' has shape {dataset.shape}; needed: (rows,) or (rows, dimensions)")
        declared += _bytes(dataset, dataset.shape)
        require_plausible(max(declared, _bytes(dataset, dataset.chunks or ())), file_size)
        extents[h5py.h5o.get_info(dataset.id).addr] = _extents(name, dataset)
    pieces = [piece for of_one in extents.values() for piece in of_one]
    require_apart(pieces, file_size)
    headers = ((address, LEAST_HEADER_BYTES) for address in extents)
    _require_clear(pieces, [*structures(path), *headers])
    for dataset in found:
        _require_chunks_found(dataset)


def _require_clear(pieces: list[Piece], own: Iterable[tuple[int, int]]) -> None:
    """Raise if data lie where the file keeps its own structures."""
    end_of_data, end_of_own, name = 0, 0, ""
    for first, size, column in sorted([*pieces, *((first, size, "") for first, size in own)]):
        if first < (end_of_own if column else end_of_data):
            raise UnreadableFile(
                f"the data of '{column or name}' lie where the file keeps its own structures; it is damaged"
            )
        if column:
            end_of_data, name = first + size, column
        else:
            end_of_own = max(end_of_own, first + size)


def _reaches_outside(name: str, kind: str) -> UnreadableFile:
    return UnreadableFile(
        f"'{name}' is {kind}, which may lead out of the file; ringfence reads only what a file itself holds: copy the "
        "data into it"
    )


def _bytes(dataset: h5py.Dataset, shape: tuple[int, ...]) -> int:
    return math.prod(map(int, shape)) * _stored_item_bytes(dataset)


def _stored_item_bytes(dataset: h5py.Dataset) -> int:
    """Bytes of one value in the file; of text of any length its length and where it lies."""
    kind = dataset.id.get_type()
    if kind.get_class() == h5py.h5t.STRING and kind.is_variable_str():
        bytes_of_address = dataset.file.id.get_create_plist().get_sizes()[0]
        return int(4 + bytes_of_address + 4)
    return int(kind.get_size())


def _extents(name: str, dataset: h5py.Dataset) -> list[Piece]:
    """Where the values lie: (first byte, bytes, name) of each piece. Raises if some were never written."""
    whole = _bytes(dataset, dataset.shape)
    layout = dataset.id.get_create_plist().get_layout()
    if whole == 0:
        return []
    if layout == h5py.h5d.CHUNKED:
        return _chunks(name, dataset)
    stored = int(dataset.id.get_storage_size())
    if layout == h5py.h5d.COMPACT and stored == whole:
        return []  # within the header
    offset = dataset.id.get_offset()
    if stored != whole or offset is None:
        raise _not_written(name, whole, stored if offset is not None else 0)
    return [(int(offset), whole, name)]


def _chunks(name: str, dataset: h5py.Dataset) -> list[Piece]:
    found: list[h5py.h5d.StoreInfo] = []
    dataset.id.chunk_iter(found.append)
    expected = math.prod(-(-int(rows) // int(chunk)) for rows, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    # HDF5 reads 0 for a chunk that it does not find where it should begin.
    at = {chunk.chunk_offset for chunk in found if _is_place(chunk.chunk_offset, dataset.shape, dataset.chunks)}
    if len(at) != expected or len(found) != expected:
        raise _not_written(name, expected, len(at), "chunks")
    whole = _bytes(dataset, dataset.chunks)
    filters = dataset.id.get_create_plist().get_nfilters()
    for chunk in found:
        if chunk.size != whole and (filters == 0 or chunk.filter_mask):
            raise _not_written(name, whole, int(chunk.size))
    return [(int(chunk.byte_offset), int(chunk.size), name) for chunk in found]


def _require_chunks_found(dataset: h5py.Dataset) -> None:
    """Raise if HDF5 would not find a chunk that the file holds, and read 0. It looks for a chunk between the keys of an
    index, which older layouts keep without checksums; listing all chunks goes by the entries alone."""
    if dataset.chunks is None:
        return
    listed: list[h5py.h5d.StoreInfo] = []
    dataset.id.chunk_iter(listed.append)
    for chunk in listed:
        try:
            dataset.id.read_direct_chunk(chunk.chunk_offset)
        except (RuntimeError, OSError, ValueError):
            raise UnreadableFile(
                f"the index of '{dataset.name.lstrip('/')}' does not lead to the values that the file holds; it is damaged"
            ) from None


def _is_place(offset: tuple[int, ...], shape: tuple[int, ...], chunk: tuple[int, ...]) -> bool:
    """Whether a chunk may begin there: at a multiple of its size, inside the data set."""
    return all(at < size and at % step == 0 for at, size, step in zip(offset, shape, chunk, strict=True))


def _not_written(name: str, declared: int, stored: int, what: str = "bytes") -> UnreadableFile:
    return UnreadableFile(
        f"'{name}' declares {declared:,} {what} but the file holds {stored:,}; what was never written would read as 0. "
        "Check that the program that wrote it ran to its end"
    )


def _require_standard_type(name: str, kind: h5py.h5t.TypeID) -> None:
    """Damage to a type changes every number: only whole bytes in two's complement and IEEE floats are believed."""
    described = kind.get_class()
    if described == h5py.h5t.ENUM:  # how h5py writes booleans
        kind, described = kind.get_super(), h5py.h5t.INTEGER
    if described == h5py.h5t.INTEGER:
        standard = kind.get_precision() == 8 * kind.get_size() and kind.get_offset() == 0 and kind.get_size() <= 8
    elif described == h5py.h5t.FLOAT:
        standard = any(kind.equal(known) for known in STANDARD_FLOATS)
    else:
        standard = described == h5py.h5t.STRING
    if not standard:
        raise WrongShape(
            f"column '{name}' is of a type that is not standard; needed: whole numbers, IEEE floats or text"
        )
