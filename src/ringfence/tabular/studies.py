"""The experiments behind docs/theory.md: every claim of the paper on many random CMDPs.

Each study takes a random generator and returns plain numbers. `promises` has those of the default and of finite logs,
`methods` runs every method on the hand-made examples.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ringfence.tabular import counterexamples
from ringfence.tabular.cmdp import (
    Cmdp,
    Table,
    expected_cost,
    expected_return,
    log_states,
    state_values,
    stirred,
    uniform_policy,
)
from ringfence.tabular.cpq import Settings, out_of_distribution, penalized_backup, run_cpq
from ringfence.tabular.examples import garnet, random_policy
from ringfence.tabular.lp import LpSolution, optimal_policy
from ringfence.tabular.methods import OOD_THRESHOLD, SLOW, TIES, Ties, cpq
from ringfence.tabular.operators import contraction_modulus
from ringfence.tabular.theorems import (
    READINGS,
    Case,
    fixed_point_error,
    least_pushed_value,
    ood_action_set,
    pairwise_alpha,
    printed_alpha,
    smallest_alpha,
    sufficient_alpha,
    theorem2,
)

ENDS = ("converged", "cycle", "neither")


def theorem1_study(rng: np.random.Generator, count: int, epsilon: float = 0.5) -> dict[str, Any]:
    """Fixed point, our alpha and the readings of the printed alpha on random CMDPs with OOD actions."""
    errors: list[float] = []
    slack: list[float] = []
    failures = dict.fromkeys((*READINGS, "ours", "pair by pair"), 0)
    sharper: list[float] = []
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
        alphas["ours"], alphas["pair by pair"] = sufficient_alpha(case, pairs), pairwise_alpha(case, pairs)
        for name, alpha in alphas.items():
            failures[name] += least_pushed_value(case, pairs, alpha) < cmdp.limit - 1e-9
        if (least := smallest_alpha(case, pairs)) > 0:
            slack.append(alphas["ours"] / least)
            sharper.append(alphas["pair by pair"] / least)
    return {
        "cases": count,
        "fixed_point_error": max(errors),
        "alpha_fails": failures,
        "our_alpha_over_smallest": quartiles(slack),
        "pair_by_pair_over_smallest": quartiles(sharper),
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
    """CPQ with exact expectations on random CMDPs under both tie rules, against the linear program on the log's support.

    Theorem 2 is computed for the converged greedy runs with recovery.
    """
    found: dict[Ties, Any] = {ties: {"ends": dict.fromkeys(ENDS, 0), "greedy": [], "slow": []} for ties in TIES}
    sides = []
    for cmdp, behaviour, best in feasible(rng, count):
        for ties, rows in found.items():
            outcome = cpq(cmdp, behaviour, 1.0, ties)
            rows["ends"]["converged" if outcome.converged else "cycle" if outcome.cycle else "neither"] += 1
            worst = max(outcome.cycle or [outcome.policy], key=lambda policy: expected_cost(cmdp, policy))
            rows["greedy"].append((outcome.converged, *against(cmdp, worst, best.expected_return)))
            rows["slow"].append((True, *against(cmdp, cpq(cmdp, behaviour, SLOW, ties).policy, best.expected_return)))
            if outcome.converged and ties == "least cost":
                safe, q_reward = outcome.last.q_cost <= cmdp.limit, outcome.last.q_reward
                for noise in (0.0, 0.1):
                    noisy = q_reward + noise * rng.normal(size=q_reward.shape)
                    states = log_states(cmdp, behaviour)
                    two = theorem2(cmdp, behaviour, states, outcome.policy, noisy, safe, best.policy)
                    sides.append((noise, two.gap, two.as_stated, two.as_sketched, two.corrected, two.concentrated))
    return {
        "cases": count,
        "ties": {
            ties: {
                "ends": rows["ends"],
                "greedy_worst_of_cycle": summary([row[1:] for row in rows["greedy"]]),
                "converged_outside_the_limit": sum(row[0] and row[2] > 1 + 1e-9 for row in rows["greedy"]),
                "slow": summary([row[1:] for row in rows["slow"]]),
            }
            for ties, rows in found.items()
        },
        "theorem2_exact": _theorem2_summary([row[1:] for row in sides if row[0] == 0]),
        "theorem2_noisy": _theorem2_summary([row[1:] for row in sides if row[0] > 0]),
    }


def feasible(rng: np.random.Generator, count: int) -> Iterator[tuple[Cmdp, Table, LpSolution]]:
    """Random CMDPs, a behaviour and the optimum on its support, where one exists."""
    solved = 0
    while solved < count:
        cmdp = garnet(rng)
        behaviour = random_policy(rng, cmdp)
        best = optimal_policy(cmdp, ~out_of_distribution(behaviour, OOD_THRESHOLD))
        if best is not None:
            solved += 1
            yield cmdp, behaviour, best


def counterexample_numbers() -> dict[str, float]:
    """What happens on the smallest CMDPs on which a printed claim fails; docs/theory.md explains each."""
    too_small = counterexamples.printed_alpha_too_small()
    rare = ood_action_set(too_small, 0.1)
    negative, unsafe = counterexamples.negative_rewards(), counterexamples.no_safe_action()
    cycle = counterexamples.greedy_cycle()
    plain = Settings(alpha=0.0, ood_threshold=0.0)
    first, scarce = counterexamples.first_step_uncounted(), counterexamples.rare_action_uncounted()

    def cost_from_cpq(floor: float) -> float:
        outcome = run_cpq(negative, uniform_policy(negative), Settings(0.0, 0.0, floor=floor))
        return expected_cost(negative, outcome.policy)

    return {
        "pushed_to_with_printed_alpha": least_pushed_value(too_small, rare, printed_alpha(too_small, 0.1, "operator")),
        "pushed_to_with_our_alpha": least_pushed_value(too_small, rare, sufficient_alpha(too_small, rare)),
        "pushed_limit": too_small.cmdp.limit,
        "negative_rewards_cost_floor_0": cost_from_cpq(0.0),
        "negative_rewards_cost_low_floor": cost_from_cpq(-50.0),
        "negative_rewards_limit": negative.limit,
        "no_safe_action_vc": expected_cost(unsafe, run_cpq(unsafe, uniform_policy(unsafe), plain).policy),
        "no_safe_action_limit": unsafe.limit,
        "cycle_length": float(len(run_cpq(cycle, uniform_policy(cycle), plain).cycle)),
        "first_step_gap": theorem2(**vars(first)).gap,
        "first_step_printed_bound": theorem2(**vars(first)).as_sketched,
        "rare_action_gap": theorem2(**vars(scarce)).gap,
        "rare_action_printed_bound": theorem2(**vars(scarce)).as_stated,
        "rare_action_our_bound": theorem2(**vars(scarce)).corrected,
    }


def against(cmdp: Cmdp, policy: Table, best_return: float) -> tuple[float, float, bool]:
    """Return over the optimum's, cost over the limit, and whether the limit holds from every state."""
    everywhere = bool((state_values(cmdp, policy, cmdp.cost) <= cmdp.limit + 1e-9).all())
    return expected_return(cmdp, policy) / best_return, expected_cost(cmdp, policy) / cmdp.limit, everywhere


def summary(rows: list[tuple[float, float, bool]]) -> dict[str, Any]:
    returns, costs, everywhere = map(np.array, zip(*rows, strict=True))
    return {
        "return_over_optimum": quartiles(returns),
        "cost_over_limit": quartiles(costs),
        "inside_limit_from_start": float((costs <= 1 + 1e-9).mean()),
        "inside_limit_from_each_state": float(everywhere.mean()),
    }


def _theorem2_summary(rows: list[tuple[float, ...]]) -> dict[str, Any]:
    gap, stated, sketched, corrected, concentrated = np.array(rows).reshape(-1, 5).T
    clear = gap > 1e-6  # below it the gap is rounding and its ratio to a bound means nothing

    def ratio(bound: Table) -> dict[str, float | None]:
        return quartiles(bound[clear] / gap[clear])

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


def quartiles(values: Any) -> dict[str, float | None]:
    """Of nothing, None: with few cases a number may have no case."""
    found = np.quantile(np.asarray(values, float), [0.25, 0.5, 0.75]).tolist() if len(values) else [None] * 3
    return dict(zip(("lower_quartile", "median", "upper_quartile"), found, strict=True))
