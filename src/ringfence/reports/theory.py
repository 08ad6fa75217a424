"""`ringfence theory`: run the checks, print what they found, draw the pictures, keep the numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from ringfence.errors import WouldOverwrite
from ringfence.files import write_json
from ringfence.reports.theory_pictures import draw_alpha_sweeps, draw_methods
from ringfence.tabular import counterexamples
from ringfence.tabular.cmdp import expected_cost, uniform_policy
from ringfence.tabular.cpq import Settings, out_of_distribution, run_cpq
from ringfence.tabular.examples import Example, hand_made
from ringfence.tabular.naive import least_cost_within
from ringfence.tabular.studies import (
    OOD_THRESHOLD,
    Point,
    alpha_sweeps,
    cpq_study,
    exact_methods,
    mixed_behaviour,
    operator_study,
    sampled_methods,
    theorem1_study,
)
from ringfence.tabular.theorems import least_pushed_value, ood_action_set, printed_alpha, sufficient_alpha, theorem2

NUMBERS, ALPHA_PICTURE, METHODS_PICTURE = "theory.json", "alpha.png", "methods.png"


def run_theory(
    out: Path, console: Console, seed: int = 0, overwrite: bool = False, cases: int = 300, logs: int = 20
) -> dict[str, Any]:
    """Check the paper's claims on exact CMDPs; write theory.json, alpha.png and methods.png into `out`.

    Returns the numbers that theory.json holds. The same seed gives the same numbers. Takes about half a minute with
    `cases` random CMDPs per claim and `logs` sampled logs per example.
    """
    for name in (NUMBERS, ALPHA_PICTURE, METHODS_PICTURE):
        if (out / name).exists() and not overwrite:
            raise WouldOverwrite(f"{out / name} exists; choose another directory or ask for it to be overwritten")
    rng = np.random.default_rng(seed)
    examples = hand_made()
    with console.status("checking the theorems on random CMDPs"):
        numbers: dict[str, Any] = {
            "seed": seed,
            "theorem1": theorem1_study(rng, cases),
            "operator": operator_study(rng, cases),
            "cpq": cpq_study(rng, cases),
            "counterexamples": counterexample_numbers(),
        }
    exact, sampled = [], []
    for example in examples:
        with console.status(f"running every method on the {example.name}"):
            exact.append(exact_methods(example))
            sampled.append(sampled_methods(example, rng, logs))
    numbers["examples"] = {
        example.name: _example_numbers(example, points, drawn)
        for example, points, drawn in zip(examples, exact, sampled, strict=True)
    }
    supports = [~out_of_distribution(mixed_behaviour(example), OOD_THRESHOLD) for example in examples]
    titles = [f"{example.name} (limit {example.cmdp.limit:g})" for example in examples]
    draw_methods(titles, [example.cmdp for example in examples], supports, exact, sampled, out / METHODS_PICTURE)
    draw_alpha_sweeps(alpha_sweeps(examples[0]), out / ALPHA_PICTURE)
    write_json(out / NUMBERS, numbers)
    console.print(claims_table(numbers))
    for example in examples:
        console.print(methods_table(example.name, numbers["examples"][example.name]))
    console.print(f"pictures and numbers: {out}", highlight=False)
    return numbers


def counterexample_numbers() -> dict[str, float]:
    """What happens on the smallest CMDPs on which a printed claim fails; docs/theory.md tells each story."""
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


def claims_table(numbers: dict[str, Any]) -> RichTable:
    """One line per claim: what the paper says, and what was found."""
    one, operator, cpq = numbers["theorem1"], numbers["operator"], numbers["cpq"]
    small, exact, noisy = numbers["counterexamples"], cpq["theorem2_exact"], cpq["theorem2_noisy"]
    table = RichTable(title="The paper's claims, computed", show_lines=False)
    for heading in ("claim", "found", "verdict"):
        table.add_column(heading, overflow="fold")
    cases, fails = one["cases"], one["alpha_fails"]
    ratio = {name: noisy["bound_over_gap"][name]["median"] for name in ("as_stated", "corrected", "concentrated")}
    rows = [
        ("Theorem 1, fixed point", f"largest relative error {one['fixed_point_error']:.1e} in {cases}", "holds"),
        ("Theorem 1, printed α read on the diagonal", f"too small in {fails['diagonal']} of {cases}", "holds"),
        ("… read as an operator", f"too small in {fails['operator']} of {cases}", "fails"),
        ("… read as a row sum", f"too small in {fails['row sum']} of {cases}", "fails"),
        (
            "our α, 2ε max(l − Qc)",
            f"too small in {fails['ours']} of {cases}; median {one['our_alpha_over_smallest']['median']:.1f} × least",
            "holds",
        ),
        (
            "penalized operator contracts (max norm)",
            f"largest ratio {operator['over_discount']:.2f} × discount in {operator['cases']}",
            "holds",
        ),
        (
            "0 is pessimistic",
            f"with negative rewards CPQ pays {small['negative_rewards_cost_floor_0']:g} against a limit of "
            f"{small['negative_rewards_limit']:g}; with a low floor {small['negative_rewards_cost_low_floor']:g}",
            "needs rewards ≥ 0",
        ),
        (
            "Theorem 2.1, lim Vc ≤ l",
            f"{cpq['ends']['cycle']} of {cpq['cases']} runs cycle; without a safe action Vc = "
            f"{small['no_safe_action_vc']:g} against {small['no_safe_action_limit']:g}",
            "fails",
        ),
        (
            "Theorem 2.2, exact operators",
            f"bound 0 but gap > 0 in {exact['fails']['as_stated']} of {exact['cases']}",
            "fails",
        ),
        (
            "Theorem 2.2, noisy Qr",
            f"median bound / gap: printed {ratio['as_stated']:.0f}, ours {ratio['corrected']:.0f}, "
            f"with exact density ratios {ratio['concentrated']:.0f}",
            "loose",
        ),
        (
            "our bound for Theorem 2.2",
            f"fails in {exact['fails']['corrected'] + noisy['fails']['corrected']} of "
            f"{exact['cases'] + noisy['cases']}",
            "holds",
        ),
    ]
    colours = {"holds": "green", "fails": "red"}
    for claim, found, verdict in rows:
        table.add_row(claim, found, f"[{colours.get(verdict, 'yellow')}]{verdict}")
    return table


def methods_table(name: str, numbers: dict[str, Any]) -> RichTable:
    table = RichTable(title=f"{name}: limit {numbers['limit']:g}")
    table.add_column("method")
    for heading in ("return", "cost", "return from logs", "cost from logs", "logs over limit"):
        table.add_column(heading, justify="right")
    for method, row in numbers["methods"].items():
        exact = [" / ".join(map(_short, row[key])) if key in row else "" for key in ("return", "cost")]
        drawn = row.get("from_logs")
        logs = [f"{drawn['return']:.3g}", f"{drawn['cost']:.3g}", f"{drawn['over_limit']:.0%}"] if drawn else [""] * 3
        table.add_row(method, *exact, *logs)
    return table


def _short(value: float) -> str:
    """Three digits, and rounding errors shown as 0."""
    return f"{round(value, 9):.3g}"


def _example_numbers(example: Example, exact: Sequence[Point], sampled: Sequence[Point]) -> dict[str, Any]:
    methods: dict[str, dict[str, Any]] = {}
    for point in exact:
        row = methods.setdefault(point.method, {"return": [], "cost": []})
        row["return"].append(point.expected_return)
        row["cost"].append(point.expected_cost)
    for method in dict.fromkeys(point.method for point in sampled):
        chosen = [point for point in sampled if point.method == method]
        costs = np.array([point.expected_cost for point in chosen])
        methods.setdefault(method, {})["from_logs"] = {
            "logs": len(chosen),
            "return": float(np.mean([point.expected_return for point in chosen])),
            "cost": float(costs.mean()),
            "over_limit": float((costs > example.cmdp.limit + 1e-9).mean()),
        }
    divergences = (0.05, 0.1, 0.2)
    return {
        "limit": example.cmdp.limit,
        "methods": methods,
        "least_cost_within_kl": {
            str(xi): least_cost_within(example.cmdp, mixed_behaviour(example), xi)[0] for xi in divergences
        },
    }
