"""The experiments behind the second half of docs/theory.md: the default, settling, finite logs, the projected operator.

Each study takes a random generator and returns plain numbers.
"""

from itertools import islice
from typing import Any

import numpy as np

from ringfence.tabular.cmdp import Cmdp, Mask, Table, expected_return, occupancy, state_values
from ringfence.tabular.cpq import Settings, critics, iterate, out_of_distribution, run_cpq
from ringfence.tabular.default import DefaultSettings, run_default
from ringfence.tabular.default_counterexamples import diverging_critic
from ringfence.tabular.examples import garnet, random_policy
from ringfence.tabular.guarantees import cost_ceiling, hinge_slack, multiplier_gap, own_suboptimality, slow_pace_exists
from ringfence.tabular.logs import counted_model, sample_log
from ringfence.tabular.methods import OOD_THRESHOLD, SLOW, TIES, Ties, always_enough_alpha
from ringfence.tabular.operators import fitted_default, projected_radius, shift_bound, weighted_expansion
from ringfence.tabular.samples import any_policy_radius, fixed_policy_radius, judged_costs, upper_costs
from ringfence.tabular.settling import hover, is_trap
from ringfence.tabular.studies import against, feasible, quartiles, summary

DEFAULTS: dict[str, DefaultSettings] = {
    "hinge 3, anchor 1": DefaultSettings(iterations=150),
    "hinge 3, anchor 0.1": DefaultSettings(anchor_weight=0.1, iterations=150),
    "hinge 30, anchor 0.1": DefaultSettings(penalty_weight=30.0, anchor_weight=0.1, iterations=150),
    "multiplier at the start, anchor 0.1": DefaultSettings(
        kind="multiplier", anchor_weight=0.1, measured_at="start", iterations=150
    ),
    "multiplier on the log, anchor 0.1": DefaultSettings(kind="multiplier", anchor_weight=0.1, iterations=150),
}


def default_study(rng: np.random.Generator, count: int) -> dict[str, Any]:
    """The default on random CMDPs: what it earns and pays, and whether its bounds held. Without an end of episodes."""
    rows: dict[str, list[tuple[float, float, bool]]] = {name: [] for name in DEFAULTS}
    ceilings, slackened, bounds, paced, broken = [], [], [], 0, 0
    for cmdp, behaviour, best in feasible(rng, count):
        support = ~out_of_distribution(behaviour, OOD_THRESHOLD)
        paced += slow_pace_exists(cmdp, support)
        ceilings.append(float(cost_ceiling(cmdp, support).max()) / cmdp.limit)
        for name, settings in DEFAULTS.items():
            response = run_default(cmdp, behaviour, support, settings)
            rows[name].append(against(cmdp, response.policy, best.expected_return))
            own = own_suboptimality(cmdp, response.policy, support).bound
            bounds.append(own / best.expected_return)
            broken += best.expected_return - expected_return(cmdp, response.policy) > own + 1e-6
            if settings.kind == "hinge":
                ceiling = cost_ceiling(cmdp, support, hinge_slack(response, support))
                slackened.append(float(ceiling.max()) / cmdp.limit)
                broken += bool((state_values(cmdp, response.policy, cmdp.cost) > ceiling + 1e-6).any())
            else:
                given = best.expected_return - expected_return(cmdp, response.policy)
                broken += given > multiplier_gap(cmdp, response) + 1e-6
    return {
        "cases": count,
        "settings": {name: summary(found) for name, found in rows.items()},
        "an_action_at_the_limits_pace_in_every_state": paced / count,
        "ceiling_over_limit": quartiles(ceilings),
        "ceiling_with_slack_over_limit": quartiles(slackened),
        "own_suboptimality_over_optimum": quartiles(bounds),
        "bounds_broken": broken,
    }


