"""The penalized operator in three norms: the maximum norm, the log's norm, and the log's norm after a projection.

docs/theory.md proves each statement; tests/tabular/test_operator.py checks it.
"""

import numpy as np

from ringfence.tabular.cmdp import Cmdp, Mask, Table, log_states, pair_transition


def contraction_modulus(cmdp: Cmdp, policy: Table, safe: Mask) -> float:
    """The Lipschitz constant of the penalized operator in the maximum norm: discount max_x P^pi(x, safe pairs).

    Never more than the discount, and exact: T_P is affine with a non-negative matrix, whose norm is its row sum.
    """
    return float(cmdp.discount * (cmdp.transition @ (policy * safe).sum(1)).max())


def weighted_expansion(cmdp: Cmdp, policy: Table, safe: Mask, weight: Table) -> float:
    """The Lipschitz constant of the penalized operator in the norm sqrt(sum weight(s,a) Q^2); may exceed 1."""
    root = np.sqrt(weight.ravel())
    matrix = cmdp.discount * pair_transition(cmdp, policy) * safe.ravel()
    return float(np.linalg.norm(root[:, None] * matrix / root, ord=2))


def shift_bound(cmdp: Cmdp, policy: Table, safe: Mask, weight: Table) -> float:
    """discount sqrt(max over the safe pairs of (weight P^pi)(s,a) / weight(s,a)), never less than `weighted_expansion`.

    By Jensen, ||P^pi f||^2 <= sum (weight P^pi) f^2. If the weight is the log's own, mu^beta pi_beta, one step of the
    dynamics brings at most mu^beta / discount into a state, so the bound is at most sqrt(discount max pi / pi_beta):
    below 1 if pi / pi_beta < 1 / discount wherever pi plays.
    """
    arrives = (weight.ravel() @ pair_transition(cmdp, policy)).reshape(weight.shape)
    counted = safe & (arrives > 0)
    with np.errstate(divide="ignore"):
        return float(cmdp.discount * np.sqrt((arrives[counted] / weight[counted]).max(initial=0.0)))


def projected_matrix(cmdp: Cmdp, policy: Table, safe: Mask, weight: Table, features: Table) -> Table:
    """What one round of fitted evaluation does to the coefficients of a linear critic Q(s,a) = features(s,a) . w.

    The least-squares projection in the log's norm after discount P^pi 1(safe): (F'DF)^-1 F'D discount P^pi 1(safe) F.
    """
    flat = features.reshape(-1, features.shape[-1])
    weighted = flat.T * weight.ravel()
    following = cmdp.discount * pair_transition(cmdp, policy) @ (safe.ravel()[:, None] * flat)
    return np.asarray(np.linalg.solve(weighted @ flat, weighted @ following), np.float64)


def projected_radius(cmdp: Cmdp, policy: Table, safe: Mask, weight: Table, features: Table) -> float:
    """The spectral radius of `projected_matrix`: fitted evaluation diverges if it is above 1, converges if below."""
    return float(np.abs(np.linalg.eigvals(projected_matrix(cmdp, policy, safe, weight, features))).max())


def fitted_evaluation(
    cmdp: Cmdp, policy: Table, signal: Table, safe: Mask, weight: Table, features: Table, rounds: int
) -> Table:
    """Coefficients after each round of fitted evaluation from zero: fit signal + discount P^pi 1(safe) Q to the log."""
    flat = features.reshape(-1, features.shape[-1])
    root = np.sqrt(weight.ravel())
    coefficients = np.zeros((rounds + 1, flat.shape[1]))
    matrix = cmdp.discount * pair_transition(cmdp, policy) * safe.ravel()
    for k in range(rounds):
        target = signal.ravel() + matrix @ flat @ coefficients[k]
        coefficients[k + 1] = np.linalg.lstsq(root[:, None] * flat, root * target, rcond=None)[0]
    return coefficients


def fitted_default(
    cmdp: Cmdp, behaviour: Table, features: Table, anchor_weight: float, step: float, rounds: int
) -> tuple[Table, Table]:
    """The default with a linear critic: one round of fitted evaluation, then a step of the policy, and again.

    The policy moves towards the action with the largest Q / size + anchor_weight pi_beta, size the mean |V| over the log;
    nothing costs anything. Returns the coefficients of each round and the last policy.
    """
    states, policy = log_states(cmdp, behaviour), behaviour
    flat = features.reshape(-1, features.shape[-1])
    root = np.sqrt((states[:, None] * behaviour).ravel())
    coefficients = np.zeros((rounds + 1, flat.shape[1]))
    for k in range(rounds):
        target = cmdp.reward.ravel() + cmdp.discount * pair_transition(cmdp, policy) @ flat @ coefficients[k]
        coefficients[k + 1] = np.linalg.lstsq(root[:, None] * flat, root * target, rcond=None)[0]
        q = (flat @ coefficients[k + 1]).reshape(behaviour.shape)
        size = float(states @ np.abs((policy * q).sum(1))) + 1e-6
        best = np.eye(cmdp.n_actions)[(q / size + anchor_weight * behaviour).argmax(1)]
        policy = (1 - step) * policy + step * best
    return coefficients, policy
