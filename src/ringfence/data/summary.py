"""What is in a log, and how safe it was: the numbers behind `ringfence inspect`."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringfence.data.concerns import concerns
from ringfence.data.dataset import Dataset
from ringfence.data.episodes import EpisodeTable, episode_table
from ringfence.data.trips import Level, find_levels
from ringfence.errors import InvalidSetting
from ringfence.limits import DISCOUNT, Limit

LEAST_EXPLAINED = 3  # terminations: a level that explains fewer may be there by chance


@dataclass(frozen=True)
class Spread:
    """How one number per episode is spread over the episodes."""

    mean: float
    std: float
    min: float
    lower_quartile: float
    median: float
    upper_quartile: float
    max: float

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Spread":
        quartiles = np.quantile(values, (0.0, 0.25, 0.5, 0.75, 1.0))
        return cls(float(np.mean(values)), float(np.std(values)), *(float(value) for value in quartiles))


@dataclass(frozen=True)
class Range:
    """The least and greatest value of each dimension."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, values: NDArray[Any]) -> "Range":
        table = values.reshape(len(values), -1)
        return cls(tuple(table.min(axis=0).tolist()), tuple(table.max(axis=0).tolist()))


@dataclass(frozen=True)
class EpisodeSummary:
    """What a group of episodes earned and cost."""

    name: str
    episodes: int
    lengths: Spread
    returns: Spread
    discounted_returns: Spread
    costs: Spread
    discounted_costs: Spread

    @classmethod
    def of(cls, name: str, table: EpisodeTable, chosen: NDArray[np.bool_]) -> "EpisodeSummary | None":
        """None for a group without episodes."""
        if not chosen.any():
            return None
        columns = (table.length, table.returns, table.discounted_returns, table.costs, table.discounted_costs)
        return cls(name, int(chosen.sum()), *(Spread.of(column[chosen]) for column in columns))


@dataclass(frozen=True)
class LimitSummary:
    """The limit in its three ways, and which episodes keep it.

    An episode is inside when its discounted cost from the first step is at most the limit; a row is inside when
    the discounted cost from that row to the end of its episode is.
    """

    discounted: float
    per_step: float
    per_episode: float | None  # None without a horizon
    horizon: float | None
    in_words: str
    episodes_inside: int
    share_of_episodes_inside: float
    share_of_rows_inside: float
    inside: EpisodeSummary | None
    outside: EpisodeSummary | None


@dataclass(frozen=True)
class Summary:
    name: str
    fingerprint: str
    rows: int
    observation_size: int
    action_size: int
    observation_names: tuple[str, ...]
    action_names: tuple[str, ...]
    units: dict[str, str]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    ranges: dict[str, Range]
    episodes: int
    terminated: int
    truncated: int
    unfinished: int
    end_levels: tuple[Level, ...]  # of single columns, beyond which episodes terminated
    discount: float
    all_episodes: EpisodeSummary
    sources: tuple[EpisodeSummary, ...]
    limit: LimitSummary | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    advice: tuple[str, ...]  # what to do about each warning
    metadata: dict[str, Any]

    @property
    def ends_in_words(self) -> str:
        """Where episodes terminated, as far as levels of single columns say it; empty if they do not."""
        if not self.end_levels:
            return ""
        words = (
            f"{self.observation_names[level.column]} {'below' if level.below else 'above'} {level.value:.4g} "
            f"({level.terminations})"
            for level in self.end_levels
        )
        return f"Where the {self.terminated} terminated episodes ended: {', '.join(words)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def summarise(dataset: Dataset, discount: float = DISCOUNT, limit: Limit | None = None) -> Summary:
    if not 0 < discount < 1:
        raise InvalidSetting(f"discount must lie strictly between 0 and 1, not {discount}")
    if limit is not None and limit.discount != discount:
        raise InvalidSetting(
            f"the limit is stated at a discount of {limit.discount:g}, the summary asked for at {discount:g}; use one"
        )
    table = episode_table(dataset, discount)
    everything = EpisodeSummary.of("all", table, np.ones(len(table), np.bool_))
    assert everything is not None  # a dataset has at least one row, hence one episode
    found = list(concerns(dataset, table, discount, limit))
    return Summary(
        name=dataset.name,
        fingerprint=dataset.fingerprint,
        rows=len(dataset),
        observation_size=dataset.observations.shape[1],
        action_size=dataset.actions.shape[1],
        observation_names=dataset.observation_names,
        action_names=dataset.action_names,
        units=dict(dataset.units),
        action_low=tuple(dataset.action_low.tolist()),
        action_high=tuple(dataset.action_high.tolist()),
        ranges={name: Range.of(getattr(dataset, name)) for name in ("observations", "actions", "rewards", "costs")},
        episodes=len(table),
        terminated=int(table.terminated.sum()),
        truncated=int((table.truncated & ~table.terminated).sum()),
        unfinished=int((~table.truncated & ~table.terminated).sum()),
        end_levels=tuple(level for level in find_levels(dataset) if level.terminations >= LEAST_EXPLAINED),
        discount=discount,
        all_episodes=everything,
        sources=_by_source(dataset, table),
        limit=None if limit is None else _against(limit, dataset, table),
        notes=dataset.notes,
        warnings=tuple(concern.what for concern in found),
        advice=tuple(concern.to_do for concern in found),
        metadata=dict(dataset.metadata),
    )


def _by_source(dataset: Dataset, table: EpisodeTable) -> tuple[EpisodeSummary, ...]:
    if table.source is None:
        return ()
    groups = (EpisodeSummary.of(name, table, table.source == code) for code, name in enumerate(dataset.source_names))
    return tuple(group for group in groups if group is not None)


def _against(limit: Limit, dataset: Dataset, table: EpisodeTable) -> LimitSummary:
    inside = table.discounted_costs <= limit.discounted
    finite = math.isfinite(limit.horizon)
    return LimitSummary(
        discounted=limit.discounted,
        per_step=limit.per_step,
        per_episode=limit.per_episode if finite else None,
        horizon=limit.horizon if finite else None,
        in_words=str(limit),
        episodes_inside=int(inside.sum()),
        share_of_episodes_inside=float(inside.mean()),
        share_of_rows_inside=float(np.mean(dataset.cost_to_go(limit.discount) <= limit.discounted)),
        inside=EpisodeSummary.of("inside the limit", table, inside),
        outside=EpisodeSummary.of("outside the limit", table, ~inside),
    )
