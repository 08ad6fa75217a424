"""A finite constrained MDP and everything about it that one linear solve gives exactly.

Tables are indexed [state, action]. A policy is a table of probabilities, a signal (reward or cost) a table of
numbers. Sums are discounted and unnormalised, as in the paper's Section 3.1; occupancies are normalised to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringfence.errors import InvalidSetting

Table = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Cmdp:
    """The tuple (S, A, r, c, P, discount, start) of Section 3.1, and the limit l on the discounted cost."""

    transition: Table  # (states, actions, next states); rows sum to 1
    reward: Table  # (states, actions)
    cost: Table  # (states, actions); never negative
    start: Table  # (states,); sums to 1
    discount: float
    limit: float

    def __post_init__(self) -> None:
        states, actions = self.reward.shape
        for name, expected in (
            ("transition", (states, actions, states)),
            ("cost", (states, actions)),
            ("start", (states,)),
        ):
            if getattr(self, name).shape != expected:
                raise InvalidSetting(f"{name} must have shape {expected}, not {getattr(self, name).shape}")
        for name in ("transition", "start"):
            table = getattr(self, name)
            if (table < 0).any() or not np.allclose(table.sum(-1), 1.0):
                raise InvalidSetting(f"{name} must hold probabilities that sum to 1")
        if not 0 <= self.discount < 1:
            raise InvalidSetting(f"discount must lie in [0, 1), not {self.discount}")
        if (self.cost < 0).any():
            raise InvalidSetting("cost must not be negative")

    @property
    def n_states(self) -> int:
        return int(self.reward.shape[0])

    @property
    def n_actions(self) -> int:
        return int(self.reward.shape[1])

    @property
    def terminal(self) -> Mask:
        """States that nothing leaves and where nothing is earned or paid: the episode is over there."""
        stays = self.transition[np.arange(self.n_states), :, np.arange(self.n_states)] == 1.0
        mask: Mask = (stays & (self.reward == 0) & (self.cost == 0)).all(axis=1)
        return mask

    def with_limit(self, limit: float) -> "Cmdp":
        return replace(self, limit=limit)


def uniform_policy(cmdp: Cmdp) -> Table:
    return np.full(cmdp.reward.shape, 1.0 / cmdp.n_actions)


def deterministic_policy(actions: Sequence[int], n_actions: int) -> Table:
    """The policy that plays `actions[s]` in state s."""
    policy: Table = np.eye(n_actions)[np.asarray(actions)]
    return policy


def state_transition(cmdp: Cmdp, policy: Table) -> Table:
    """P_pi(s' | s) = sum_a pi(a|s) P(s'|s,a)."""
    matrix: Table = np.einsum("sa,sat->st", policy, cmdp.transition)
    return matrix


def pair_transition(cmdp: Cmdp, policy: Table) -> Table:
    """P^pi((s,a), (s',a')) = P(s'|s,a) pi(a'|s') as a square matrix over pairs (Section 3.1)."""
    pairs = cmdp.n_states * cmdp.n_actions
    matrix: Table = np.einsum("sat,tb->satb", cmdp.transition, policy).reshape(pairs, pairs)
    return matrix


def state_values(cmdp: Cmdp, policy: Table, signal: Table) -> Table:
    """V = (I - discount P_pi)^-1 sum_a pi(a|s) signal(s,a)."""
    matrix = np.eye(cmdp.n_states) - cmdp.discount * state_transition(cmdp, policy)
    values: Table = np.linalg.solve(matrix, (policy * signal).sum(1))
    return values


def action_values(cmdp: Cmdp, policy: Table, signal: Table) -> Table:
    """Q = (I - discount P^pi)^-1 signal: the fixed point of T^pi Q = signal + discount P^pi Q (Section 3.1)."""
    values: Table = signal + cmdp.discount * cmdp.transition @ state_values(cmdp, policy, signal)
    return values


def expected_return(cmdp: Cmdp, policy: Table) -> float:
    """R(pi): the expected discounted reward from the start distribution."""
    return float(cmdp.start @ state_values(cmdp, policy, cmdp.reward))


def expected_cost(cmdp: Cmdp, policy: Table) -> float:
    """C(pi): the expected discounted cost from the start distribution."""
    return float(cmdp.start @ state_values(cmdp, policy, cmdp.cost))


def occupancy(cmdp: Cmdp, policy: Table, start: Table | None = None) -> Table:
    """mu^pi(s) = (1 - discount) sum_t discount^t Pr(s_t = s): the discounted visits of each state, summing to 1."""
    matrix = np.eye(cmdp.n_states) - cmdp.discount * state_transition(cmdp, policy)
    first = cmdp.start if start is None else start
    # Rounding may leave a state that is never visited at -1e-17.
    visits: Table = np.maximum((1 - cmdp.discount) * np.linalg.solve(matrix.T, first), 0.0)
    return visits


def log_states(cmdp: Cmdp, policy: Table) -> Table:
    """mu^beta as a log shows it: the occupancy of the states in which an action is still taken, summing to 1."""
    visits: Table = occupancy(cmdp, policy) * ~cmdp.terminal
    visits /= visits.sum()
    return visits


def mixture_policy(cmdp: Cmdp, policies: Sequence[Table], shares: Sequence[float]) -> Table:
    """pi_beta of a log in which policy i ran a share of the episodes.

    pi_beta(a|s) = sum_i share_i mu_i(s) pi_i(a|s) / sum_i share_i mu_i(s). Weighting by visits, not averaging the
    policies, is what makes the mixture's occupancy the mixture of the occupancies. Rows of states that no policy
    visits are uniform.
    """
    joint: Table = sum(  # type: ignore[assignment]
        share * occupancy(cmdp, policy)[:, None] * policy for policy, share in zip(policies, shares, strict=True)
    )
    visits = np.sum(joint, axis=1, keepdims=True)
    return np.where(visits > 0, joint / np.where(visits > 0, visits, 1.0), uniform_policy(cmdp))


def even_mixture(cmdp: Cmdp, policies: Sequence[Table]) -> Table:
    """pi_beta of a log that holds as many transitions of each policy: long episodes weigh less than their number."""
    lengths = [float(occupancy(cmdp, policy)[~cmdp.terminal].sum()) for policy in policies]
    shares = np.array([1 / length for length in lengths])
    return mixture_policy(cmdp, policies, list(shares / shares.sum()))


def stirred(policy: Table, share: float) -> Table:
    """The policy with a share of its actions drawn uniformly, as a noisy controller would."""
    noisy: Table = (1 - share) * policy + share / policy.shape[1]
    return noisy
