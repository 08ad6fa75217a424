"""CPQ on tables: the cost critic with its push, the penalized operator, policy improvement, and their iteration.

Everything here takes a `Cmdp` and a behaviour policy. Give it the true ones for exact expectations, or those that
`logs.counted_model` counts in a log: on tables, minimising the empirical objectives of the paper, each with its target
held fixed, is the same as taking exact expectations in the counted model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ringfence.errors import InvalidSetting
from ringfence.tabular.cmdp import Cmdp, Mask, Table, action_values, deterministic_policy

# Step 1: the cost critic


def out_of_distribution(behaviour: Table, threshold: float) -> Mask:
    """Pairs the log holds too rarely: pi_beta(a|s) < threshold. On tables this stands in for KL >= d of the CVAE."""
    return behaviour < threshold


def uniform_over(pairs: Mask) -> Table:
    """nu(a|s): uniform over the given actions of each state; all zero where a state has none (m = 0)."""
    count = pairs.sum(1, keepdims=True)
    return np.where(pairs, 1.0 / np.maximum(count, 1), 0.0)


def push_ratio(nu: Table, behaviour: Table) -> Table:
    """nu(a|s) / pi_beta(a|s), the direction of the push.

    Theorem 1 needs supp nu inside supp pi_beta. At a pair with nu > 0 that the log never holds Equation (1) falls
    linearly in Qc(s,a) and has no minimum, so we refuse. (With nu = 0 as well it does not depend on Qc(s,a) at all.)
    """
    if ((nu > 0) & (behaviour <= 0)).any():
        raise InvalidSetting("nu gives weight to a pair that the log never holds: Qc has no finite minimum there")
    return np.where(nu > 0, nu / np.where(behaviour > 0, behaviour, 1.0), 0.0)


def cost_objective(q: Table, target: Table, nu: Table, behaviour: Table, states: Table, alpha: float) -> float:
    """Equation (1): E_{s,a ~ B}[(Qc - target)^2] - alpha E_{s ~ B, a ~ nu}[Qc], the target T^pi Qc held fixed."""
    bellman_error = states @ (behaviour * (q - target) ** 2).sum(1)
    return float(bellman_error - alpha * states @ (nu * q).sum(1))


def cost_backup(cmdp: Cmdp, policy: Table, q: Table, ratio: Table, alpha: float) -> Table:
    """Equation (6), the minimiser of Equation (1): T^pi Qc + alpha/2 nu / pi_beta."""
    next_values = (policy * q).sum(1)
    backup: Table = cmdp.cost + cmdp.discount * cmdp.transition @ next_values + alpha / 2 * ratio
    return backup


def cost_fixed_point(cmdp: Cmdp, policy: Table, ratio: Table, alpha: float) -> Table:
    """The limit of Equation (6): the value of the cost c + alpha/2 nu / pi_beta.

    So the push is nothing but an extra cost paid on every pair of nu, in proportion to how rarely the log holds it.
    """
    return action_values(cmdp, policy, cmdp.cost + alpha / 2 * ratio)


# Step 2: the reward critic


def penalized_backup(cmdp: Cmdp, policy: Table, q: Table, safe: Mask, floor: float = 0.0) -> Table:
    """Constraints Penalized Bellman operator, Section 4, Step 2: r + discount E_{a' ~ pi}[1(safe) Qr, else floor].

    The paper's floor is 0, the least value there is when no reward is negative.
    """
    next_values = (policy * np.where(safe, q, floor)).sum(1)
    backup: Table = cmdp.reward + cmdp.discount * cmdp.transition @ next_values
    return backup


def penalized_fixed_point(cmdp: Cmdp, policy: Table, safe: Mask, floor: float = 0.0) -> Table:
    """The Qr that `penalized_backup` leaves alone, with the safe pairs held fixed.

    With U(s) = sum_a pi(a|s) [safe ? Qr(s,a) : floor] the fixed point is Qr = r + discount P U, a linear system in U.
    """
    kept = policy * safe
    paid = (kept * cmdp.reward).sum(1) + floor * (policy * ~safe).sum(1)
    matrix = np.eye(cmdp.n_states) - cmdp.discount * np.einsum("sa,sat->st", kept, cmdp.transition)
    values: Table = cmdp.reward + cmdp.discount * cmdp.transition @ np.linalg.solve(matrix, paid)
    return values


# Step 3: the policy


def improved_policy(q_reward: Table, q_cost: Table, limit: float, floor: float = 0.0) -> Table:
    """Equation (4) with a recovery rule: all weight on the action with the largest 1(Qc <= l) Qr.

    The paper leaves ties open, and where no action is safe all of them tie. The recovery rule is ours: take the lowest
    Qc among them, and of those the highest Qr.
    """
    score = np.where(q_cost <= limit, q_reward, floor)
    best = _nearly(score, score.max(1, keepdims=True))
    best_cost = np.where(best, q_cost, np.inf)
    cheapest = best & _nearly(best_cost, best_cost.min(1, keepdims=True))
    return deterministic_policy(np.where(cheapest, q_reward, -np.inf).argmax(1).tolist(), score.shape[1])


def improved_policy_in_place(policy: Table, q_reward: Table, q_cost: Table, limit: float, floor: float = 0.0) -> Table:
    """Equation (4) as its gradient acts: among actions that tie the policy keeps its own proportions.

    Where no action is safe every action ties at the floor, the printed gradient is 0 and the policy stays what it was.
    """
    score = np.where(q_cost <= limit, q_reward, floor)
    best = _nearly(score, score.max(1, keepdims=True))
    kept = policy * best
    total = kept.sum(1, keepdims=True)
    return np.where(total > 0, kept / np.where(total > 0, total, 1.0), uniform_over(best))


# The algorithm


@dataclass(frozen=True)
class Settings:
    """How CPQ runs, with every expectation exact.

    alpha: weight of the push. ood_threshold: pairs with a smaller pi_beta are out of distribution. floor: what an unsafe
    pair counts in Equations (3) and (4); the paper's is 0.
    nu: "policy" pushes the out-of-distribution pairs that pi itself plays, as Algorithm 1 samples them; "detector", the
    default here, pushes every logged out-of-distribution pair.
    ties: where no action is safe, "least cost" is our recovery rule (`improved_policy`); "stay" is what the printed
    gradient does (`improved_policy_in_place`).
    step: how far the policy moves towards the improved one. 1 is Equation (4) itself.
    """

    alpha: float
    ood_threshold: float
    floor: float = 0.0
    nu: Literal["detector", "policy"] = "detector"
    ties: Literal["least cost", "stay"] = "least cost"
    step: float = 1.0
    iterations: int = 200


@dataclass(frozen=True, eq=False)
class Iterate:
    """One round of Algorithm 1: the policy that was evaluated, both critics, and the policy that follows."""

    policy: Table
    q_cost: Table
    q_reward: Table
    improved: Table


@dataclass(frozen=True, eq=False)
class Outcome:
    """Where CPQ ended. `cycle` holds the policies it repeats: one when it converged, none when neither happened."""

    last: Iterate
    cycle: list[Table]
    rounds: int

    @property
    def policy(self) -> Table:
        return self.last.policy

    @property
    def converged(self) -> bool:
        return len(self.cycle) == 1


def critics(cmdp: Cmdp, behaviour: Table, policy: Table, settings: Settings) -> tuple[Table, Table]:
    """Both critics of a policy at their fixed points: Steps 1 and 2.

    Pairs the log never holds get Qc = infinity: Equation (1) falls without end as their Qc grows. After the end of
    an episode nothing is played, so nothing is out of distribution there, and the floor is not charged.
    """
    unlikely = out_of_distribution(behaviour, settings.ood_threshold)
    logged = unlikely & (behaviour > 0)
    nu = uniform_over(logged) if settings.nu == "detector" else _restricted(policy, logged)
    q_cost = cost_fixed_point(cmdp, policy, push_ratio(nu, behaviour), settings.alpha)
    q_cost = np.where((behaviour > 0) | cmdp.terminal[:, None], q_cost, np.inf)
    q_reward = penalized_fixed_point(cmdp, policy, q_cost <= cmdp.limit, settings.floor)
    return q_cost, q_reward


def iterate(cmdp: Cmdp, behaviour: Table, settings: Settings) -> Iterator[Iterate]:
    """Algorithm 1 without end, starting from the behaviour policy: critics to their fixed points, then the policy.

    In a state that the log never visits the behaviour is unknown and the policy starts uniform.
    """
    known = behaviour.sum(1, keepdims=True) > 0
    policy = np.where(known, behaviour, 1.0 / cmdp.n_actions)
    while True:
        q_cost, q_reward = critics(cmdp, behaviour, policy, settings)
        if settings.ties == "stay":
            improved = improved_policy_in_place(policy, q_reward, q_cost, cmdp.limit, settings.floor)
        else:
            improved = improved_policy(q_reward, q_cost, cmdp.limit, settings.floor)
        yield Iterate(policy, q_cost, q_reward, improved)
        policy = (1 - settings.step) * policy + settings.step * improved


def run_cpq(cmdp: Cmdp, behaviour: Table, settings: Settings) -> Outcome:
    """Algorithm 1 until it repeats a policy (a fixed point or a cycle) or runs out of rounds."""
    policies: list[Table] = []
    first_seen: dict[bytes, int] = {}
    for k, current in zip(range(settings.iterations), iterate(cmdp, behaviour, settings), strict=False):
        name = np.round(current.policy, 12).tobytes()  # policies that differ by rounding count as one
        if name in first_seen:
            return Outcome(current, policies[first_seen[name] :], k)
        first_seen[name] = k
        policies.append(current.policy)
    return Outcome(current, [], settings.iterations)


def _restricted(policy: Table, pairs: Mask) -> Table:
    """The policy given that it plays one of the pairs; zero where it plays none."""
    weight = policy * pairs
    total = weight.sum(1, keepdims=True)
    return np.where(total > 0, weight / np.where(total > 0, total, 1.0), 0.0)


def _nearly(values: Table, goal: Table) -> Mask:
    """Equal but for rounding, so that a tie does not depend on the order of a sum."""
    return np.isclose(values, goal, rtol=1e-9, atol=1e-9)
