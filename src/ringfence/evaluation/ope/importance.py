"""Importance sampling: what another policy would get, from how much likelier it makes what was logged.

With w_t = prod_{k<=t} pi(a_k | s_k) / beta(a_k | s_k) and values v_t (rewards or costs) of n logged episodes:

    whole episode    (1/n) sum_i w_{i,T} sum_t discount^t v_{i,t}
    per decision     (1/n) sum_i sum_t discount^t w_{i,t} v_{i,t}                        (Precup, Sutton, Singh, 2000)
    weighted         sum_t discount^t sum_i w_{i,t} v_{i,t} / sum_i w_{i,t}
    doubly robust    (1/n) sum_i V(s_0) + sum_t discount^t w_{i,t} (v + discount V(s') - Q(s, a))   (Jiang and Li, 2016)
    marginalised     from visits of (cells of) states instead of products of ratios      (Xie, Ma, Wang, 2019)

All but the weighted and the marginalised are unbiased when beta is known. None is of use when few episodes carry all the
weight, which `effective_episodes` shows.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfence.data.dataset import Dataset

Vector = NDArray[np.float64]
LARGEST = 600.0  # logarithm of a weight; beyond it a product of many ratios is no longer a finite number


class Weights:
    """Cumulated ratios of a log, one row per episode and one column per step.

    After a termination nothing is earned and the weight stays; after a truncation before the horizon nothing is known and
    the episode is left out from there on."""

    def __init__(self, log: Dataset, log_ratios: ArrayLike, horizon: int | None = None):
        starts, ends = log.episode_starts, log.episode_ends
        lengths = ends - starts
        self.horizon = int(lengths.max()) if horizon is None else horizon
        steps = np.arange(self.horizon)
        self.there = steps < lengths[:, None]  # a row was logged
        self.known = self.there | log.terminations[ends - 1][:, None]  # a row, or nothing after the end
        self._index = np.minimum(starts[:, None] + steps, (ends - 1)[:, None])
        ratios = np.where(self.there, np.asarray(log_ratios, np.float64)[self._index], 0.0)
        self.weights: Vector = np.exp(np.clip(np.cumsum(ratios, axis=1), -LARGEST, LARGEST))

    def table(self, rows: ArrayLike) -> Vector:
        """A column of the log as (episodes, steps), 0 where nothing was logged."""
        return np.where(self.there, np.asarray(rows, np.float64)[self._index], 0.0)

    @property
    def effective_episodes(self) -> Vector:
        """(sum w)^2 / sum w^2 at each step, over the episodes known there."""
        w = np.where(self.known, self.weights, 0.0)
        w = w / np.maximum(w.max(0), 1e-300)  # their squares must not overflow
        return np.asarray(w.sum(0) ** 2 / np.maximum((w**2).sum(0), 1e-300))

    @property
    def log_means(self) -> Vector:
        """The logarithm of the mean weight at each step, over the episodes known there. Its expectation is that of 1: a mean
        far from it says that hardly any episode is one that the policy could have made, or that beta is wrong."""
        w = np.where(self.known, self.weights, 0.0)
        largest = np.maximum(w.max(0), 1e-300)
        mean = (w / largest).sum(0) / np.maximum(self.known.sum(0), 1)
        return np.asarray(np.log(np.maximum(mean, 1e-300)) + np.log(largest))


def whole_episode(weights: Weights, values: ArrayLike, discount: float) -> float:
    table = weights.table(values) * discount ** np.arange(weights.horizon)
    return float(np.mean(weights.weights[:, -1] * table.sum(1)))


def per_decision(weights: Weights, values: ArrayLike, discount: float) -> float:
    """The mean at each step is over the episodes known there."""
    table = weights.table(values) * weights.weights
    means = table.sum(0) / np.maximum(weights.known.sum(0), 1)
    return float(means @ discount ** np.arange(weights.horizon))


def weighted(weights: Weights, values: ArrayLike, discount: float) -> float:
    """Consistent, biased towards what was logged, and never outside the range of the values."""
    table = weights.table(values) * weights.weights
    total = np.where(weights.known, weights.weights, 0.0).sum(0)
    return float((table.sum(0) / np.maximum(total, 1e-300)) @ discount ** np.arange(weights.horizon))


def doubly_robust(
    weights: Weights,
    values: ArrayLike,
    discount: float,
    *,
    start_values: ArrayLike,
    pair_values: ArrayLike,
    next_values: ArrayLike,
) -> float:
    """V(s_0) per episode; Q(s, a) and V(s') per row, V(s') = 0 after a termination. Unbiased if the ratios or the values
    are right; with exact values of a deterministic world it is exact."""
    error = weights.table(values) + discount * weights.table(next_values) - weights.table(pair_values)
    corrections = (error * weights.weights).sum(0) / np.maximum(weights.known.sum(0), 1)
    return float(np.asarray(start_values, np.float64).mean() + corrections @ discount ** np.arange(weights.horizon))


def marginalised(
    log: Dataset,
    log_ratios: ArrayLike,
    values: ArrayLike,
    discount: float,
    *,
    cells: ArrayLike,
    next_cells: ArrayLike,
    horizon: int,
) -> float:
    """Visits of cells of states, moved on by ratio-weighted transitions of all rows in a cell (normalised within it).

    The variance no longer grows exponentially with the horizon. The price: states of one cell count as one state, which is
    exact for the states of a finite problem and a bias elsewhere. `next_cells` of a terminated row is not used."""
    ratios = np.exp(np.asarray(log_ratios, np.float64))
    cells, next_cells = np.asarray(cells), np.asarray(next_cells)
    count = int(max(cells.max(), next_cells.max())) + 1
    total = np.zeros(count)
    np.add.at(total, cells, ratios)
    share = ratios / np.maximum(total[cells], 1e-300)
    earned = np.zeros(count)
    np.add.at(earned, cells, share * np.asarray(values, np.float64))
    move = np.zeros((count, count))
    going_on = ~log.terminations
    np.add.at(move, (cells[going_on], next_cells[going_on]), share[going_on])
    visits = np.bincount(cells[log.episode_starts], minlength=count) / len(log.episode_starts)
    value = 0.0
    for step in range(horizon):
        value += discount**step * float(visits @ earned)
        visits = visits @ move
    return value
