"""The naive approach of Section 3.2 on tables, and why its two constraints conflict.

    maximise    E_{s ~ B, a ~ pi}[Qr]
    subject to  E_{s ~ B, a ~ pi}[Qc] <= l          (Constraint 1)
                E_{s ~ B} KL(pi || pi_beta) <= xi    (Constraint 2)

For fixed multipliers the best policy is pi_beta exp((Qr - lambda1 Qc) / lambda2), normalised in each state.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import rel_entr

from ringfence.tabular.cmdp import Cmdp, Table, action_values, expected_cost, occupancy


def divergence(policy: Table, behaviour: Table) -> Table:
    """KL(pi || pi_beta) in each state; infinite where pi plays what the log never holds."""
    kl: Table = rel_entr(policy, behaviour).sum(1)
    return kl


def tilted_policy(behaviour: Table, advantage: Table, temperature: float) -> Table:
    """argmax_pi E_pi[advantage] - temperature KL(pi || pi_beta): pi_beta exp(advantage / temperature), normalised."""
    with np.errstate(divide="ignore"):
        logits = np.log(behaviour) + advantage / temperature
    weights: Table = np.exp(logits - logits.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return weights


@dataclass(frozen=True, eq=False)
class NaiveOutcome:
    """The last policy, and per round: lambda1, lambda2, E[Qc] - l and E[KL] - xi (positive means violated)."""

    policy: Table
    multipliers: Table  # (rounds, 2)
    violations: Table  # (rounds, 2)


def naive_lagrangian(
    cmdp: Cmdp, behaviour: Table, states: Table, xi: float, rounds: int = 1000, rate: float = 0.05
) -> NaiveOutcome:
    """Dual gradient descent on the Lagrangian of Section 3.2, with exact critics.

    Each round evaluates pi, moves it half-way to the best policy for the present multipliers (a full move makes
    policy and critics chase each other), then moves each multiplier along its constraint's violation.
    """
    policy, price, temperature = behaviour, 0.0, 1.0
    multipliers, violations = np.zeros((rounds, 2)), np.zeros((rounds, 2))
    for k in range(rounds):
        q_reward = action_values(cmdp, policy, cmdp.reward)
        q_cost = action_values(cmdp, policy, cmdp.cost)
        cost_excess = float(states @ (policy * q_cost).sum(1)) - cmdp.limit
        kl_excess = float(states @ divergence(policy, behaviour)) - xi
        multipliers[k], violations[k] = (price, temperature), (cost_excess, kl_excess)
        price = max(price + rate * cost_excess, 0.0)
        temperature = max(temperature + rate * kl_excess, 1e-2)
        policy = 0.5 * policy + 0.5 * tilted_policy(behaviour, q_reward - price * q_cost, temperature)
    return NaiveOutcome(policy, multipliers, violations)


def least_cost_within(cmdp: Cmdp, behaviour: Table, xi: float) -> tuple[float, Table]:
    """The least C(pi) over policies whose KL to pi_beta, averaged over their own visits, is at most xi.

    Both are convex in the occupancy, so minimising cost + temperature * KL for the right temperature is exact;
    KL falls as the temperature rises, and bisection finds the temperature at which it is xi. Where the result
    is above the limit, Constraints 1 and 2 exclude each other, whatever the optimiser.
    """

    def average_kl(policy: Table) -> float:
        return float(occupancy(cmdp, policy) @ divergence(policy, behaviour))

    def excess(log_temperature: float) -> float:
        return average_kl(_soft_least_cost_policy(cmdp, behaviour, float(np.exp(log_temperature)))) - xi

    coldest, hottest = np.log(1e-2), np.log(1e4)
    if excess(coldest) <= 0:
        policy = _soft_least_cost_policy(cmdp, behaviour, 1e-2)
    elif excess(hottest) >= 0:  # as good as no room at all
        policy = behaviour
    else:
        policy = _soft_least_cost_policy(cmdp, behaviour, float(np.exp(brentq(excess, coldest, hottest, xtol=1e-6))))
    return expected_cost(cmdp, policy), policy


def _soft_least_cost_policy(cmdp: Cmdp, behaviour: Table, temperature: float) -> Table:
    """The policy minimising discounted cost + temperature * KL: V(s) = -t log sum_a pi_beta exp(-Q / t), iterated."""
    values = np.zeros(cmdp.n_states)
    for _ in range(10_000):
        q = np.where(behaviour > 0, cmdp.cost + cmdp.discount * cmdp.transition @ values, np.inf)
        lowest = q.min(1)  # taken out of the exponential, which would underflow at low temperatures
        weights = (behaviour * np.exp((lowest[:, None] - q) / temperature)).sum(1)
        updated = lowest - temperature * np.log(weights)
        if np.abs(updated - values).max() < 1e-11:
            break
        values = updated
    return tilted_policy(behaviour, -q, temperature)
