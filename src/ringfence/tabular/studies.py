"""The experiments behind docs/theory.md: every claim on many random CMDPs, every method on the hand-made ones.

Each study takes a random generator and returns plain numbers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ringfence.tabular.cmdp import (
    Cmdp,
    Table,
    even_mixture,
    expected_cost,
    expected_return,
    log_states,
    state_values,
    stirred,
)
from ringfence.tabular.cpq import Outcome, Settings, out_of_distribution, penalized_backup, run_cpq, uniform_over
from ringfence.tabular.examples import Example, garnet, random_policy
from ringfence.tabular.logs import cloned_policy, counted_model, sample_log
from ringfence.tabular.lp import best_deterministic, optimal_policy
from ringfence.tabular.naive import naive_lagrangian
from ringfence.tabular.theorems import (
    READINGS,
    Case,
    contraction_modulus,
    fixed_point_error,
    least_pushed_value,
    ood_action_set,
    printed_alpha,
    smallest_alpha,
    sufficient_alpha,
    theorem2,
)

OOD_THRESHOLD = 0.05  # pairs of which the log holds a smaller share of their state are out of distribution
NOISE = 0.02  # share of random actions in each behaviour: what puts rare actions into the log
SLOW = 0.05  # step of the slow policy


def always_enough_alpha(cmdp: Cmdp, behaviour: Table, threshold: float = OOD_THRESHOLD) -> float:
    """A little more than 2 epsilon l, epsilon the largest pi_beta / nu over the pushed pairs: enough for any policy."""
    pushed = out_of_distribution(behaviour, threshold) & (behaviour > 0)
    epsilon = (behaviour * pushed.sum(1, keepdims=True))[pushed].max(initial=0.0)
    return float(2 * epsilon * cmdp.limit * 1.01)


def cpq(cmdp: Cmdp, behaviour: Table, step: float, iterations: int = 200) -> Outcome:
    return run_cpq(
        cmdp, behaviour, Settings(always_enough_alpha(cmdp, behaviour), OOD_THRESHOLD, step=step, iterations=iterations)
    )


def theorem1_study(rng: np.random.Generator, count: int, epsilon: float = 0.5) -> dict[str, Any]:
    """Fixed point, our alpha and the readings of the printed alpha on random CMDPs with OOD actions."""
    errors: list[float] = []
    slack: list[float] = []
    failures = dict.fromkeys((*READINGS, "ours"), 0)
    while len(errors) < count:
        cmdp = garnet(rng, discount=float(rng.choice([0.5, 0.8, 0.9, 0.95])))
        behaviour = 0.98 * random_policy(rng, cmdp, 0.5) + 0.02 / cmdp.n_actions
        # Half of the policies play the pushed actions freely, half hardly ever.
        policy = random_policy(rng, cmdp, 0.5) if rng.random() < 0.5 else stirred(np.eye(3)[behaviour.argmax(1)], 0.01)
        case = Case(cmdp, policy, behaviour, random_policy(rng, cmdp, 0.5))
        pairs = ood_action_set(case, epsilon)
        if not pairs.any():
            continue
        errors.append(fixed_point_error(case, alpha=1.0))
        alphas: dict[str, float] = {reading: printed_alpha(case, epsilon, reading) for reading in READINGS}
        alphas["ours"] = sufficient_alpha(case, pairs)
        for name, alpha in alphas.items():
            failures[name] += least_pushed_value(case, pairs, alpha) < cmdp.limit - 1e-9
        if (least := smallest_alpha(case, pairs)) > 0:
            slack.append(alphas["ours"] / least)
    return {
        "cases": count,
        "fixed_point_error": max(errors),
        "alpha_fails": failures,
        "our_alpha_over_smallest": _quartiles(slack),
    }


def operator_study(rng: np.random.Generator, count: int) -> dict[str, Any]:
    """The largest measured contraction ratio, over the discount, and over the computed modulus."""
    by_discount, by_modulus = [], []
    for _ in range(count):
        cmdp = garnet(rng)
        policy, safe = random_policy(rng, cmdp), rng.random(cmdp.cost.shape) < 0.6
        one, other = rng.normal(size=(2, *safe.shape))
        apart = penalized_backup(cmdp, policy, one, safe) - penalized_backup(cmdp, policy, other, safe)
        ratio = float(np.abs(apart).max() / np.abs(one - other).max())
        by_discount.append(ratio / cmdp.discount)
        by_modulus.append(ratio / contraction_modulus(cmdp, policy, safe))
    return {"cases": count, "over_discount": max(by_discount), "over_modulus": max(by_modulus)}


def cpq_study(rng: np.random.Generator, count: int) -> dict[str, Any]:
    """CPQ with exact expectations on random CMDPs, against the linear program on the log's support, and Theorem 2."""
    ends = {"converged": 0, "cycle": 0, "neither": 0}
    greedy, slow, sides = [], [], []
    solved = 0
    while solved < count:
        cmdp = garnet(rng)
        behaviour = random_policy(rng, cmdp)
        best = optimal_policy(cmdp, ~out_of_distribution(behaviour, OOD_THRESHOLD))
        if best is None:
            continue
        solved += 1
        outcome = cpq(cmdp, behaviour, step=1.0)
        ends["converged" if outcome.converged else "cycle" if outcome.cycle else "neither"] += 1
        worst = max(outcome.cycle or [outcome.policy], key=lambda policy: expected_cost(cmdp, policy))
        greedy.append(_against(cmdp, worst, best.expected_return))
        slow.append(_against(cmdp, cpq(cmdp, behaviour, step=SLOW).policy, best.expected_return))
        if outcome.converged:
            safe, q_reward = outcome.last.q_cost <= cmdp.limit, outcome.last.q_reward
            for noise in (0.0, 0.1):
                noisy = q_reward + noise * rng.normal(size=q_reward.shape)
                states = log_states(cmdp, behaviour)
                found = theorem2(cmdp, behaviour, states, outcome.policy, noisy, safe, best.policy)
                sides.append(
                    (noise, found.gap, found.as_stated, found.as_sketched, found.corrected, found.concentrated)
                )
    return {
        "cases": count,
        "ends": ends,
        "greedy_worst_of_cycle": _summary(greedy),
        "slow": _summary(slow),
        "theorem2_exact": _theorem2_summary([row[1:] for row in sides if row[0] == 0]),
        "theorem2_noisy": _theorem2_summary([row[1:] for row in sides if row[0] > 0]),
    }


