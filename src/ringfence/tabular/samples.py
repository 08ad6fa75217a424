"""From n logged rows: upper bounds on the true cost of a policy that hold with probability 1 - delta.

A pair's next states are independent draws whatever the order in which the log visits pairs, so for a given number of
rows the usual intervals hold; the union over pairs and over possible numbers of rows makes them hold for the numbers
that the log happens to have. Costs are a function of the pair, known once it is logged, and at most `worst_cost`. A
pair that is never logged may cost that much and lead anywhere. docs/theory.md has the proofs.
"""

import numpy as np
from scipy.special import betaincinv

from ringfence.tabular.cmdp import Table, state_values
from ringfence.tabular.logs import CountedModel


def transition_intervals(counts: Table, delta: float) -> tuple[Table, Table]:
    """Bounds on every P(s'|s,a) that all hold with probability 1 - delta (Clopper and Pearson's, and a union)."""
    rows = counts.sum(2, keepdims=True)
    share = delta / (2 * counts.size * max(rows.sum(), 1.0))
    low = np.where(counts > 0, betaincinv(np.maximum(counts, 1), rows - counts + 1, share), 0.0)
    high = np.where(counts < rows, betaincinv(counts + 1, np.maximum(rows - counts, 1), 1 - share), 1.0)
    return low, high


def worst_expectation(low: Table, high: Table, values: Table) -> tuple[Table, Table]:
    """The largest sum p v over probabilities between low and high, and the p that reaches it: fill the dearest first."""
    order = np.argsort(-values)
    room = (high - low)[..., order]
    before = np.cumsum(room, -1) - room
    missing = 1 - low.sum(-1, keepdims=True)
    probabilities = np.empty_like(low)
    probabilities[..., order] = low[..., order] + np.clip(missing - before, 0.0, room)
    return probabilities @ values, probabilities


def upper_costs(model: CountedModel, policy: Table, delta: float, worst_cost: float) -> Table:
    """V-bar >= the true Vc in every state, with probability 1 - delta for all policies at once.

    So it holds for a policy learned from the same log. V-bar is the cost in the worst model inside the intervals.
    """
    cmdp, unknown = model.cmdp, ~model.known
    low, high = transition_intervals(model.counts, delta)
    low[model.over], high[model.over] = cmdp.transition[model.over], cmdp.transition[model.over]
    cost = np.where(unknown, worst_cost, cmdp.cost)
    limit = worst_cost / (1 - cmdp.discount)
    values = np.full(cmdp.n_states, 0.0)
    probabilities = cmdp.transition
    for _ in range(1000):  # policy iteration of the worst case: each round raises the values
        matrix = np.eye(cmdp.n_states) - cmdp.discount * np.einsum("sa,sat->st", policy, probabilities)
        updated = np.linalg.solve(matrix, (policy * cost).sum(1))
        if np.abs(updated - values).max() <= 1e-10 * limit:
            break
        values = updated
        _, probabilities = worst_expectation(low, high, values)
    return np.minimum(updated, limit)


def judged_costs(model: CountedModel, policy: Table, radius: Table, worst_cost: float) -> Table:
    """The cost that fitted evaluation reports, plus discount (I - discount P_pi)^-1 E_pi[radius] in the counted model.

    `radius` bounds |(P - counted P) Vc| at each pair: `fixed_policy_radius` or `any_policy_radius`.
    """
    cmdp = model.cmdp
    cost = np.where(model.known, cmdp.cost, worst_cost)
    doubt = np.where(model.over[:, None], 0.0, radius)
    values = state_values(cmdp, policy, cost + cmdp.discount * doubt)
    return np.minimum(values, worst_cost / (1 - cmdp.discount))


def fixed_policy_radius(model: CountedModel, delta: float, worst_cost: float) -> Table:
    """Hoeffding's, for a policy that was chosen before this log was seen: a judge with a log of its own."""
    return _radius(model, np.log(model.rows.size * max(model.rows.sum(), 1.0) / delta), worst_cost)


def any_policy_radius(model: CountedModel, delta: float, worst_cost: float) -> Table:
    """Weissman and others', for all policies at once, so also for one learned from this log: log 2^S more."""
    states = model.cmdp.n_states
    return _radius(model, states * np.log(2) + np.log(model.rows.size * max(model.rows.sum(), 1.0) / delta), worst_cost)


def error_for(
    n_min: float, n_rows: float, shape: tuple[int, int], discount: float, delta: float, worst_cost: float
) -> float:
    """Before any log is seen: Vc <= (counted Vc) + error(n), if every pair that the policy plays has n_min rows."""
    states, actions = shape
    logarithm = states * np.log(2) + np.log(states * actions * n_rows / delta)
    return float(discount * worst_cost / (1 - discount) ** 2 * np.sqrt(logarithm / (2 * n_min)))


def _radius(model: CountedModel, logarithm: float, worst_cost: float) -> Table:
    horizon_cost = worst_cost / (1 - model.cmdp.discount)
    rows = model.rows
    return horizon_cost * np.where(rows > 0, np.minimum(np.sqrt(logarithm / (2 * np.maximum(rows, 1))), 1.0), 1.0)
