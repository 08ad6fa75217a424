"""A second opinion by importance sampling, from fitted densities of the log's behaviours."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringfence.data.dataset import Dataset
from ringfence.evaluation.ope import importance
from ringfence.evaluation.ope.clone import Clone, sources_of
from ringfence.evaluation.ope.features import Rows
from ringfence.evaluation.ope.fqe import FittedQ

LEAST_EFFECTIVE = 10.0  # episodes, at the last step


@dataclass(frozen=True)
class SecondOpinion:
    """Weighted per-decision importance sampling. The policy, which is deterministic, is given the behaviours' own noise:
    a deterministic policy has no density."""

    returned: float
    cost: float
    effective_episodes: float  # at the last step
    usable: bool

    def __str__(self) -> str:
        if not self.usable:
            return f"importance sampling is of no use here: {self.effective_episodes:.1f} effective episodes"
        return f"importance sampling: return {self.returned:.4g}, cost {self.cost:.4g}"


def second_opinion(
    log: Dataset, clones: Sequence[Clone], next_actions: Rows, start_actions: Rows, fitted: FittedQ
) -> SecondOpinion:
    """Weighted importance sampling with the clones' densities, each episode against the source that wrote it."""
    actions = _actions_in_rows(log, next_actions, start_actions)
    ratios = np.zeros(len(log))
    found = {clone.name: clone for clone in clones}
    for name, rows in sources_of(log):
        clone = found.get(name)
        if clone is None:
            continue
        toward = (log.actions[rows] - actions[rows]) / clone.spread
        own = clone.log_density(log.observations[rows], log.actions[rows])
        ratios[rows] = -0.5 * (toward.astype(np.float64) ** 2).sum(1) - own
    weights = importance.Weights(log, np.clip(ratios, -50.0, 50.0), fitted.horizon)
    effective = float(weights.effective_episodes[-1])
    return SecondOpinion(
        returned=importance.weighted(weights, log.rewards, fitted.discount),
        cost=importance.weighted(weights, log.costs, fitted.discount),
        effective_episodes=effective,
        usable=effective >= LEAST_EFFECTIVE,
    )


def _actions_in_rows(log: Dataset, next_actions: Rows, start_actions: Rows) -> Rows:
    """The policy's action in each row's own state: that of the row before, or the first of the episode."""
    actions = np.roll(next_actions, 1, axis=0)
    actions[log.episode_starts] = start_actions
    return actions
