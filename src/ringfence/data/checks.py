"""The checks a column must pass before ringfence believes it.

Every check says what is wrong, in which column, in which row (counted from 0, as in Python) and what to do.
They walk over the data in blocks, so that checking two million rows needs a few megabytes and a moment.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfence.data.names import name_of
from ringfence.errors import (
    ActionOutOfBounds,
    EmptyData,
    InvalidSetting,
    NegativeCost,
    NonFiniteValue,
    UnequalLengths,
    WrongShape,
)
from ringfence.values import LARGEST_LOGGED

Labels = Mapping[str, Sequence[str]]
"""What the user's file calls a column: one name for the whole, or one name for each dimension."""

BLOCK_ROWS = 65_536
# Logs are often written in float32 after the controller clipped in float64: this much overshoot is rounding.
BOUND_TOLERANCE = 1e-5
# How ids that are not UTF-8 are decoded: to a character of its own for each byte, so that different ids stay different.
BYTES_OF_NO_TEXT = "surrogateescape"


def blocks(rows: int, size: int = BLOCK_ROWS) -> Iterator[slice]:
    """Consecutive slices that cover `rows` rows."""
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def column_label(column: str, labels: Labels, dimension: int | None = None) -> str:
    """The column as its owner knows it.

    >>> column_label("observations", {"observations": ("speed", "angle")}, 1)
    "column 'angle'"
    >>> column_label("observations", {}, 1)
    "column 'observations' (dimension 1)"
    """
    names = labels.get(column, (column,))
    if dimension is not None and max(dimension, 1) < len(names):
        return f"column '{names[dimension]}'"
    name = names[0] if len(names) == 1 else column
    return f"column '{name}'" + ("" if dimension is None else f" (dimension {dimension})")


def matrix(column: str, values: ArrayLike, labels: Labels) -> NDArray[np.float32]:
    """Finite numbers of shape (rows, dimensions), without a copy where they are float32 already."""
    array = _as_numbers(column, values, labels)
    if array.ndim != 2 or array.shape[1] == 0:
        hint = "; give one number as values.reshape(-1, 1)" if array.ndim == 1 else ""
        raise WrongShape(f"{column_label(column, labels)} has shape {array.shape}; needed: (rows, dimensions){hint}")
    return _finite_float32(column, array, labels)


def vector(column: str, values: ArrayLike, labels: Labels) -> NDArray[np.float32]:
    """Finite numbers of shape (rows,); a trailing dimension of one is taken off."""
    return _finite_float32(column, _one_per_row(column, _as_numbers(column, values, labels), labels), labels)


def flags(column: str, values: ArrayLike, labels: Labels) -> NDArray[np.bool_]:
    """Yes or no per row, given as booleans or as the numbers 0 and 1."""
    array = _one_per_row(column, _as_numbers(column, values, labels), labels)
    if array.dtype == np.bool_:
        stored = np.ascontiguousarray(array).view(np.uint8)
        if stored.max(initial=0) <= 1:
            return array
        array = stored  # a damaged file can hold booleans that are neither
    # As numbers first: NaN would otherwise become True.
    unclear = _first_row((array != 0) & (array != 1))
    if unclear is not None:
        value = array[unclear]
        error = WrongShape if np.isfinite(value) else NonFiniteValue
        raise error(
            f"{column_label(column, labels)} is {value} in row {unclear}; write 1 or true where an episode "
            "ends that way and 0 or false elsewhere"
        )
    return array.astype(np.bool_)


def per_row(column: str, values: ArrayLike, labels: Labels) -> NDArray[Any]:
    """Numbers or text of shape (rows,): ids of episodes or behaviours. Different ones stay different."""
    array = _as_written(values)
    if array.dtype.kind == "M":
        unknown, array = np.isnat(array), np.datetime_as_string(array).astype(object)
        array[unknown] = None
    if array.dtype.kind not in "biufUSO":
        raise WrongShape(f"{column_label(column, labels)} holds {array.dtype}; needed: numbers, text or dates")
    array = _one_per_row(column, array, labels)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", BYTES_OF_NO_TEXT)
    absent = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
    if array.dtype.kind == "O":
        array = np.array(
            [str(value) if isinstance(value, date) and value == value else value for value in array], object
        )
        absent = np.array([not isinstance(value, (str, Real)) or value != value for value in array], bool)
    missing = _first_row(absent)
    if missing is not None:
        raise NonFiniteValue(f"{column_label(column, labels)} has no value in row {missing}; fill it in")
    if array.dtype.kind == "O":
        mixed = _first_row(np.array([isinstance(value, str) != isinstance(array[0], str) for value in array], bool))
        if mixed is not None:
            raise WrongShape(
                f"{column_label(column, labels)} holds both text and numbers (row 0: {array[0]!r}, row {mixed}: "
                f"{array[mixed]!r}); needed: one of them"
            )
        # As objects: text of one fixed width needs as much room for each as the longest.
        array = np.array([name_of(value) for value in array], dtype=object)
    return array


def equal_lengths(arrays: Mapping[str, NDArray[Any]], labels: Labels) -> int:
    """The number of rows, the same in every column and at least one."""
    lengths = {column: len(array) for column, array in arrays.items()}
    if not any(lengths.values()):
        raise EmptyData("the log has no rows; check that the program that wrote it ran to its end")
    reference, rows = next(iter(lengths.items()))
    for column, length in lengths.items():
        if length != rows:
            raise UnequalLengths(
                f"{column_label(column, labels)} has {length} rows but {column_label(reference, labels)} has "
                f"{rows}; the first row that is not in both is row {min(length, rows)}. Every column needs one "
                "value per step"
            )
    return rows


