"""When Algorithm 1 settles on tables, and how far from the limit a slow policy hovers if it does not.

docs/theory.md proves each statement; tests/tabular/test_settling.py checks it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ringfence.tabular.cmdp import Cmdp, Mask, Table, occupancy
from ringfence.tabular.cpq import Iterate
from ringfence.tabular.planning import best_values


def rounds_without_return(cmdp: Cmdp, allowed: Mask) -> int | None:
    """After how many rounds greedy CPQ repeats its policy if no allowed pair leads back to a state; None if one does.

    The number of steps on the longest way to the end: a state's critics are final one round after those of its
    successors. Holds for either tie rule.
    """
    follows = ((cmdp.transition > 0) & allowed[:, :, None]).any(1) & ~cmdp.terminal[:, None]
    depth = np.zeros(cmdp.n_states, int)
    for _ in range(cmdp.n_states + 1):
        deeper = np.where(follows.any(1), 1 + np.where(follows, depth[None, :], 0).max(1), 0)
        if (deeper == depth).all():
            return int(depth.max())
        depth = deeper
    return None


def verdict_is_fixed(cmdp: Cmdp, support: Mask) -> bool:
    """Whether each supported pair is safe under all policies on the support, or under none, with one of the first kind in
    every state. CPQ with recovery, started on the support, is then policy iteration on the safe pairs, and settles.
    """
    never_more = best_values(cmdp, cmdp.cost, support)[0]
    never_less = -best_values(cmdp, -cmdp.cost, support)[0]
    most, least = (cmdp.cost + cmdp.discount * cmdp.transition @ values for values in (never_more, never_less))
    always_safe, never_safe = most <= cmdp.limit, least > cmdp.limit
    return bool((always_safe | never_safe)[support].all() and (always_safe & support).any(1).all())


def is_trap(q_cost: Table, limit: float) -> bool:
    """Whether no pair is safe under a policy: with ties that stay, CPQ never leaves such a policy again."""
    return bool((q_cost > limit).all())


@dataclass(frozen=True)
class Hover:
    """Averages over rounds k and over the visits of pi_{k+1}: of Vc-hat, of max(l, min_b Qc-hat), and what may part them."""

    cost: float
    allowance: float
    remainder: float


def hover(cmdp: Cmdp, rounds: Sequence[Iterate], step: float) -> Hover:
    """How far a slow policy is from the limit, averaged over its rounds: cost <= allowance + remainder.

    Vc_{k+1} - Vc_k = step (I - discount P_{k+1})^-1 [Qc_k(s, improved) - Vc_k], and with recovery the improved policy
    pays at most max(l, min_b Qc_k). Summed over K rounds the left side telescopes, so the remainder is
    (1 - discount) (Vc_0 - Vc_K) / (step K) from the start. Qc must be finite: every pair of the log counts.
    """
    cost = allowance = 0.0
    for now, following in pairwise(rounds):
        visits = occupancy(cmdp, following.policy)
        cost += float(visits @ (now.policy * now.q_cost).sum(1))
        allowance += float(visits @ np.maximum(cmdp.limit, now.q_cost.min(1)))
    count = len(rounds) - 1
    first, last = (float(cmdp.start @ (r.policy * r.q_cost).sum(1)) for r in (rounds[0], rounds[-1]))
    remainder = (1 - cmdp.discount) * (first - last) / (step * count)
    return Hover(cost / count, allowance / count, remainder)
