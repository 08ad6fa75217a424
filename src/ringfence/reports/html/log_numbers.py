"""The numbers of a log's page: episodes, columns, coverage."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ringfence.data import Dataset, episode_table, summarise
from ringfence.data.concerns import AT_BOUND, unexplained_action_share
from ringfence.data.summary import Summary
from ringfence.limits import Limit
from ringfence.reports.html.plots import thinned

MOST_EPISODES = 20_000  # of very many an even sample
MOST_COLUMNS = 30  # observations with a histogram; the table has all
BINS = 40
MAP_ROWS, NEIGHBOURS = 3_000, 800
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


@dataclass(frozen=True)
class Column:
    name: str
    unit: str
    role: str  # "observation", "action", "reward" or "cost"
    quantiles: tuple[float, ...]  # at QUANTILES
    edges: np.ndarray
    shares: tuple[np.ndarray, ...]  # for each source: the share of its rows in each bin


@dataclass(frozen=True)
class ActionCoverage:
    """How much of an actuator's range the log shows."""

    name: str
    low: float
    high: float
    used: float  # the range from the 5 % to the 95 % quantile, as a share of the bounds
    at_bounds: float  # share of the rows


@dataclass(frozen=True)
class Map:
    """Observations in the plane where they vary most (principal components of normalised columns)."""

    points: np.ndarray  # (rows, 2)
    codes: np.ndarray  # the source of each
    axes: tuple[str, str]  # in words: which columns grow or fall most in each direction
    explained: float  # share of the variance


@dataclass(frozen=True)
class LogNumbers:
    summary: Summary
    horizon: int
    source_names: tuple[str, ...]  # at least one
    costs: np.ndarray  # discounted, of each episode shown
    returns: np.ndarray
    codes: np.ndarray
    lengths: np.ndarray
    columns: tuple[Column, ...]
    actions: tuple[ActionCoverage, ...]
    open_share: float | None  # of the actions' variance, what the state leaves open; None for too few rows
    map: Map
    mixed: float | None  # how far sources share states: 1 as if drawn at random, 0 for apart; None for one source


def log_numbers(log: Dataset, discount: float, limit: Limit | None) -> LogNumbers:
    table = episode_table(log, discount)
    shown = thinned(len(table), MOST_EPISODES)
    codes, names = sources(log)
    rows = thinned(len(log), MAP_ROWS)
    return LogNumbers(
        summary=summarise(log, discount, limit),
        horizon=log.horizon,
        source_names=names,
        costs=rounded(table.discounted_costs[shown]),
        returns=rounded(table.returns[shown]),
        codes=codes[table.start[shown]],
        lengths=table.length[shown],
        columns=tuple(columns_of(log, codes, len(names))),
        actions=tuple(action_coverage(log)),
        open_share=unexplained_action_share(log) if len(log) >= 6_000 else None,
        map=map_of(log, codes, rows),
        mixed=mixing(log.normaliser(log.observations[rows]), codes[rows]) if len(names) > 1 else None,
    )


def sources(log: Dataset) -> tuple[np.ndarray, tuple[str, ...]]:
    """The source of each row and the names, of those that wrote something; one without a name if the log tells none."""
    if log.source is None:
        return np.zeros(len(log), int), ("episodes",)
    present, codes = np.unique(log.source, return_inverse=True)
    return codes, tuple(log.source_names[code] for code in present)


def columns_of(log: Dataset, codes: np.ndarray, count: int) -> list[Column]:
    named = [(name, "observation", log.observations[:, i]) for i, name in enumerate(log.observation_names)]
    named += [(name, "action", log.actions[:, i]) for i, name in enumerate(log.action_names)]
    made = [_column(name, log.units.get(name, ""), role, values, codes, count) for name, role, values in named]
    for name, values in (("reward", log.rewards), ("cost", log.costs)):
        made.append(_column(name, log.units.get(f"{name}s", ""), name, values, codes, count))
    return made


def _column(name: str, unit: str, role: str, values: np.ndarray, codes: np.ndarray, count: int) -> Column:
    low, high = float(values.min()), float(values.max())
    if high <= low:  # a column that never changes
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    shares = []
    for code in range(count):
        mine = values[codes == code]
        shares.append(np.histogram(mine, edges)[0] / max(len(mine), 1))
    return Column(name, unit, role, tuple(float(q) for q in np.quantile(values, QUANTILES)), edges, tuple(shares))


def action_coverage(log: Dataset) -> list[ActionCoverage]:
    found = []
    for i, name in enumerate(log.action_names):
        values, low, high = log.actions[:, i], float(log.action_low[i]), float(log.action_high[i])
        first, last = np.quantile(values, (0.05, 0.95))
        margin = AT_BOUND * (high - low)
        near = (values <= low + margin) | (values >= high - margin)
        found.append(ActionCoverage(name, low, high, float((last - first) / (high - low)), float(near.mean())))
    return found


def map_of(log: Dataset, codes: np.ndarray, rows: np.ndarray) -> Map:
    table = np.asarray(log.normaliser(log.observations[rows]), float)
    table = table - table.mean(0)
    _, sizes, directions = np.linalg.svd(table, full_matrices=False)
    if len(directions) < 2:
        directions, sizes = np.vstack([directions, np.zeros_like(directions)]), np.append(sizes, 0.0)
    total = float(np.sum(sizes**2))
    explained = float(np.sum(sizes[:2] ** 2) / total) if total > 0 else 1.0
    first, second = (_made_of(direction, log.observation_names) for direction in directions[:2])
    return Map(table @ directions[:2].T, codes[rows], (first, second), explained)


def _made_of(direction: Any, names: tuple[str, ...]) -> str:
    """The two columns that a direction is mostly made of, in words."""
    order = np.argsort(-np.abs(direction), kind="stable")[:2]
    words = [f"{'more' if direction[i] >= 0 else 'less'} {names[i]}" for i in order if abs(direction[i]) > 0.1]
    return "mostly " + " and ".join(words) if words else "nothing"


def mixing(states: np.ndarray, codes: np.ndarray) -> float:
    """How often the nearest other state is another source's, as a share of how often it would be by chance."""
    states = np.asarray(states, float)
    probes = thinned(len(states), NEIGHBOURS)
    squared = (states[probes] ** 2).sum(1)[:, None] + (states**2).sum(1) - 2 * states[probes] @ states.T
    squared[np.arange(len(probes)), probes] = np.inf
    other = float((codes[squared.argmin(1)] != codes[probes]).mean())
    shares = np.bincount(codes) / len(codes)
    by_chance = float(1 - (shares**2).sum())
    return min(other / by_chance, 1.0) if by_chance > 0 else 0.0


def rounded(values: np.ndarray) -> np.ndarray:
    """Seven digits: what the page computes with is what its file holds."""
    return np.array([float(f"{value:.7g}") for value in values])