def costs_not_negative(costs: NDArray[np.float32], labels: Labels) -> None:
    row = _first_row(costs < 0)
    if row is not None:
        raise NegativeCost(
            f"{column_label('costs', labels)} is {costs[row]:g} in row {row}; a cost measures harm and starts "
            "at 0. Add a constant to all costs, or move what is good into the reward"
        )


def given_bounds(name: str, bound: ArrayLike, dimensions: int) -> NDArray[np.float32]:
    """A stated action bound, one finite number per action dimension (a single number serves all)."""
    try:
        with np.errstate(over="ignore"):  # becomes infinity, reported below
            array = np.asarray(bound, dtype=np.float32).reshape(-1)
        array = np.broadcast_to(array, (dimensions,)).copy()
    except (TypeError, ValueError):
        raise InvalidSetting(
            f"{name} is {bound!r}; needed: one number, or one per action dimension ({dimensions})"
        ) from None
    if not (np.abs(array) <= LARGEST_LOGGED).all():
        raise InvalidSetting(f"{name} is {array.tolist()}; bounds must be finite numbers of at most {LARGEST_LOGGED:g}")
    return array


def actions_inside(
    actions: NDArray[np.float32], low: NDArray[np.float32], high: NDArray[np.float32], labels: Labels
) -> NDArray[np.float32]:
    """The actions, clipped where rounding put them just outside the bounds; further out is an error."""
    if (low >= high).any():
        worst = int(np.argmax(low >= high))
        raise InvalidSetting(
            f"action_low is {low[worst]:g} and action_high {high[worst]:g} in dimension {worst}; "
            "low must be less than high"
        )
    slack = BOUND_TOLERANCE * (high.astype(np.float64) - low)
    overshoot = False
    for block in blocks(len(actions)):
        part = actions[block]
        if ((part >= low) & (part <= high)).all():
            continue
        overshoot = True
        outside = (part < low - slack) | (part > high + slack)
        row = _first_row(np.any(outside, axis=1))
        if row is not None:
            dimension = int(np.argmax(outside[row]))
            raise ActionOutOfBounds(
                f"{column_label('actions', labels, dimension)} is {part[row, dimension]:g} in row "
                f"{block.start + row}, outside [{low[dimension]:g}, {high[dimension]:g}]; state the true bounds "
                "(action_low, action_high) or repair the row"
            )
    return np.clip(actions, low, high) if overshoot else actions


def _as_written(values: ArrayLike) -> NDArray[Any]:
    """Ids as an array. NumPy makes one type of a list: 2**60 + 1 beside 0.5 would become 2**60, and 1 beside "1" the same
    text. Such a list stays one of objects, and a masked value becomes None."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        objects: NDArray[Any] = values.data.astype(object)
        objects[values.mask] = None
        return objects
    if not isinstance(values, (list, tuple)):
        return np.asarray(values)
    try:
        array = np.asarray(values)
        if array.ndim != 1 or array.tolist() == list(values):
            return array
    except ValueError:  # items of different lengths
        pass
    return np.fromiter((_text_of(value) for value in values), object, len(values))


def _text_of(value: Any) -> Any:
    return value.decode("utf-8", BYTES_OF_NO_TEXT) if isinstance(value, bytes) else value


def _as_numbers(column: str, values: ArrayLike, labels: Labels) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:  # rows of different lengths
        raise WrongShape(f"{column_label(column, labels)} is not an array of numbers: {error}") from None
    if isinstance(values, np.ma.MaskedArray):
        array = np.ma.filled(values.astype(np.float64), np.nan)
    if array.dtype.kind == "O":
        array = _numbers_of_objects(column, array, labels)
    if array.dtype.kind not in "biuf":
        kind = "text" if array.dtype.kind in "US" else f"values of type {array.dtype}"
        example = f" (row 0: {array.flat[0]!r})" if array.size else ""
        raise WrongShape(f"{column_label(column, labels)} holds {kind}{example}; needed: numbers")
    return array


def _numbers_of_objects(column: str, array: NDArray[Any], labels: Labels) -> NDArray[Any]:
    """Numbers that are stored as objects, as in a DataFrame with columns of numbers and of booleans."""
    for index, value in np.ndenumerate(array):
        if not isinstance(value, (Real, np.bool_)):
            row, *dimension = index or (0,)
            where = column_label(column, labels, *dimension[:1])
            raise WrongShape(f"{where} holds a value of type {type(value).__name__} in row {row}; needed: numbers")
    try:
        return array.astype(np.float64)
    except OverflowError:
        raise NonFiniteValue(
            f"{column_label(column, labels)} holds a number that is too large to compute with"
        ) from None


def _one_per_row(column: str, array: NDArray[Any], labels: Labels) -> NDArray[Any]:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise WrongShape(f"{column_label(column, labels)} has shape {array.shape}; needed: (rows,), one value per step")
    return array


def _finite_float32(column: str, array: NDArray[Any], labels: Labels) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # too large for float32 becomes infinity, reported just below
        numbers = np.ascontiguousarray(array, dtype=np.float32)
    for block in blocks(len(numbers)):
        finite = np.abs(numbers[block]) <= LARGEST_LOGGED
        if finite.all():
            continue
        row, *dimension = (int(index) for index in np.argwhere(~finite)[0])
        value = array[(block.start + row, *dimension)]
        reason = (
            f"too large to compute with (most: {LARGEST_LOGGED:g})" if np.isfinite(value) else "not a finite number"
        )
        raise NonFiniteValue(
            f"{column_label(column, labels, *dimension)} is {value} in row {block.start + row}, {reason}; "
            "remove its episode or repair the value"
        )
    return numbers


def _first_row(wrong: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None
