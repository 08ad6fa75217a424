"""One log in memory: validated once, never changed afterwards."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfence.data import checks
from ringfence.data.episodes import (
    discounted_sum_to_go,
    episode_bounds,
    rows_with_known_successor,
    truncations_from_episode_column,
)
from ringfence.data.normaliser import Normaliser
from ringfence.data.rawlog import columns_digest
from ringfence.errors import EmptyData, InvalidSetting, MissingColumns, NoEpisodeEnds, WrongShape

CostFunction = Callable[[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]], ArrayLike]
"""costs of shape (rows,) from observations, actions and next observations."""

ROW_COLUMNS = ("observations", "actions", "rewards", "costs", "next_observations", "terminations", "truncations")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """What a controller did, one row per step, in the order it happened.

    Build it with `Dataset.from_arrays`, which checks everything. Arrays are float32, C-contiguous and
    read-only. `terminations` and `truncations` are both kept: after a termination nothing follows, after a
    truncation something follows that was not recorded.
    """

    observations: NDArray[np.float32]  # (rows, obs)
    actions: NDArray[np.float32]  # (rows, act)
    rewards: NDArray[np.float32]  # (rows,)
    costs: NDArray[np.float32]  # (rows,), none negative
    next_observations: NDArray[np.float32]  # (rows, obs)
    terminations: NDArray[np.bool_]  # (rows,)
    truncations: NDArray[np.bool_]  # (rows,)
    action_low: NDArray[np.float32]  # (act,)
    action_high: NDArray[np.float32]  # (act,)
    source: NDArray[np.int32] | None = None  # (rows,): which behaviour wrote the row, an index of source_names
    source_names: tuple[str, ...] = ()
    name: str = "log"
    notes: tuple[str, ...] = ()  # what reading did that a person should know
    metadata: Mapping[str, Any] = field(default_factory=dict)  # task, seed, discount, ...: JSON values

    @classmethod
    def from_arrays(
        cls,
        *,
        observations: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        costs: ArrayLike | CostFunction,
        terminations: ArrayLike | None = None,
        truncations: ArrayLike | None = None,
        next_observations: ArrayLike | None = None,
        episode: ArrayLike | None = None,
        source: ArrayLike | None = None,
        source_names: Sequence[str] = (),
        action_low: ArrayLike | None = None,
        action_high: ArrayLike | None = None,
        name: str = "log",
        notes: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        labels: checks.Labels | None = None,
    ) -> "Dataset":
        """The one way in. Raises the `DataError` that fits, before anything else happens.

        `costs` may be a function of (observations, actions, next observations). `episode` names each row's
        episode and stands in for the flags. Without `next_observations` they are taken from the following row,
        at the price of the last row of each truncated episode. Without bounds they are [-1, 1] if the log
        fits in, else the log's own extremes. `labels` tells error messages what the columns are called
        where they came from.
        """
        labels = labels or {}
        _all_given(observations=observations, actions=actions, rewards=rewards, costs=costs)
        if terminations is None and truncations is None and episode is None:
            raise NoEpisodeEnds(
                "nothing says where episodes end; give terminations and truncations (true in an episode's last "
                "row), or an episode column that names each row's episode"
            )
        columns: dict[str, NDArray[Any]] = {
            "observations": checks.matrix("observations", observations, labels),
            "actions": checks.matrix("actions", actions, labels),
            "rewards": checks.vector("rewards", rewards, labels),
        }
        if not callable(costs):
            columns["costs"] = checks.vector("costs", costs, labels)
        if next_observations is not None:
            columns["next_observations"] = checks.matrix("next_observations", next_observations, labels)
        for column, given in {"terminations": terminations, "truncations": truncations}.items():
            if given is not None:
                columns[column] = checks.flags(column, given, labels)
        for column, given in {"episode": episode, "source": source}.items():
            if given is not None:
                columns[column] = checks.per_row(column, given, labels)
        rows = checks.equal_lengths(columns, labels)
        found = list(notes)

        if terminations is None:
            columns["terminations"] = np.zeros(rows, np.bool_)
            found.append("no column says where episodes terminated: every end counts as truncated")
        if truncations is None:
            columns["truncations"] = np.zeros(rows, np.bool_)
            if episode is None:
                found.append("no column says where episodes were truncated: every end counts as terminated")
        if episode is not None:
            columns["truncations"] = truncations_from_episode_column(
                columns.pop("episode"), columns["terminations"], columns["truncations"]
            )
        if not (columns["terminations"].any() or columns["truncations"].any()):
            raise NoEpisodeEnds(
                f"no row of {checks.column_label('terminations', labels)} or "
                f"{checks.column_label('truncations', labels)} is true, so no episode ever ends; mark the last "
                "row of each episode"
            )
        if next_observations is None:
            found += _derive_next_observations(columns)
        elif columns["next_observations"].shape != columns["observations"].shape:
            raise WrongShape(
                f"{checks.column_label('next_observations', labels)} has shape "
                f"{columns['next_observations'].shape} but the observations have shape "
                f"{columns['observations'].shape}; both describe the same kind of state"
            )
        if callable(costs):
            columns["costs"] = _call_cost(costs, columns)
        checks.costs_not_negative(columns["costs"], labels)

        low, high, bound_notes = _action_bounds(columns["actions"], action_low, action_high)
        columns["actions"] = checks.actions_inside(columns["actions"], low, high, labels)
        if source is not None:
            columns["source"], source_names = _source_codes(columns["source"], source_names, labels)
        found += bound_notes + _unfinished_note(columns["terminations"] | columns["truncations"])
        return cls(
            **{column: _read_only(array) for column, array in columns.items()},
            action_low=_read_only(low),
            action_high=_read_only(high),
            source_names=tuple(source_names) if source is not None else (),
            name=name,
            notes=tuple(dict.fromkeys(found)),
            metadata=_plain_json(metadata or {}),
        )

    def __len__(self) -> int:
        return len(self.rewards)

    def __repr__(self) -> str:
        sizes = f"{self.observations.shape[1]} observations, {self.actions.shape[1]} actions"
        return f"Dataset({self.name!r}: {len(self)} rows, {len(self.episode_starts)} episodes, {sizes})"

    @cached_property
    def _episode_bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return episode_bounds(self.terminations | self.truncations)

    @property
    def episode_starts(self) -> NDArray[np.int64]:
        """First row of each episode."""
        return self._episode_bounds[0]

    @property
    def episode_ends(self) -> NDArray[np.int64]:
        """The row after the last row of each episode."""
        return self._episode_bounds[1]

    @property
    def episode_slices(self) -> list[slice]:
        return [slice(*bounds) for bounds in zip(*map(np.ndarray.tolist, self._episode_bounds), strict=True)]

    @cached_property
    def normaliser(self) -> Normaliser:
        """Mean and spread of the observations."""
        return Normaliser.of(self.observations)

    def return_to_go(self, discount: float) -> NDArray[np.float64]:
        """Per row, the discounted reward from it to the end of its episode."""
        return discounted_sum_to_go(self.rewards, self.episode_ends, discount)

    def cost_to_go(self, discount: float) -> NDArray[np.float64]:
        """Per row, the discounted cost from it to the end of its episode."""
        return discounted_sum_to_go(self.costs, self.episode_ends, discount)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what is learned from: the rows and the action bounds, whatever file they came from."""
        names = (*ROW_COLUMNS, "action_low", "action_high")
        return columns_digest({name: getattr(self, name) for name in names}).hexdigest()

    def select_episodes(self, chosen: ArrayLike) -> "Dataset":
        """The log reduced to whole episodes, in their order: a mask over episodes, or their indices."""
        index = np.asarray(chosen)
        index = index if index.size else index.astype(np.intp)  # an empty list would count as one of floats
        mask = np.zeros(len(self.episode_starts), np.bool_)
        if index.dtype == np.bool_ and index.shape != mask.shape:
            raise InvalidSetting(f"the mask has shape {index.shape}; the log has {len(mask)} episodes")
        mask[index] = True
        if not mask.any():
            raise EmptyData(f"none of the {len(mask)} episodes is selected")
        rows = np.repeat(mask, self.episode_ends - self.episode_starts)
        columns = ROW_COLUMNS if self.source is None else (*ROW_COLUMNS, "source")
        changes: dict[str, Any] = {column: _read_only(getattr(self, column)[rows]) for column in columns}
        return replace(self, **changes, notes=(*self.notes, f"{mask.sum()} of {len(mask)} episodes selected"))