def settling_study(rng: np.random.Generator, count: int, rounds: int = 200) -> dict[str, Any]:
    """Slow CPQ under both tie rules: traps at the start, and how far the last quarter of the rounds is from the limit."""
    found: dict[Ties, Any] = {ties: {"trapped_at_start": 0, "over_ceiling": [], "over_limit": []} for ties in TIES}
    broken = 0
    for cmdp, behaviour, _ in feasible(rng, count):
        ceiling = cost_ceiling(cmdp, behaviour >= OOD_THRESHOLD)
        for ties, numbers in found.items():
            settings = Settings(always_enough_alpha(cmdp, behaviour), OOD_THRESHOLD, ties=ties, step=SLOW)
            numbers["trapped_at_start"] += is_trap(critics(cmdp, behaviour, behaviour, settings)[0], cmdp.limit)
            seen = list(islice(iterate(cmdp, behaviour, settings), rounds))
            late = [state_values(cmdp, r.policy, cmdp.cost) for r in seen[-rounds // 4 :]]
            numbers["over_ceiling"].append(max(float((values - ceiling).max()) for values in late) / cmdp.limit)
            numbers["over_limit"].append(max(float(cmdp.start @ values) for values in late) / cmdp.limit - 1)
            if ties == "least cost":
                averaged = hover(cmdp, seen, SLOW)
                broken += averaged.cost > averaged.allowance + averaged.remainder + 1e-6
    return {
        "cases": count,
        "ties": {
            ties: {
                "trapped_at_start": numbers["trapped_at_start"],
                "ever_over_ceiling": int((np.array(numbers["over_ceiling"]) > 1e-9).sum()),
                "most_over_ceiling_in_limits": max(numbers["over_ceiling"]),
                "ever_over_limit_from_start": int((np.array(numbers["over_limit"]) > 1e-9).sum()),
                "most_over_limit_in_limits": max(numbers["over_limit"]),
            }
            for ties, numbers in found.items()
        },
        "hover_bound_broken": broken,
    }


def samples_study(rng: np.random.Generator, logs: int, delta: float = 0.1) -> dict[str, Any]:
    """Coverage of the bounds over many short logs, and their size as logs grow. Costs are at most 1, Vc at most 10."""
    coverage = {"counted": 0, "any_policy": 0, "worst_model": 0, "judge": 0}
    for _ in range(logs):
        cmdp, policy, fixed, model = _learned_from_a_log(rng, int(rng.integers(40, 300)))
        for name, chosen, bound in (
            ("counted", policy, state_values(model.cmdp, policy, model.cmdp.cost)),
            ("any_policy", policy, judged_costs(model, policy, any_policy_radius(model, delta, 1.0), 1.0)),
            ("worst_model", policy, upper_costs(model, policy, delta, 1.0)),
            ("judge", fixed, judged_costs(model, fixed, fixed_policy_radius(model, delta, 1.0), 1.0)),
        ):
            coverage[name] += bool((state_values(cmdp, chosen, cmdp.cost) > bound + 1e-9).any())
    sizes: dict[str, Any] = {}
    for rows in (300, 3_000, 30_000):
        errors: dict[str, list[float]] = {"any_policy": [], "worst_model": [], "judge": []}
        for _ in range(max(logs // 100, 1)):
            _, policy, fixed, model = _learned_from_a_log(rng, rows)
            for name, chosen, bound in (
                ("any_policy", policy, judged_costs(model, policy, any_policy_radius(model, delta, 1.0), 1.0)),
                ("worst_model", policy, upper_costs(model, policy, delta, 1.0)),
                ("judge", fixed, judged_costs(model, fixed, fixed_policy_radius(model, delta, 1.0), 1.0)),
            ):
                counted = state_values(model.cmdp, chosen, model.cmdp.cost)
                errors[name].append(float(model.cmdp.start @ (bound - counted)))
        sizes[str(rows)] = {name: float(np.median(found)) for name, found in errors.items()}
    return {"logs": logs, "delta": delta, "broken": coverage, "median_error": sizes}


def projected_study(rng: np.random.Generator, count: int) -> dict[str, Any]:
    """How often the operator expands in the log's norm, and with a linear critic; and the example that diverges."""
    expands = projected = bound_broken = 0
    for _ in range(count):
        cmdp = garnet(rng)
        behaviour = 0.9 * random_policy(rng, cmdp) + 0.1 / cmdp.n_actions
        weight, everything = occupancy(cmdp, behaviour)[:, None] * behaviour, np.ones(behaviour.shape, bool)
        policy = np.eye(cmdp.n_actions)[cmdp.reward.argmax(1)]
        expansion = weighted_expansion(cmdp, policy, everything, weight)
        expands += expansion > 1
        features = np.concatenate([np.ones((*weight.shape, 1)), rng.random((*weight.shape, 1))], 2)
        projected += projected_radius(cmdp, policy, everything, weight, features) > 1
        bound_broken += expansion > shift_bound(cmdp, policy, everything, weight) + 1e-9
    return {
        "cases": count,
        "expands_in_log_norm": expands,
        "linear_critic_diverges": projected,
        "shift_bound_broken": bound_broken,
        "diverging_example": {str(weight): _diverging(weight) for weight in (0.0, 0.4, 0.7, 1.0, 2.0)},
    }


def _diverging(anchor_weight: float) -> dict[str, float]:
    """The linear critic of `diverging_critic` under the default: how often the rare action is played, and the growth."""
    cmdp, behaviour, features = diverging_critic()
    coefficients, policy = fitted_default(cmdp, behaviour, features, anchor_weight, step=0.02, rounds=1000)
    everything: Mask = np.ones(behaviour.shape, bool)
    radius = projected_radius(cmdp, policy, everything, behaviour, features)
    return {"plays_large": float(policy[0, 1]), "factor": radius, "last_coefficient": float(coefficients[-1, 0])}


def _learned_from_a_log(rng: np.random.Generator, rows: int) -> tuple[Cmdp, Table, Table, Any]:
    cmdp = garnet(rng, states=4, actions=2)
    behaviour, fixed = random_policy(rng, cmdp), random_policy(rng, cmdp)
    log = sample_log(cmdp, {"only": behaviour}, rows, rng)
    model = counted_model(log, cmdp.n_actions, cmdp.discount, cmdp.limit, worst_cost=1.0)
    return cmdp, run_cpq(model.cmdp, model.behaviour, Settings(0.0, 0.0, iterations=20)).policy, fixed, model