@dataclass(frozen=True)
class Point:
    """One policy of one method: what it truly earns and pays from the start distribution."""

    method: str
    expected_return: float
    expected_cost: float


def behaviour_parts(example: Example) -> dict[str, Table]:
    return {"safe": stirred(example.safe, NOISE), "unsafe": stirred(example.unsafe, NOISE)}


def mixed_behaviour(example: Example) -> Table:
    """pi_beta of the example's logs: half of the transitions from each behaviour, as in the paper's experiments."""
    return even_mixture(example.cmdp, list(behaviour_parts(example).values()))


def exact_methods(example: Example) -> list[Point]:
    """Every method with exact expectations. A cycle of CPQ gives one point for each of its policies."""
    cmdp, parts = example.cmdp, behaviour_parts(example)
    behaviour = mixed_behaviour(example)
    states = log_states(cmdp, behaviour)
    allowed = ~out_of_distribution(behaviour, OOD_THRESHOLD)
    optimum = optimal_policy(cmdp, allowed)
    greedy = cpq(cmdp, behaviour, step=1.0)
    policies: list[tuple[str, Table | None]] = [
        ("linear program", optimum.policy if optimum else None),
        ("best deterministic", best_deterministic(cmdp, allowed, from_each_state=False)),
        ("best deterministic, limit from each state", best_deterministic(cmdp, allowed, from_each_state=True)),
        *(("CPQ", policy) for policy in greedy.cycle or [greedy.policy]),
        ("CPQ, slow policy", cpq(cmdp, behaviour, step=SLOW, iterations=1000).policy),
        ("naive, KL ≤ 0.1", naive_lagrangian(cmdp, behaviour, states, xi=0.1).policy),
        ("naive, KL ≤ 1", naive_lagrangian(cmdp, behaviour, states, xi=1.0).policy),
        ("cloning", behaviour),
        ("cloning, safe rows", parts["safe"]),
    ]
    return [_point(cmdp, method, policy) for method, policy in policies if policy is not None]


def sampled_methods(example: Example, rng: np.random.Generator, logs: int, transitions: int = 1000) -> list[Point]:
    """The same methods learning from logs, each policy judged in the true CMDP; one point per log and method."""
    cmdp, parts = example.cmdp, behaviour_parts(example)
    points = []
    for _ in range(logs):
        log = sample_log(cmdp, parts, transitions, rng)
        model = counted_model(log, cmdp.n_actions, cmdp.discount, cmdp.limit)
        no_push = Settings(alpha=0.0, ood_threshold=0.0, step=SLOW)
        # The log ends where the episode does: arriving there is allowed, though no action is logged.
        trusting = optimal_policy(model.cmdp, (model.behaviour > 0) | model.cmdp.terminal[:, None])
        policies: list[tuple[str, Table | None]] = [
            ("CPQ, slow policy", cpq(model.cmdp, model.behaviour, step=SLOW).policy),
            ("CPQ without the push", run_cpq(model.cmdp, model.behaviour, no_push).policy),
            ("linear program on counts", trusting.policy if trusting else None),
            ("naive, KL ≤ 0.1", naive_lagrangian(model.cmdp, cloned_policy(model), model.states, xi=0.1).policy),
            ("naive, KL ≤ 1", naive_lagrangian(model.cmdp, cloned_policy(model), model.states, xi=1.0).policy),
            ("cloning", cloned_policy(model)),
        ]
        points += [_point(cmdp, method, _everywhere(policy)) for method, policy in policies if policy is not None]
    return points


