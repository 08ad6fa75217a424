"""What HDF5 files and NumPy archives have in common: one array per column, under the names the DSRL and D4RL logs use."""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringfence.errors import UnreadableFile

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
IDS = ("episode", "source")
# What other programs may state, under these names.
PLAIN_HEADER = ("action_low", "action_high", "source_names", "observation_names", "action_names")


def names_present(present: Collection[str]) -> dict[str, str]:
    """For each of our columns that the file has: its name there."""
    found = {column: [name for name in names if name in present] for column, names in KEYS.items()}
    for names in found.values():
        if len(names) > 1:
            raise UnreadableFile(f"the file has both '{names[0]}' and '{names[1]}'; keep the one that is meant")
    return {column: names[0] for column, names in found.items() if names}


def plain(value: Any) -> Any:
    """An attribute or a small array as JSON-like Python."""
    value = value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def float32_or_as_written(column: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type a column is kept in while it is read: measurements as float32, ids exactly as they were written."""
    return np.dtype(np.float32) if dtype.kind == "f" and column not in IDS else dtype


def filled(array: NDArray[Any], values: int, name: str) -> NDArray[Any]:
    """The array, once the number of values written into it is known to be all of them."""
    if values != array.size:
        raise UnreadableFile(f"'{name}' holds {values} values, not the {array.size} it declares; the file is damaged")
    return array
