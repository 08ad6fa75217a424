"""The claims of the paper's analysis, each a function that computes it on a given CMDP.

docs/theory.md says what each one shows, proves the corrected bounds and points to the tests.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ringfence.tabular.cmdp import Cmdp, Mask, Table, action_values, occupancy, pair_transition, state_values
from ringfence.tabular.cpq import cost_backup, cost_fixed_point, penalized_backup, push_ratio

# Theorem 1


@dataclass(frozen=True, eq=False)
class Case:
    """What Theorem 1 talks about: pi is evaluated, nu is pushed, pi_beta wrote the log."""

    cmdp: Cmdp
    policy: Table
    behaviour: Table
    nu: Table

    @property
    def ratio(self) -> Table:
        return push_ratio(self.nu, self.behaviour)

    @property
    def true_cost(self) -> Table:
        return action_values(self.cmdp, self.policy, self.cmdp.cost)

    @property
    def visits(self) -> Table:
        """(I - discount P^pi)^-1 = I + discount P^pi + ...: entries non-negative, at least 1 on the diagonal."""
        matrix = pair_transition(self.cmdp, self.policy)
        return np.asarray(np.linalg.inv(np.eye(len(matrix)) - self.cmdp.discount * matrix), np.float64)

    @property
    def push_per_alpha(self) -> Table:
        """1/2 (I - discount P^pi)^-1 [nu / pi_beta]: what Theorem 1 adds to Qc per unit of alpha."""
        return (self.visits @ self.ratio.ravel()).reshape(self.ratio.shape) / 2


def ood_action_set(case: Case, epsilon: float) -> Mask:
    """Definition 1, as a set of pairs: nu(a|s) > 0 and pi_beta(a|s) / nu(a|s) <= epsilon.

    Printed, it is one set of actions that must qualify in every state at once, which is empty in most logs.
    """
    pairs: Mask = (case.nu > 0) & (case.behaviour <= epsilon * case.nu)
    return pairs


def fixed_point_error(case: Case, alpha: float) -> float:
    """Theorem 1, first claim: the largest distance between iterating Equation (6) and Qc + alpha push_per_alpha."""
    q = np.zeros(case.nu.shape)
    # After k sweeps the distance to the fixed point has shrunk by discount^k: here to 1e-16 of its size.
    sweeps = int(np.ceil(np.log(1e-16) / np.log(case.cmdp.discount))) if case.cmdp.discount else 1
    for _ in range(sweeps):
        q = cost_backup(case.cmdp, case.policy, q, case.ratio, alpha)
    claimed = case.true_cost + alpha * case.push_per_alpha
    return float(np.abs(q - claimed).max() / max(np.abs(claimed).max(), 1.0))


def least_pushed_value(case: Case, pairs: Mask, alpha: float) -> float:
    """min Qc-hat over the pairs: Theorem 1 wants it at l or above."""
    return float(cost_fixed_point(case.cmdp, case.policy, case.ratio, alpha)[pairs].min())


def smallest_alpha(case: Case, pairs: Mask) -> float:
    """The exact answer: the least alpha with Qc-hat >= l on all the pairs."""
    missing = np.maximum(case.cmdp.limit - case.true_cost[pairs], 0.0)
    return float((missing / case.push_per_alpha[pairs]).max())


def sufficient_alpha(case: Case, pairs: Mask) -> float:
    """Our bound: 2 epsilon max over the pairs of (l - Qc)_+, with epsilon = max pi_beta / nu over the pairs.

    Because (I - discount P^pi)^-1 >= I entry by entry, the push is at least alpha / 2 times nu / pi_beta, itself at
    least 1 / epsilon. As Qc >= 0, alpha = 2 epsilon l suffices for every policy.
    """
    epsilon = (case.behaviour[pairs] / case.nu[pairs]).max()
    return float(2 * epsilon * np.maximum(case.cmdp.limit - case.true_cost[pairs], 0.0).max())


def pairwise_alpha(case: Case, pairs: Mask) -> float:
    """A sharper bound: 2 max over the pairs of (l - Qc)_+ pi_beta / nu, each pair with its own ratio.

    Exact where pi does not return to pushed pairs; `sufficient_alpha` is exact there only if the pair with the largest
    ratio is also the one that lacks most.
    """
    missing = np.maximum(case.cmdp.limit - case.true_cost, 0.0)
    return float(2 * (missing[pairs] * case.behaviour[pairs] / case.nu[pairs]).max())


Reading = Literal["diagonal", "operator", "row sum"]
READINGS: tuple[Reading, ...] = get_args(Reading)


def printed_alpha(case: Case, epsilon: float, reading: Reading) -> float:
    """Theorem 1's max{2 epsilon max_{s,a} (l - Qc)(I - discount P^pi)(s,a), 0}, in the ways it can be read.

    "(I - discount P^pi)(s,a)" is a matrix with one pair for two indices. diagonal: its entry at ((s,a), (s,a)).
    operator: the matrix applied to the function l - Qc, which is (1 - discount) l - c. row sum: the matrix applied
    to 1, which is 1 - discount.
    """
    missing = case.cmdp.limit - case.true_cost
    matrix = pair_transition(case.cmdp, case.policy)
    factor = {
        "diagonal": missing * (1 - case.cmdp.discount * np.diag(matrix)).reshape(missing.shape),
        "operator": missing - case.cmdp.discount * (matrix @ missing.ravel()).reshape(missing.shape),
        "row sum": missing * (1 - case.cmdp.discount),
    }[reading]
    return max(2 * epsilon * float(factor.max()), 0.0)


def leak(case: Case, alpha: float) -> float:
    """The largest change of Qc at a pair that nu does not push. Zero if pi plays no pushed pair."""
    untouched = case.nu == 0
    return float((alpha * case.push_per_alpha)[untouched].max()) if untouched.any() else 0.0


def stationary_alpha(case: Case, states: Table, target: float) -> float:
    """Equation (5) at rest: the alpha at which E_{s ~ B, a ~ nu}[Qc-hat] = l_c, or 0 if it starts above.

    The average is over the states that have something to push.
    """
    weight = states[:, None] * case.nu
    missing = target * weight.sum() - (weight * case.true_cost).sum()
    return max(float(missing / (weight * case.push_per_alpha).sum()), 0.0)


# Theorem 2


@dataclass(frozen=True)
class Theorem2:
    """Both sides of Theorem 2's second claim. Infinite bounds say nothing: a condition is missing.

    gap: max over the log's states of |V* - V-hat|. as_stated and as_sketched: the printed right-hand side with
    delta from the two errors of the statement, or with the proof sketch's |Q* - T^pi Q*| added. corrected: ours, with
    epsilon and g; concentrated: ours, with the exact density ratios in their place.

    The end of an episode is left out of epsilon and g, since no log holds actions there, as long as Qr-hat has no error
    there. If it has one, the log cannot see it and our bounds are infinite.
    """

    gap: float
    as_stated: float
    as_sketched: float
    corrected: float
    concentrated: float
    epsilon: float
    g: float


def theorem2(
    cmdp: Cmdp,
    behaviour: Table,
    states: Table,
    policy: Table,
    q_reward: Table,
    safe: Mask,
    best: Table,
    floor: float = 0.0,
) -> Theorem2:
    """Theorem 2 for CPQ's policy and Qr-hat against the optimal safe policy `best`.

    With N = (I - discount P_pi)^-1 the corrected bound starts from
        |V* - V-hat| <= N (|V* - E_pi Q*| + E_pi[1(unsafe) |Q* - floor|] + E_pi |Qr-hat - T_P Qr-hat|)
    and changes the measure from pi's visits to the log's. See docs/theory.md.
    """
    v_best = state_values(cmdp, best, cmdp.reward)
    q_best = action_values(cmdp, best, cmdp.reward)
    pairs = states[:, None] * behaviour
    suboptimality = np.abs(v_best - (policy * q_best).sum(1))
    penalty = (policy * ~safe * np.abs(q_best - floor)).sum(1)
    residual = q_reward - penalized_backup(cmdp, policy, q_reward, safe, floor)
    sketch_residual = q_best - (cmdp.reward + cmdp.discount * cmdp.transition @ (policy * q_best).sum(1))

    logged = np.flatnonzero(states > 0)
    from_each = np.stack([occupancy(cmdp, policy, np.eye(cmdp.n_states)[s]) for s in logged])
    errors = suboptimality + penalty + (policy * np.abs(residual)).sum(1)
    visited = (from_each > 1e-12).any(0) & ~(cmdp.terminal & (errors <= 1e-12))
    g = float(states[visited].min())
    played = visited[:, None] & (policy > 1e-12)
    epsilon = float((behaviour[played] / policy[played]).min())

    def norm(error: Table, weight: Table) -> float:
        return float(np.sqrt((weight * error**2).sum()))

    def printed(delta_root: float) -> float:
        discount = cmdp.discount
        growth = np.sqrt((1 - discount) / discount) + (np.sqrt(epsilon / g) if g > 0 else np.inf)
        return float(4 * discount / (1 - discount) ** 3 * growth * delta_root) if delta_root else 0.0

    with np.errstate(divide="ignore", invalid="ignore"):
        state_ratio = np.where(from_each > 1e-12, from_each / states, 0.0)[:, visited].max()
        pair_visits = from_each[:, :, None] * policy
        pair_ratio = np.where(pair_visits > 1e-12, pair_visits / pairs, 0.0)[:, visited].max()
    state_error, pair_error = norm(suboptimality, states) + norm(penalty, states), norm(residual, pairs)
    corrected = concentrated = np.inf
    if g > 0 and epsilon > 0:
        horizon = 1 / (1 - cmdp.discount)
        corrected = horizon * (state_error + pair_error / np.sqrt(epsilon)) / np.sqrt(g)
        concentrated = horizon * (np.sqrt(state_ratio) * state_error + np.sqrt(pair_ratio) * pair_error)
    return Theorem2(
        gap=float(np.abs(v_best - (policy * q_reward).sum(1))[logged].max()),
        as_stated=printed(pair_error),
        as_sketched=printed(max(pair_error, norm(sketch_residual, pairs))),
        corrected=float(corrected),
        concentrated=float(concentrated),
        epsilon=epsilon,
        g=g,
    )
