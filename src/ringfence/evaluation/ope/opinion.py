"""A second opinion by importance sampling, from fitted densities of the log's behaviours."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringfence.data.dataset import Dataset
from ringfence.evaluation.ope import importance
from ringfence.evaluation.ope.clone import Clone, sources_of
from ringfence.evaluation.ope.features import Rows
from ringfence.evaluation.ope.fqe import FittedQ, Values

LEAST_EFFECTIVE = 10.0  # episodes, at the last step
MOST_APART = 2.0  # the mean weight at the last step is 1 in expectation; a factor of so much either way is tolerated


@dataclass(frozen=True)
class SecondOpinion:
    """Weighted per-decision importance sampling, and where it is usable the doubly robust estimate: fitted Q evaluation,
    corrected by the weighted errors of its backups. The policy, which is deterministic, is given the behaviours' own noise:
    a deterministic policy has no density."""

    returned: float
    cost: float
    robust_return: float | None  # doubly robust; None if not usable
    robust_cost: float | None
    effective_episodes: float  # at the last step
    usable: bool
    why_not: str = ""  # what makes it unusable

    def __str__(self) -> str:
        if not self.usable:
            return f"importance sampling is of no use here: {self.why_not}"
        return (
            f"importance sampling, of the policy with the behaviours' noise: return {self.returned:.4g}, cost "
            f"{self.cost:.4g}; doubly robust: return "
            f"{self.robust_return:.4g}, cost {self.robust_cost:.4g} ({self.effective_episodes:.0f} effective episodes)"
        )


def second_opinion(
    fitted: FittedQ, clones: Sequence[Clone], next_actions: Rows, start_actions: Rows, values: Values, seed: int = 0
) -> SecondOpinion:
    """Weighted importance sampling with the clones' densities, each episode against the source that wrote it."""
    log = fitted.log
    actions = _actions_in_rows(log, next_actions, start_actions)
    ratios, spreads = np.zeros(len(log)), np.zeros_like(log.actions)
    found = {clone.name: clone for clone in clones}
    for name, rows in sources_of(log):
        clone = found.get(name)
        if clone is None:
            continue
        spreads[rows] = clone.spread
        toward = (log.actions[rows] - actions[rows]) / clone.spread
        own = clone.log_density(log.observations[rows], log.actions[rows])
        ratios[rows] = -0.5 * (toward.astype(np.float64) ** 2).sum(1) - own
    weights = importance.Weights(log, np.clip(ratios, -50.0, 50.0), fitted.horizon)
    unknown = [name for name, _ in sources_of(log) if name not in found]
    why_not = why_unusable(weights, unknown)
    usable = not why_not
    robust = (
        _doubly_robust(fitted, weights, values, next_actions, start_actions, spreads, seed) if usable else (None, None)
    )
    return SecondOpinion(
        returned=importance.weighted(weights, log.rewards, fitted.discount),
        cost=importance.weighted(weights, log.costs, fitted.discount),
        robust_return=robust[0],
        robust_cost=robust[1],
        effective_episodes=float(weights.effective_episodes[-1]),
        usable=usable,
        why_not=why_not,
    )


def why_unusable(weights: importance.Weights, unknown: Sequence[str]) -> str:
    """What makes these weights unusable, or nothing. `unknown` are sources whose densities were not fitted.

    Without overlap all ratios are at the bound where they are clipped, and then all weights are equal: there seem to be as
    many effective episodes as there are episodes. The mean weight shows that."""
    if unknown:
        return f"no reference episode of {', '.join(unknown)} is whole, so that what it does was not fitted"
    effective, log_mean = float(weights.effective_episodes[-1]), float(weights.log_means[-1])
    if abs(log_mean) > np.log(MOST_APART):
        return (
            f"the mean weight of an episode is {np.exp(log_mean):.2g} instead of 1 ({effective:.1f} effective "
            "episodes): the policy acts unlike the log"
        )
    return f"{effective:.1f} effective episodes" if effective < LEAST_EFFECTIVE else ""


def _doubly_robust(
    fitted: FittedQ,
    weights: importance.Weights,
    values: Values,
    next_actions: Rows,
    start_actions: Rows,
    spreads: Rows,
    seed: int,
) -> tuple[float, float]:
    """Of return and cost. V(s') = E Q(s', a') by one draw of a', which adds variance but no bias. What lies beyond the
    horizon counts nothing."""
    log, rng = fitted.log, np.random.default_rng(seed)

    def drawn(means: Rows, spread: Rows) -> Rows:
        noisy = means + spread * rng.standard_normal(means.shape).astype(np.float32)
        return np.asarray(np.clip(noisy, log.action_low, log.action_high))

    starts = log.episode_starts
    lengths = log.episode_ends - starts
    step = np.arange(len(log)) - np.repeat(starts, lengths)
    goes_on = ~log.terminations & (step < fitted.horizon - 1)
    pair = fitted.pairs @ values.critics
    following = fitted.critics_at(log.next_observations, drawn(next_actions, spreads), values) * goes_on[:, None]
    first = fitted.critics_at(log.observations[starts], drawn(start_actions, spreads[starts]), values)
    signals = (log.rewards, log.costs)
    found = [
        importance.doubly_robust(
            weights,
            signal,
            fitted.discount,
            start_values=first[:, column],
            pair_values=pair[:, column],
            next_values=following[:, column],
        )
        for column, signal in enumerate(signals)
    ]
    return found[0], found[1]


def _actions_in_rows(log: Dataset, next_actions: Rows, start_actions: Rows) -> Rows:
    """The policy's action in each row's own state: that of the row before, or the first of the episode."""
    actions = np.roll(next_actions, 1, axis=0)
    actions[log.episode_starts] = start_actions
    return actions
