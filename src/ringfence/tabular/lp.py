"""The best constrained policy, exactly, through the linear program over occupancies (Altman, 1999).

    maximise    sum d(s,a) r(s,a)
    subject to  sum_a d(s',a) - discount sum_{s,a} P(s'|s,a) d(s,a) = start(s')     for every s'
                sum d(s,a) c(s,a) <= limit
                d >= 0, and d(s,a) = 0 outside the allowed pairs

d is unnormalised (it sums to 1 / (1 - discount)), so objective and constraint are R(pi) and C(pi) themselves. The
best policy is d(s,a) / sum_a d(s,a); one constraint makes it random in at most one state that it visits. Where d is 0
the program leaves the policy open and its duals are not unique, so there the policy is the best one for the signal
reward - price * cost, found by policy iteration.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog

from ringfence.tabular.cmdp import Cmdp, Mask, Table, deterministic_policy, expected_return, occupancy, state_values
from ringfence.tabular.planning import best_values


@dataclass(frozen=True, eq=False)
class LpSolution:
    """The optimum, the price of the limit and what the least costly allowed policy would pay."""

    policy: Table
    occupancy: Table  # (states, actions), unnormalised
    expected_return: float
    expected_cost: float
    price: float  # how much return one more unit of limit would buy: the dual of the cost constraint
    values: Table  # (states,), the largest V of reward - price * cost on the allowed pairs
    least_cost: float


def flow_constraints(cmdp: Cmdp, allowed: Mask) -> Table:
    """One row per state: what leaves it minus what enters it, for the allowed pairs in order."""
    leaves = np.repeat(np.eye(cmdp.n_states), cmdp.n_actions, axis=0)
    enters = cmdp.transition.reshape(-1, cmdp.n_states)
    return (leaves - cmdp.discount * enters).T[:, allowed.ravel()]


def optimal_policy(cmdp: Cmdp, allowed: Mask | None = None) -> LpSolution | None:
    """The constrained optimum over policies that only use allowed pairs; None where no such policy meets the limit.

    A state with no allowed pair counts as one that must not be reached.
    """
    mask = np.ones(cmdp.reward.shape, bool) if allowed is None else allowed
    least = _solve(cmdp, mask, objective=cmdp.cost, limited=False)
    # An empty relative interior is still feasible: allow for rounding in the least cost.
    if least is None or least.fun > cmdp.limit + 1e-9:
        return None
    result = _solve(cmdp.with_limit(max(cmdp.limit, least.fun)), mask, objective=-cmdp.reward, limited=True)
    if result is None:
        return None
    visits = np.zeros(cmdp.reward.shape)
    visits[mask] = np.maximum(result.x, 0.0)
    # SciPy's marginals are derivatives of the minimised objective, minus the return.
    price = max(-float(result.ineqlin.marginals[0]), 0.0)
    values, elsewhere = best_values(cmdp, cmdp.reward - price * cmdp.cost, mask)
    return LpSolution(
        policy=_policy_of(visits, elsewhere),
        occupancy=visits,
        expected_return=-float(result.fun),
        expected_cost=float((visits * cmdp.cost).sum()),
        price=price,
        values=values,
        least_cost=float(least.fun),
    )


def least_cost(cmdp: Cmdp, allowed: Mask | None = None) -> float:
    """The smallest C(pi) from the start that any policy using only allowed pairs can reach; infinity where there is none.

    From each state on its own: `planning.least_costs`.
    """
    mask = np.ones(cmdp.reward.shape, bool) if allowed is None else allowed
    result = _solve(cmdp, mask, objective=cmdp.cost, limited=False)
    return float("inf") if result is None else float(result.fun)


def frontier(cmdp: Cmdp, limits: Table, allowed: Mask | None = None) -> Table:
    """The best return for each limit, NaN where the limit cannot be met."""
    solutions = [optimal_policy(cmdp.with_limit(float(limit)), allowed) for limit in limits]
    return np.array([np.nan if solution is None else solution.expected_return for solution in solutions])


def best_deterministic(cmdp: Cmdp, allowed: Mask, from_each_state: bool) -> Table | None:
    """The best policy that tosses no coins, by trying all of them; None where none meets the limit. A state with no allowed
    pair counts as one that must not be reached.

    With `from_each_state` the limit must hold from every state that the policy visits, which is what CPQ's indicator
    asks for; otherwise from the start distribution, which is what the linear program asks for.
    """
    best, best_return, without = None, -np.inf, ~allowed.any(1)
    for actions in itertools.product(*(np.flatnonzero(row).tolist() or [0] for row in allowed)):
        policy = deterministic_policy(actions, cmdp.n_actions)
        costs, visited = state_values(cmdp, policy, cmdp.cost), occupancy(cmdp, policy) > 1e-12
        worst = costs[visited].max() if from_each_state else cmdp.start @ costs
        earned = expected_return(cmdp, policy)
        if worst <= cmdp.limit + 1e-9 and earned > best_return and not (visited & without).any():
            best, best_return = policy, earned
    return best


def _solve(cmdp: Cmdp, mask: Mask, objective: Table, limited: bool) -> Any:
    """SciPy's result, or None where the constraints exclude each other."""
    result = linprog(
        objective[mask],
        A_ub=cmdp.cost[mask][None] if limited else None,
        b_ub=[cmdp.limit] if limited else None,
        A_eq=flow_constraints(cmdp, mask),
        b_eq=cmdp.start,
        bounds=(0, None),
        method="highs",
    )
    return result if result.status == 0 else None


def _policy_of(visits: Table, elsewhere: Table) -> Table:
    """Normalised visits; the other policy where a state is never visited."""
    total = visits.sum(1, keepdims=True)
    visited = total > 1e-10
    return np.where(visited, visits / np.where(visited, total, 1.0), elsewhere)