@dataclass(frozen=True, eq=False)
class AlphaSweep:
    """Qc-hat of every pair of the corridor as alpha grows, for one policy, and the alphas the bounds name."""

    title: str
    limit: float
    alphas: Table
    rare: Table  # (alphas, pairs): out of distribution
    logged: Table  # (alphas, pairs): in distribution
    bounds: dict[str, float]


def alpha_sweeps(example: Example) -> list[AlphaSweep]:
    """Theorem 1 seen: CPQ's own policy, and the same policy playing a rare action one time in ten."""
    cmdp, behaviour = example.cmdp, mixed_behaviour(example)
    rare = out_of_distribution(behaviour, OOD_THRESHOLD) & ~cmdp.terminal[:, None]
    logged = ~rare & ~cmdp.terminal[:, None]
    nu = uniform_over(rare)
    settled = cpq(cmdp, behaviour, step=1.0).policy
    straying = np.where(rare.any(1, keepdims=True), 0.9 * settled + 0.1 * nu, settled)
    alphas = np.linspace(0, 1.25 * always_enough_alpha(cmdp, behaviour), 101)
    sweeps = []
    for title, policy in (
        ("the policy plays a rare action one time in ten", straying),
        ("the policy plays no rare action", settled),
    ):
        case = Case(cmdp, policy, behaviour, nu)
        values = case.true_cost + alphas[:, None, None] * case.push_per_alpha
        epsilon = float((behaviour[rare] / nu[rare]).max())
        bounds = {
            "smallest": smallest_alpha(case, rare),
            "ours": sufficient_alpha(case, rare),
            "printed, as an operator": printed_alpha(case, epsilon, "operator"),
        }
        sweeps.append(AlphaSweep(title, cmdp.limit, alphas, values[:, rare], values[:, logged], bounds))
    return sweeps


def _everywhere(policy: Table) -> Table:
    """Uniform in states where the learner has no policy because the log never visits them."""
    known = policy.sum(1, keepdims=True) > 0
    return np.where(known, policy, 1.0 / policy.shape[1])


def _point(cmdp: Cmdp, method: str, policy: Table) -> Point:
    return Point(method, expected_return(cmdp, policy), expected_cost(cmdp, policy))


def _against(cmdp: Cmdp, policy: Table, best_return: float) -> tuple[float, float, bool]:
    """Return over the optimum's, cost over the limit, and whether the limit holds from every state."""
    everywhere = bool((state_values(cmdp, policy, cmdp.cost) <= cmdp.limit + 1e-9).all())
    return expected_return(cmdp, policy) / best_return, expected_cost(cmdp, policy) / cmdp.limit, everywhere


def _summary(rows: list[tuple[float, float, bool]]) -> dict[str, Any]:
    returns, costs, everywhere = map(np.array, zip(*rows, strict=True))
    return {
        "return_over_optimum": _quartiles(returns),
        "cost_over_limit": _quartiles(costs),
        "inside_limit_from_start": float((costs <= 1 + 1e-9).mean()),
        "inside_limit_from_each_state": float(everywhere.mean()),
    }


def _theorem2_summary(rows: list[tuple[float, ...]]) -> dict[str, Any]:
    gap, stated, sketched, corrected, concentrated = np.array(rows).T
    clear = gap > 1e-6  # below it the gap is rounding and its ratio to a bound means nothing

    def ratio(bound: Table) -> dict[str, float] | None:
        return _quartiles(bound[clear] / gap[clear]) if clear.any() else None

    def fails(bound: Table) -> int:
        return int((gap > bound + 1e-6).sum())

    return {
        "cases": len(gap),
        "gap_above_rounding": int(clear.sum()),
        "fails": {"as_stated": fails(stated), "as_sketched": fails(sketched), "corrected": fails(corrected)},
        "bound_over_gap": {
            "as_stated": ratio(stated),
            "as_sketched": ratio(sketched),
            "corrected": ratio(corrected),
            "concentrated": ratio(concentrated),
        },
    }


def _quartiles(values: Any) -> dict[str, float]:
    low, middle, high = np.quantile(np.asarray(values, float), [0.25, 0.5, 0.75])
    return {"lower_quartile": float(low), "median": float(middle), "upper_quartile": float(high)}
