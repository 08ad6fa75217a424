"""HDF5 and NumPy archives: one array per column, under the names the DSRL and D4RL logs use."""

import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ringfence.data.rawlog import ENTRY, RawLog, pack_entry, reading, unpack_entry
from ringfence.errors import UnreadableFile, WrongShape

# Our name: the names it may have in a file, the one we write first.
KEYS = {
    "observations": ("observations",),
    "next_observations": ("next_observations",),
    "actions": ("actions",),
    "rewards": ("rewards",),
    "costs": ("costs",),
    "terminations": ("terminals", "terminations"),
    "truncations": ("timeouts", "truncations"),
    "episode": ("episode",),
    "source": ("source",),
}
# What other programs may state, under these names.
PLAIN_HEADER = ("action_low", "action_high", "source_names", "observation_names", "action_names")


def read_hdf5(path: Path) -> RawLog:
    with reading(path, "HDF5"), h5py.File(path, "r") as file:
        names = _names_present(file)
        columns = {column: _read_hdf5_column(file[name]) for column, name in names.items()}
        log = RawLog(columns, labels={column: (name,) for column, name in names.items()}, present=tuple(file))
        attributes = {key: _plain(value) for key, value in file.attrs.items()}
        if ENTRY in attributes:
            log.header, log.checksum = unpack_entry(attributes[ENTRY])
        else:
            log.header = {key: attributes.pop(key) for key in PLAIN_HEADER if key in attributes}
            log.header["metadata"] = {
                key: value for key, value in attributes.items() if isinstance(value, (str, int, float, bool))
            }
    return log


def write_hdf5(log: RawLog, path: Path) -> None:
    # The 1.10 layout guards its own structures with checksums, and so does text of fixed length: in older layouts
    # a flipped bit can crash the HDF5 library.
    with h5py.File(path, "w", libver="v110") as file:
        file.attrs[ENTRY] = np.bytes_(pack_entry(log))
        for column, array in log.columns.items():
            file.create_dataset(KEYS[column][0], data=array)


def read_npz(path: Path) -> RawLog:
    with reading(path, "a NumPy archive"):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                archive.open(member).close()  # raises where a member's name is damaged; NumPy would skip it
        # Pickled arrays could run any program: NumPy refuses them, and so do we.
        with np.load(path, allow_pickle=False) as file:
            names = _names_present(file)
            columns = {column: _compact(file[name]) for column, name in names.items()}
            log = RawLog(columns, labels={column: (name,) for column, name in names.items()}, present=tuple(file.files))
            if ENTRY in file:
                log.header, log.checksum = unpack_entry(file[ENTRY].item())
            else:
                log.header = {key: _plain(file[key]) for key in PLAIN_HEADER if key in file}
    return log


def write_npz(log: RawLog, path: Path) -> None:
    arrays = {KEYS[column][0]: array for column, array in log.columns.items()}
    # Our entry comes first, where damage to another member's place in the index cannot hide it.
    np.savez(path, allow_pickle=False, **{ENTRY: np.bytes_(pack_entry(log))}, **arrays)


def _names_present(file: Any) -> dict[str, str]:
    found = {column: [name for name in names if name in file] for column, names in KEYS.items()}
    for names in found.values():
        if len(names) > 1:
            raise UnreadableFile(f"the file has both '{names[0]}' and '{names[1]}'; keep the one that is meant")
    return {column: names[0] for column, names in found.items() if names}


def _read_hdf5_column(item: Any) -> NDArray[Any]:
    if not isinstance(item, h5py.Dataset):
        raise WrongShape(f"'{item.name.lstrip('/')}' is a group of arrays; needed: one array")
    if h5py.check_string_dtype(item.dtype) is not None:
        return np.asarray(item.asstr()[()], dtype=np.str_)
    if item.dtype.kind == "f" and item.dtype.itemsize > 4 and item.shape:
        # HDF5 converts block by block while it reads: no float64 copy of the whole column.
        return np.asarray(item.astype(np.float32)[()])
    return np.asarray(item[()])


def _compact(array: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # becomes infinity, which the checks report
        return array.astype(np.float32) if array.dtype.kind == "f" else array


def _plain(value: Any) -> Any:
    """An attribute as JSON-like Python."""
    value = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    return value.decode() if isinstance(value, bytes) else value