def _all_given(**columns: object) -> None:
    missing = [column for column, values in columns.items() if values is None]
    if missing:
        raise MissingColumns(f"the log lacks {', '.join(missing)}; every step needs all of them")


def _derive_next_observations(columns: dict[str, NDArray[Any]]) -> list[str]:
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


def _call_cost(cost: CostFunction, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    labels = {"costs": ("costs (from the cost function)",)}
    inputs = (columns[column] for column in ("observations", "actions", "next_observations"))
    costs = checks.vector("costs", cost(*inputs), labels)
    checks.equal_lengths({"observations": columns["observations"], "costs": costs}, labels)
    checks.costs_not_negative(costs, labels)
    return costs


def _action_bounds(
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


def _source_codes(
    source: NDArray[Any], names: Sequence[str], labels: checks.Labels
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Each row's behaviour as an index of the names; without names, the values themselves are the names."""
    if not names:
        values, codes = np.unique(source, return_inverse=True)
        whole = values.dtype.kind == "f" and (values == np.floor(values)).all()
        return codes.astype(np.int32), tuple(str(value) for value in (values.astype(int) if whole else values))
    found: NDArray[np.int32] = np.full(len(source), -1, np.int32)
    for code, name in enumerate(names):
        found[source == (name if source.dtype.kind == "U" else code)] = code
    if (found < 0).any():
        row = int(np.argmax(found < 0))
        raise WrongShape(
            f"{checks.column_label('source', labels)} is {source[row]} in row {row}, which is none of the "
            f"{len(names)} named behaviours ({', '.join(names)})"
        )
    return found, tuple(names)


def _unfinished_note(is_end: NDArray[np.bool_]) -> list[str]:
    if is_end[-1]:
        return []
    rows = int(np.argmax(is_end[::-1]))
    return [f"the last episode ({rows} rows) is unfinished: it neither terminated nor was truncated"]


def _plain_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(metadata)))
    except (TypeError, ValueError) as error:
        raise InvalidSetting(f"metadata must be made of JSON values: {error}") from None
    return plain


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written through, so that a checked log stays checked."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
