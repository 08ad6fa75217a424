"""Steps on the way from checked columns to a `Dataset`: what is derived, looked up or filled in."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfence.data import checks
from ringfence.data.episodes import (
    row_of_interleaved_episode,
    rows_with_known_successor,
    truncations_from_episode_column,
)
from ringfence.data.names import clean, name_of, texts
from ringfence.errors import EmptyData, InvalidSetting, MissingColumns, WrongShape

CostFunction = Callable[[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]], ArrayLike]
"""costs of shape (rows,) from observations, actions and next observations."""

MOST_SOURCES = 1_000  # a column of more different values says something else


def require_given(**columns: object) -> None:
    missing = [column for column, values in columns.items() if values is None]
    if missing:
        raise MissingColumns(f"the log lacks {', '.join(missing)}; every step needs all of them")


def truncations_by_episode(
    columns: Mapping[str, NDArray[Any]], episode: NDArray[Any], labels: checks.Labels
) -> NDArray[np.bool_]:
    """The truncations, with those that the episode column adds. Rows of several episodes must not be mixed."""
    terminations, truncations = columns["terminations"], columns["truncations"]
    row = row_of_interleaved_episode(episode, terminations | truncations)
    if row is not None:
        first = int(np.flatnonzero(episode == episode[row])[0])
        raise WrongShape(
            f"{checks.column_label('episode', labels)} comes back in row {row} to the id of row {first}, after rows of "
            "other episodes: sort the rows by episode and time, or give each episode an id of its own"
        )
    return truncations_from_episode_column(episode, terminations, truncations)


def derive_next_observations(columns: dict[str, NDArray[Any]]) -> list[str]:
    """Fill in the next observations in place, dropping rows whose successor is unknown; say so."""
    rows = len(columns["observations"])
    kept, successor, truncations = rows_with_known_successor(columns["terminations"], columns["truncations"])
    if not len(kept):
        raise EmptyData(
            "every episode is truncated after one row, so no next observation is known; add next_observations"
        )
    following = columns["observations"][successor]
    dropped = rows - len(kept)
    if dropped:
        columns |= {column: array[kept] for column, array in columns.items()}
    columns |= {"next_observations": following, "truncations": truncations}
    note = "next observations were taken from the following row"
    if dropped:
        note += (
            f"; {dropped} rows that end a truncated episode were dropped because what followed them was not recorded"
        )
    return [note]


def call_cost(cost: CostFunction, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    labels = {"costs": ("costs (from the cost function)",)}
    inputs = (columns[column] for column in ("observations", "actions", "next_observations"))
    costs = checks.vector("costs", cost(*inputs), labels)
    checks.equal_lengths({"observations": columns["observations"], "costs": costs}, labels)
    checks.costs_not_negative(costs, labels)
    return costs


def action_bounds(
    actions: NDArray[np.float32], low: ArrayLike | None, high: ArrayLike | None
) -> tuple[NDArray[np.float32], NDArray[np.float32], list[str]]:
    """The stated bounds; else [-1, 1] if the log fits in; else the log's own extremes, with a note."""
    dimensions = actions.shape[1]
    if (low is None) != (high is None):
        raise InvalidSetting("give both action_low and action_high, or neither")
    if low is not None and high is not None:
        given = (
            checks.given_bounds("action_low", low, dimensions),
            checks.given_bounds("action_high", high, dimensions),
        )
        return *given, []
    least, most = actions.min(axis=0), actions.max(axis=0)
    if least.min() >= -1 and most.max() <= 1:
        return np.full(dimensions, -1, np.float32), np.full(dimensions, 1, np.float32), []
    # A dimension that never moves still needs an interval of some width to be scaled by.
    room = np.where(least < most, 0, np.maximum(1, np.abs(least))).astype(np.float32)
    note = "action bounds were not stated: the least and greatest logged action of each dimension are used"
    return least - room, most + room, [note]


def source_codes(
    source: NDArray[Any], names: Sequence[str], labels: checks.Labels
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Each row's behaviour as an index of the names; without names, the values themselves are the names."""
    given = texts("source_names", names if isinstance(names, (str, list)) else list(names))
    if len(set(given)) < len(given):
        raise WrongShape(f"source_names has a name twice: {', '.join(given)}")
    values, codes = np.unique(source, return_inverse=True)
    if max(len(values), len(given)) > MOST_SOURCES:
        raise WrongShape(
            f"{checks.column_label('source', labels)} has {len(values)} different values; it says which controller wrote "
            f"a row, and ringfence tells up to {MOST_SOURCES} apart"
        )
    if not given:
        return codes.astype(np.int32), tuple(clean(name_of(value)) for value in values)
    known = {name if source.dtype.kind in "UO" else code: code for code, name in enumerate(given)}
    found = np.array([known.get(value, -1) for value in values.tolist()], np.int32)[codes]
    if (found < 0).any():
        row = int(np.argmax(found < 0))
        raise WrongShape(
            f"{checks.column_label('source', labels)} is {source[row]} in row {row}, which is none of the "
            f"{len(given)} named behaviours ({', '.join(given)})"
        )
    return found, given


def unfinished_note(is_end: NDArray[np.bool_]) -> list[str]:
    """What to say if the last episode has no end."""
    if is_end[-1]:
        return []
    rows = int(np.argmax(is_end[::-1])) if is_end.any() else len(is_end)
    return [f"the last episode ({rows} rows) is unfinished: it neither terminated nor was truncated"]


def plain_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidSetting(f"metadata must be made of JSON values: {error}") from None
    return plain
