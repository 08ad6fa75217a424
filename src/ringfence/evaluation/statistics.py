"""Statistics over seeds and tasks, with few seeds in mind (Agarwal et al., 2021, and their package rliable).

Scores are given as one array for each task, with an entry for each seed. Tasks may have different numbers of seeds.
A bootstrap is stratified: seeds are drawn again, with replacement, within each task, so that every resample has every
task in its own proportion.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

Scores = Sequence[Float[np.ndarray, "*resamples seeds"]]
"""One array for each task; a leading axis, where there is one, counts resamples."""
Statistic = Callable[[Scores], Float[np.ndarray, "*resamples"]]
RESAMPLES = 2000
LEVEL = 0.95  # of intervals


def interquartile_mean(scores: Scores) -> Float[np.ndarray, "*resamples"]:
    """The mean of what is left of all scores, of all tasks together, without the lowest and the highest quarter. Of each
    end the whole number of scores at or below a quarter is left out: with three scores none, with four one."""
    together = np.sort(np.concatenate([np.asarray(task, float) for task in scores], axis=-1), axis=-1)
    cut = together.shape[-1] // 4
    mean: np.ndarray = together[..., cut : together.shape[-1] - cut].mean(axis=-1)
    return mean


def mean_of_tasks(scores: Scores) -> Float[np.ndarray, "*resamples"]:
    """The mean over tasks of each task's mean over seeds."""
    mean: np.ndarray = np.mean([np.mean(task, axis=-1) for task in scores], axis=0)
    return mean


def bootstrap_interval(
    values: Float[np.ndarray, " n"], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean (Efron, 1979): the values are drawn again, with replacement."""
    return percentiles(resample(values, resamples, np.random.default_rng(seed)).mean(axis=1), level)


def stratified_interval(
    scores: Scores,
    statistic: Statistic = interquartile_mean,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of a statistic over stratified resamples of the seeds."""
    rng = np.random.default_rng(seed)
    return percentiles(statistic([resample(task, resamples, rng) for task in scores]), level)


def probability_of_improvement(ours: Scores, theirs: Scores) -> Float[np.ndarray, "*resamples"]:
    """P(X > Y) + P(X = Y) / 2 for a seed X of ours and a seed Y of theirs, averaged over tasks (Mann and Whitney's U
    divided by the number of pairs)."""
    shares = []
    for x, y in zip(ours, theirs, strict=True):
        difference = np.asarray(x, float)[..., :, None] - np.asarray(y, float)[..., None, :]
        shares.append(np.mean((difference > 0) + 0.5 * (difference == 0), axis=(-2, -1)))
    mean: np.ndarray = np.mean(shares, axis=0)
    return mean


def improvement_interval(
    ours: Scores, theirs: Scores, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of `probability_of_improvement`, the seeds of both drawn again independently."""
    rng = np.random.default_rng(seed)
    drawn = [[resample(task, resamples, rng) for task in scores] for scores in (ours, theirs)]
    return percentiles(probability_of_improvement(*drawn), level)


def resample(
    task: Float[np.ndarray, " seeds"], resamples: int, rng: np.random.Generator
) -> Float[np.ndarray, "resamples seeds"]:
    values = np.asarray(task, float)
    drawn: np.ndarray = values[rng.integers(0, len(values), (resamples, len(values)))]
    return drawn


def percentiles(values: Float[np.ndarray, " resamples"], level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def violation_rate(costs: Float[np.ndarray, " n"], limit: float) -> float:
    """The share of costs over the limit."""
    return float(np.mean(np.asarray(costs) > limit))


# Normalised scores


def between_behaviours(value: float, safe: float, unsafe: float) -> float:
    """A return on the scale where the safe behaviour has 0 and the unsafe one 1."""
    return (value - safe) / (unsafe - safe)


def cost_over_limit(cost: float, limit: float) -> float:
    """A cost on the scale where the limit is 1."""
    return cost / limit


def dsrl_return(value: float, least: float, most: float) -> float:
    """The convention of DSRL (Liu et al., 2023): 0 for the lowest and 1 for the highest return of an episode in the
    log."""
    return (value - least) / (most - least)


def dsrl_cost(cost: float, limit: float) -> float:
    """DSRL's normalised cost: an episode's undiscounted cost over its limit, each raised by 1 where the limit is 0."""
    raised = 1.0 if limit == 0 else 0.0
    return (cost + raised) / (limit + raised)
