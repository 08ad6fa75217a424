"""The ideas of ringfence's own default on tables: what it does instead of Equations (3) and (4).

    plain backup    Qr and Qc are the values of pi itself
    penalty         pi(.|s) maximises  E_pi[Qr - penalty (Qc - l)_+ + anchor b(.|s)]        (hinge)
                                   or  E_pi[Qr - penalty Qc + anchor b(.|s)]                (multiplier)
    anchor          b(a|s) is the share of a among the logged actions with Qc(s,a) <= l; minus a squared distance of 1
                    between different actions is b - 1
    termination     an episode that ended goes on costing at the limit's pace: the target there is c + discount l

Rare pairs, which the detector keeps the policy from, are the pairs outside `support`.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ringfence.tabular.cmdp import Cmdp, Mask, Table, action_values, log_states, state_values


@dataclass(frozen=True)
class DefaultSettings:
    """penalty_weight and anchor_weight are in the units of the neural default: penalty = weight * size / l and anchor =
    weight * size, with size the mean |Vr| over the log. Its penalty has the weight 3 too, its anchor 1.5.

    With kind "multiplier" penalty_weight is where the multiplier starts; each round adds `rate` * (mean Vc over the
    log's states, or from the start, - l) / l. The policy moves `step` / (1 + decay * round) towards the best response.
    """

    kind: Literal["hinge", "multiplier"] = "hinge"
    penalty_weight: float = 3.0
    anchor_weight: float = 1.0
    measured_at: Literal["log", "start"] = "log"
    rate: float = 0.1
    step: float = 0.2
    decay: float = 0.05
    iterations: int = 300


@dataclass(frozen=True, eq=False)
class Response:
    """A policy and what its own critics say each action is worth in the default's objective."""

    policy: Table
    q_reward: Table
    q_cost: Table  # with termination that goes on costing
    anchor: Table  # anchor * b(a|s)
    penalty: float
    objective: Table  # minus infinity outside the support

    @property
    def regret(self) -> Table:
        """How much each state's objective is below its maximum: 0 everywhere exactly at a fixed point."""
        inside = np.where(self.policy > 0, self.objective, 0.0)
        missing: Table = self.objective.max(1) - (self.policy * inside).sum(1)
        return missing


def going_on_costing(cmdp: Cmdp) -> Cmdp:
    """The same CMDP in which an episode that ended costs (1 - discount) l a step for ever, l in all."""
    pace = (1 - cmdp.discount) * cmdp.limit
    return replace(cmdp, cost=np.where(cmdp.terminal[:, None], pace, cmdp.cost))


def price_of_ending(cmdp: Cmdp, policy: Table) -> Table:
    """l E[discount^T] from each state, T the step at which the episode ends: what `going_on_costing` adds to Vc."""
    after = np.where(cmdp.terminal[:, None], 1 - cmdp.discount, 0.0) * np.ones_like(cmdp.cost)
    return cmdp.limit * state_values(cmdp, policy, after)


def safe_anchor(behaviour: Table, q_cost: Table, limit: float, support: Mask) -> Table:
    """b(a|s): pi_beta given that the logged action is safe; where none is, given that it has the lowest Qc."""
    logged = support & (behaviour > 0)
    lowest = np.where(logged, q_cost, np.inf).min(1, keepdims=True)
    chosen = behaviour * (logged & (q_cost <= np.maximum(limit, lowest)))
    total = chosen.sum(1, keepdims=True)
    return np.where(total > 0, chosen / np.where(total > 0, total, 1.0), 0.0)


def respond(
    costing: Cmdp, behaviour: Table, states: Table, support: Mask, policy: Table, settings: DefaultSettings
) -> Response:
    """Critics of the policy, by plain backup, and the default's objective for each action.

    `costing` is a CMDP that `going_on_costing` made; `states` the share of each state in the log.
    """
    q_reward, q_cost = (action_values(costing, policy, signal) for signal in (costing.reward, costing.cost))
    size = float(states @ np.abs((policy * q_reward).sum(1))) + 1e-6
    anchor = settings.anchor_weight * size * safe_anchor(behaviour, q_cost, costing.limit, support)
    penalty = settings.penalty_weight * size / max(costing.limit, 1e-3)
    paid = np.maximum(q_cost - costing.limit, 0.0) if settings.kind == "hinge" else q_cost
    objective = np.where(support, q_reward - penalty * paid + anchor, -np.inf)
    return Response(policy, q_reward, q_cost, anchor, penalty, objective)


def run_default(cmdp: Cmdp, behaviour: Table, support: Mask, settings: DefaultSettings | None = None) -> Response:
    """The default from the behaviour on its support, with a step that shrinks; the last policy and its critics."""
    now = settings or DefaultSettings()
    inside = np.where(support.any(1, keepdims=True), behaviour * support, 0.0)
    total = inside.sum(1, keepdims=True)
    policy = np.where(total > 0, inside / np.where(total > 0, total, 1.0), 1.0 / cmdp.n_actions)
    costing, states = going_on_costing(cmdp), log_states(cmdp, behaviour)
    for k in range(now.iterations):
        response = respond(costing, behaviour, states, support, policy, now)
        best = np.eye(cmdp.n_actions)[response.objective.argmax(1)]
        best = np.where(support.any(1, keepdims=True), best, policy)
        if now.kind == "multiplier":
            where = states if now.measured_at == "log" else cmdp.start
            excess = float(where @ (policy * response.q_cost).sum(1)) / cmdp.limit - 1
            now = replace(now, penalty_weight=max(now.penalty_weight + now.rate * excess, 0.0))
        share = now.step / (1 + now.decay * k)
        policy = (1 - share) * policy + share * best
    return respond(costing, behaviour, states, support, policy, now)
