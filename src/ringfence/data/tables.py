"""What Parquet and CSV files have in common: one table column per number."""

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from ringfence.data import names as column_names
from ringfence.data.columnmapping import MATRICES
from ringfence.data.ids import set_text_ids
from ringfence.data.rawlog import RawLog

FLAGS = ("terminations", "truncations")
IDS = ("episode", "source")


def fill(out: NDArray[np.float32], part: pa.RecordBatch, names: Iterable[str]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # too large for float32 becomes infinity, which the checks report
        for index, name in enumerate(names):
            values = part.column(name)
            if pa.types.is_boolean(values.type):
                values = values.cast(pa.uint8())
            elif pa.types.is_decimal(values.type):
                values = values.cast(pa.float64())
            out[:, index] = values.to_numpy(zero_copy_only=False)  # an empty cell becomes NaN
    return out


def set_numbers(log: RawLog, column: str, values: NDArray[np.float32]) -> None:
    flags_are_clear = column in FLAGS and np.isin(values, (0, 1)).all()
    array = values if column in MATRICES else values[:, 0]
    log.columns[column] = array.astype(np.bool_) if flags_are_clear else array


def set_ids(log: RawLog, column: str, values: pa.ChunkedArray) -> None:
    """Whole numbers stay as they are; anything else becomes the number of its name."""
    if pa.types.is_integer(values.type):
        log.columns[column] = values.to_numpy()
        return
    if pa.types.is_floating(values.type):
        values = pa.compute.if_else(pa.compute.is_nan(values), None, values)  # no value, and no id of its own
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.string())
    encoded = values.dictionary_encode().unify_dictionaries()
    found = encoded.chunk(0).dictionary.to_pylist() if encoded.num_chunks else []
    # A column that was stored as a dictionary, such as a category of pandas, has indices of its own, smaller, type.
    codes = pa.chunked_array([chunk.indices.cast(pa.int32()) for chunk in encoded.chunks], pa.int32()).to_numpy()
    set_text_ids(log, column, codes, [column_names.name_of(value) for value in found])


def set_column_names(log: RawLog, units: Mapping[str, str]) -> None:
    """The table's own names and units, unless the file states others for its columns."""
    called = {"observation_names": "observations", "action_names": "actions"}
    for key, column in called.items():
        if column in log.labels:
            log.header.setdefault(key, list(log.labels[column]))
    units = {**column_names.units_in_names(log.present), **units}
    used = {name for column in called.values() for name in log.labels.get(column, ())}
    found = {name: unit for name, unit in units.items() if name in used}
    for column in ("rewards", "costs"):
        name = log.labels.get(column, ("",))[0]
        if name in units:
            found[column] = units[name]
    log.header.setdefault("units", found)
