"""HDF5 files: one array per column."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ringfence.data.arrayfiles import IDS, KEYS, PLAIN_HEADER, float32_or_as_written, names_present, plain
from ringfence.data.hdf5layout import own_dataset, require_sound, require_whole
from ringfence.data.ids import set_text_ids, text_codes
from ringfence.data.rawlog import ENTRY, RawLog, pack_entry, reading, unpack_entry
from ringfence.errors import UnreadableFile, WrongShape


def read_hdf5(path: Path) -> RawLog:
    with reading(path, "HDF5"), h5py.File(path, "r") as file:
        size = path.stat().st_size
        require_whole(path, size)
        present = tuple(_text(name) for name in file)
        names = names_present(present)
        datasets = {column: own_dataset(file, name) for column, name in names.items()}
        require_sound(datasets.values(), path)
        log = RawLog({}, labels={column: (name,) for column, name in names.items()}, present=present)
        attributes = _attributes(file, size)
        if ENTRY in attributes:
            log.header, log.checksum = unpack_entry(attributes[ENTRY])
        else:
            log.header = {key: attributes.pop(key) for key in PLAIN_HEADER if key in attributes}
            log.header["metadata"] = {
                key: value for key, value in attributes.items() if isinstance(value, (str, int, float, bool))
            }
        for column, dataset in datasets.items():
            _read_column(log, column, dataset)
    return log


def write_hdf5(log: RawLog, path: Path) -> None:
    # The 1.10 layout guards its own structures with checksums, and so does text of fixed length: in older layouts
    # a flipped bit can crash the HDF5 library.
    with h5py.File(path, "w", libver="v110") as file:
        file.attrs[ENTRY] = np.bytes_(pack_entry(log))
        for column, array in log.columns.items():
            file.create_dataset(KEYS[column][0], data=array)


def _read_column(log: RawLog, column: str, dataset: h5py.Dataset) -> None:
    text = h5py.check_string_dtype(dataset.dtype) is not None
    if text and column not in IDS:
        raise WrongShape(f"column '{dataset.name.lstrip('/')}' holds text; needed: numbers")
    if text:
        set_text_ids(log, column, *text_codes(np.ravel(dataset.asstr()[()])))
    else:
        # HDF5 converts block by block while it reads: no float64 copy of the whole column.
        log.columns[column] = _values(dataset, float32_or_as_written(column, dataset.dtype))


def _text(name: str | bytes) -> str:
    """The name of a data set, which may be one of ours that was damaged; h5py leaves names that are no UTF-8 as bytes."""
    if isinstance(name, bytes):
        raise UnreadableFile(
            f"it has a data set named {name!r}, which is no UTF-8 text; if the file is not damaged, rename it"
        )
    return name


def _values(dataset: h5py.Dataset, dtype: np.dtype[Any]) -> NDArray[Any]:
    values = dataset[()] if dtype == dataset.dtype else dataset.astype(dtype)[()]
    return np.asarray(values)


def _attributes(file: h5py.File, size: int) -> dict[str, Any]:
    found = {}
    for name in file.attrs:
        attribute = h5py.h5a.open(file.id, name.encode())
        if attribute.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            continue  # it holds nothing, on purpose
        if attribute.get_storage_size() > size:
            raise UnreadableFile(f"attribute '{name}' is declared to be larger than the file; it is damaged")
        found[name] = plain(file.attrs[name])
    return found
