"""What can be promised of a policy from its own critics: a ceiling on its cost and a bound on what it gives away.

docs/theory.md proves each statement; tests/tabular/test_guarantees.py checks it.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from ringfence.tabular.cmdp import Cmdp, Mask, Table, action_values, state_transition, state_values
from ringfence.tabular.cpq import penalized_backup
from ringfence.tabular.default import Response
from ringfence.tabular.planning import best_values

# Cost


def cost_ceiling(cmdp: Cmdp, support: Mask, slack: Table | float = 0.0) -> Table:
    """B, the fixed point of B(s) = max(l, min over the support of c + discount P B) + slack(s).

    Every policy with Vc(s) <= max(l, min_b Qc(s,b)) + slack(s) in each state, Qc its own, has Vc <= B: the right-hand
    side is monotone in Vc and contracts by the discount.
    """
    ceiling = np.zeros(cmdp.n_states)
    while True:
        q = np.where(support, cmdp.cost + cmdp.discount * cmdp.transition @ ceiling, np.inf)
        # A state without a supported pair is bounded by the worst that can happen.
        lowest = np.where(support.any(1), q.min(1), cmdp.cost.max() / (1 - cmdp.discount))
        updated = np.maximum(cmdp.limit, lowest) + slack
        if np.abs(updated - ceiling).max() <= 1e-12 * (1 + np.abs(updated).max()):
            return np.asarray(updated, np.float64)
        ceiling = updated


def hinge_slack(response: Response, support: Mask) -> Table:
    """How far above max(l, min_b Qc) a state's Vc can lie under a hinge of finite weight.

    (E_pi[Qr + anchor] - (Qr + anchor)(b) + regret)_+ / penalty, with b the supported action of lowest Qc. At a fixed
    point the regret is 0.
    """
    cheapest = np.where(support, response.q_cost, np.inf).argmin(1)[:, None]
    wanted = response.q_reward + response.anchor
    gained = (response.policy * wanted).sum(1) - np.take_along_axis(wanted, cheapest, 1)[:, 0]
    slack: Table = np.maximum(gained + response.regret, 0.0) / response.penalty
    return slack


def slow_pace_exists(cmdp: Cmdp, support: Mask) -> bool:
    """Whether every state has a supported action that costs at most (1 - discount) l: then the ceiling is l."""
    pace = (1 - cmdp.discount) * cmdp.limit
    return bool((np.where(support, cmdp.cost, np.inf).min(1) <= pace + 1e-12).all())


# Return


@dataclass(frozen=True)
class Suboptimality:
    """bound >= best return within the limit on the support - the policy's return; price is the multiplier it uses."""

    bound: float
    price: float


def own_suboptimality(
    cmdp: Cmdp,
    policy: Table,
    support: Mask,
    q_reward: Table | None = None,
    q_cost: Table | None = None,
    reward_error: float = 0.0,
    cost_error: float = 0.0,
) -> Suboptimality:
    """R* - R(pi) <= min over lambda >= 0 of lambda (l - C(pi)) + max (A_r - lambda A_c)_+ / (1 - discount).

    The maximum is over the support. A_r and A_c are pi's own advantages, so no optimum has to be known. If the critics
    err by at most the given errors at every pair, the bound still holds. It is minus infinity where no policy on the
    support meets the limit.
    """
    q_r = action_values(cmdp, policy, cmdp.reward) if q_reward is None else q_reward
    q_c = action_values(cmdp, policy, cmdp.cost) if q_cost is None else q_cost
    v_c = (policy * q_c).sum(1)
    gain = (q_r - (policy * q_r).sum(1)[:, None])[support]
    saving = (v_c[:, None] - q_c)[support]
    horizon = 1 / (1 - cmdp.discount)
    unused = cmdp.limit - float(cmdp.start @ v_c) + cost_error + 2 * cost_error * horizon
    # Variables: lambda and t = max (A_r - lambda A_c)_+.
    result = linprog(
        [unused, horizon],
        A_ub=np.column_stack([saving, -np.ones_like(saving)]),
        b_ub=-gain,
        bounds=(0, None),
        method="highs",
    )
    if result.status != 0 or result.fun is None or result.x is None:
        return Suboptimality(-np.inf, np.inf)
    return Suboptimality(float(result.fun) + 2 * reward_error * horizon, float(result.x[0]))


def value_gap(cmdp: Cmdp, policy: Table, q_reward: Table, safe: Mask, floor: float = 0.0) -> Table:
    """A bound on |Vr - V-hat| in each state, V-hat = E_pi Qr-hat: pi's visits to approximation errors and unsafe pairs.

    With `own_suboptimality` it bounds |R* - V-hat| by quantities of the policy alone: Theorem 2 as a guarantee.
    """
    residual = np.abs(q_reward - penalized_backup(cmdp, policy, q_reward, safe, floor))
    lost = ~safe * np.abs(action_values(cmdp, policy, cmdp.reward) - floor)
    following = state_transition(cmdp, policy)
    paid = (policy * residual).sum(1) + cmdp.discount * following @ (policy * lost).sum(1)
    return np.linalg.solve(np.eye(cmdp.n_states) - cmdp.discount * following, paid)


def hinge_gap(cmdp: Cmdp, response: Response, comparator: Table) -> float:
    """R(comparator) - R(pi) <= comparator's visits to [penalty (E_mu - E_pi)(Qc - l)_+ + (E_pi - E_mu) anchor + regret].

    So pi gives away at most anchor / (1 - discount) to every policy that plays pairs which are safe against pi.
    """
    excess = response.penalty * np.maximum(response.q_cost - cmdp.limit, 0.0) - response.anchor
    paid = ((comparator - response.policy) * excess).sum(1) + response.regret
    return float(cmdp.start @ state_values(cmdp, comparator, np.repeat(paid[:, None], cmdp.n_actions, 1)))


def multiplier_gap(costing: Cmdp, response: Response) -> float:
    """R* - R(pi) <= multiplier (l - C(pi)) + max (anchor + regret) / (1 - discount), R* the optimum of the same CMDP.

    With a linear penalty the default is policy iteration for reward - multiplier * cost, so at a fixed point only the
    anchor and the unused part of the limit part it from the linear program.
    """
    cost = float(costing.start @ (response.policy * response.q_cost).sum(1))
    lost = float((response.anchor.max(1) + response.regret).max()) / (1 - costing.discount)
    return response.penalty * (costing.limit - cost) + lost


def best_among_safe(cmdp: Cmdp, q_cost: Table) -> Table:
    """The largest Vr over policies that play only pairs with Qc <= l: what converged CPQ earns if it plays such pairs."""
    return best_values(cmdp, cmdp.reward, q_cost <= cmdp.limit)[0]
