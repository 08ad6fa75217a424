"""One log in memory: validated once, never changed afterwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfence.data import checks, names, prepare
from ringfence.data.episodes import discounted_sum_to_go, episode_bounds
from ringfence.data.normaliser import Normaliser
from ringfence.data.prepare import CostFunction
from ringfence.data.rawlog import columns_digest
from ringfence.data.split import chosen_episodes, held_out_episodes
from ringfence.errors import NoEpisodeEnds, WrongShape

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
    observation_names: tuple[str, ...] = ()  # (obs,): what each column of the observations is called
    action_names: tuple[str, ...] = ()  # (act,)
    units: Mapping[str, str] = field(default_factory=dict)  # unit of a named column, of "rewards" or of "costs"
    name: str = "log"
    notes: tuple[str, ...] = ()  # what reading did that the user should know
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
        observation_names: Sequence[str] | None = None,
        action_names: Sequence[str] | None = None,
        units: Mapping[str, str] | None = None,
        name: str = "log",
        notes: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        labels: checks.Labels | None = None,
    ) -> "Dataset":
        """The one way in. Raises the `DataError` that fits, before anything else happens.

        `costs` may be a function of (observations, actions, next observations). `episode` names each row's
        episode and stands in for the flags. Without `next_observations` they are taken from the following row,
        at the price of the last row of each truncated episode. Without bounds they are [-1, 1] if the log
        fits in, else the log's own extremes. Without names the columns are called as in the DataFrame, else obs_0, ...,
        action_0, .... `labels` tells error messages what the columns are called where they came from.
        """
        observation_names = names.plain(observation_names) or names.names_in_table(observations)
        action_names = names.plain(action_names) or names.names_in_table(actions)
        labels = names.labels(labels or {}, observation_names, action_names)
        prepare.require_given(observations=observations, actions=actions, rewards=rewards, costs=costs)
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
            columns["truncations"] = prepare.truncations_by_episode(columns, columns.pop("episode"), labels)
        if not (columns["terminations"].any() or columns["truncations"].any()):
            raise NoEpisodeEnds(
                f"no row of {checks.column_label('terminations', labels)} or "
                f"{checks.column_label('truncations', labels)} is true, so no episode ever ends; mark the last "
                "row of each episode"
            )
        if next_observations is None:
            found += prepare.derive_next_observations(columns)
        elif columns["next_observations"].shape != columns["observations"].shape:
            raise WrongShape(
                f"{checks.column_label('next_observations', labels)} has shape "
                f"{columns['next_observations'].shape} but the observations have shape "
                f"{columns['observations'].shape}; both describe the same kind of state"
            )
        if callable(costs):
            columns["costs"] = prepare.call_cost(costs, columns)
        checks.costs_not_negative(columns["costs"], labels)

        low, high, bound_notes = prepare.action_bounds(columns["actions"], action_low, action_high)
        columns["actions"] = checks.actions_inside(columns["actions"], low, high, labels)
        if source is not None:
            columns["source"], source_names = prepare.source_codes(columns["source"], source_names, labels)
        found += bound_notes + prepare.unfinished_note(columns["terminations"] | columns["truncations"])
        observed = names.column_names("observations", observation_names, columns["observations"], "obs_")
        acted = names.column_names("actions", action_names, columns["actions"], "action_")
        return cls(
            **{column: _read_only(array) for column, array in columns.items()},
            action_low=_read_only(low),
            action_high=_read_only(high),
            observation_names=observed,
            action_names=acted,
            units=names.checked_units(units or {}, observed, acted),
            source_names=tuple(source_names) if source is not None else (),
            name=name,
            notes=tuple(dict.fromkeys(found)),
            metadata=prepare.plain_json(metadata or {}),
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

    @property
    def horizon(self) -> int:
        """The log's horizon: the number of steps of its longest episode."""
        return int((self.episode_ends - self.episode_starts).max())

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
        mask = chosen_episodes(chosen, len(self.episode_starts))
        rows = np.repeat(mask, self.episode_ends - self.episode_starts)
        columns = ROW_COLUMNS if self.source is None else (*ROW_COLUMNS, "source")
        changes: dict[str, Any] = {column: _read_only(getattr(self, column)[rows]) for column in columns}
        outdated = prepare.unfinished_note(self.terminations | self.truncations)
        notes = [note for note in self.notes if note not in outdated]
        notes += prepare.unfinished_note(changes["terminations"] | changes["truncations"])
        return replace(self, **changes, notes=(*notes, f"{mask.sum()} of {len(mask)} episodes selected"))

    def hold_out(self, share: float, seed: int = 0) -> tuple["Dataset", "Dataset"]:
        """Two logs, one to learn from and one to judge by, that have no episode in common.

        `share` of the episodes, of each source alike, are held out; the same seed holds out the same ones. An
        unfinished last episode is never held out: its sums are not known.
        """
        finished = bool(self.terminations[-1] | self.truncations[-1])
        source = None if self.source is None else self.source[self.episode_starts]
        held_out = held_out_episodes(len(self.episode_starts), share, seed, source=source, last_is_finished=finished)
        return self.select_episodes(~held_out), self.select_episodes(held_out)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written through, so that a checked log stays checked."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
