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
from ringfence.tabular.cpq import out_of_distribution
from ringfence.tabular.examples import Example, hand_made
from ringfence.tabular.methods import (
    OOD_THRESHOLD,
    TIE_NAMES,
    Point,
    alpha_sweeps,
    exact_methods,
    mixed_behaviour,
    sampled_methods,
)
from ringfence.tabular.naive import least_cost_within
from ringfence.tabular.promises import default_study, projected_study, samples_study, settling_study
from ringfence.tabular.studies import counterexample_numbers, cpq_study, operator_study, theorem1_study

NUMBERS, ALPHA_PICTURE, METHODS_PICTURE = "theory.json", "alpha.png", "methods.png"


def run_theory(
    out: Path, console: Console, seed: int = 0, overwrite: bool = False, cases: int = 300, logs: int = 20
) -> dict[str, Any]:
    """Check the paper's claims and ours on exact CMDPs; write theory.json, alpha.png and methods.png into `out`.

    Returns the numbers that theory.json holds. The same seed gives the same numbers. Takes some minutes with `cases`
    random CMDPs per claim of the paper, a third as many per claim of ours, `logs` sampled logs per example and fifty
    times as many for the coverage of the finite-sample bounds.
    """
    for name in (NUMBERS, ALPHA_PICTURE, METHODS_PICTURE):
        if (out / name).exists() and not overwrite:
            raise WouldOverwrite(f"{out / name} exists; choose another directory or ask for it to be overwritten")
    rng = np.random.default_rng(seed)
    numbers: dict[str, Any] = {"seed": seed, "counterexamples": counterexample_numbers()}
    fewer = max(cases // 3, 1)
    for name, study, count, doing in (
        ("theorem1", theorem1_study, cases, "Theorem 1"),
        ("operator", operator_study, cases, "the penalized operator"),
        ("cpq", cpq_study, cases, "CPQ and Theorem 2"),
        ("settling", settling_study, fewer, "where CPQ settles"),
        ("default", default_study, fewer, "the ideas of the default"),
        ("projected", projected_study, cases, "the projected operator"),
        ("samples", samples_study, 50 * logs, "finite logs"),
    ):
        with console.status(f"checking {doing} on random CMDPs"):
            numbers[name] = study(rng, count)
    examples = hand_made()
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
    console.print(claims_table("The paper's claims, computed", paper_rows(numbers)))
    console.print(claims_table("What can be promised instead", promise_rows(numbers)))
    for example in examples:
        console.print(methods_table(example.name, numbers["examples"][example.name]))
    console.print(f"pictures and numbers: {out}", highlight=False)
    return numbers


Row = tuple[str, str, str]


def paper_rows(numbers: dict[str, Any]) -> list[Row]:
    """One line per claim of the paper: what it says, what was found, and a verdict."""
    one, operator, cpq = numbers["theorem1"], numbers["operator"], numbers["cpq"]
    small, exact, noisy = numbers["counterexamples"], cpq["theorem2_exact"], cpq["theorem2_noisy"]
    cases, fails, runs = one["cases"], one["alpha_fails"], exact["cases"] + noisy["cases"]
    ratio = {
        name.replace("_", " "): _median(noisy["bound_over_gap"][name], ".0f")
        for name in ("as_stated", "as_sketched", "corrected", "concentrated")
    }

    def broken(bound: str) -> str:
        return f"fails in {exact['fails'][bound] + noisy['fails'][bound]} of {runs}"

    return [
        ("Theorem 1, fixed point", f"largest relative error {one['fixed_point_error']:.1e} in {cases}", "holds"),
        ("Theorem 1, printed α read on the diagonal", f"too small in {fails['diagonal']} of {cases}", "holds"),
        ("… read as an operator", f"too small in {fails['operator']} of {cases}", "fails"),
        ("… read as a row sum", f"too small in {fails['row sum']} of {cases}", "fails"),
        (
            "our α: 2ε max(l − Qc); pair by pair",
            f"too small in {fails['ours']} and {fails['pair by pair']} of {cases}; over the least, medians "
            f"{_median(one['our_alpha_over_smallest'], '.1f')} and {_median(one['pair_by_pair_over_smallest'], '.1f')}",
            "holds",
        ),
        (
            "penalized operator contracts (max norm; not claimed)",
            f"largest ratio {operator['over_discount']:.2f} × discount in {operator['cases']}",
            "holds",
        ),
        (
            "0 is pessimistic (the paper assumes r ≥ 0)",
            f"with negative rewards CPQ pays {small['negative_rewards_cost_floor_0']:g} against a limit of "
            f"{small['negative_rewards_limit']:g}; with a low floor {small['negative_rewards_cost_low_floor']:g}",
            "needs r ≥ 0",
        ),
        *(_limit_row(ties, name, cpq) for ties, name in TIE_NAMES.items()),
        (
            "Theorem 2.2 as stated, exact operators",
            f"bound 0 but gap > 0 in {exact['fails']['as_stated']} of {exact['cases']}",
            "fails",
        ),
        ("Theorem 2.2 with the sketch's δ", f"{broken('as_sketched')}; see the counter-examples", "measured"),
        ("our bound for Theorem 2.2", broken("corrected"), "holds"),
        ("median bound / gap, noisy Qr", ", ".join(f"{name} {value}" for name, value in ratio.items()), "loose"),
    ]


def _limit_row(ties: str, name: str, cpq: dict[str, Any]) -> Row:
    found = cpq["ties"][ties]
    ends, slow = found["ends"], found["slow"]["inside_limit_from_start"]
    return (
        f"Theorem 2.1, lim Vc ≤ l, {name} where nothing is safe",
        f"{ends['converged']} converge ({found['converged_outside_the_limit']} of them outside), {ends['cycle']} cycle; "
        f"slow policy inside in {slow:.0%} of {cpq['cases']}",
        "fails",
    )


def promise_rows(numbers: dict[str, Any]) -> list[Row]:
    """One line per statement of ours: proved ones hold, the others are measured."""
    settling, default, samples, projected = (numbers[key] for key in ("settling", "default", "samples", "projected"))
    recovery, stay = settling["ties"]["least cost"], settling["ties"]["stay"]
    broken, errors = samples["broken"], samples["median_error"]
    return [
        (
            "ceilings and suboptimality bounds of the default",
            f"broken {default['bounds_broken']} times in {default['cases']} CMDPs",
            "holds",
        ),
        (
            "ceiling on Vc of any fixed point, over l",
            f"median {_median(default['ceiling_over_limit'], '.2f')}; with the hinge's slack "
            f"{_median(default['ceiling_with_slack_over_limit'], '.2f')}",
            "holds",
        ),
        *(
            (
                f"default: {name}",
                f"inside in {found['inside_limit_from_start']:.0%}, from each state in "
                f"{found['inside_limit_from_each_state']:.0%}; median return "
                f"{_median(found['return_over_optimum'], '.0%')} of the optimum",
                "measured",
            )
            for name, found in default["settings"].items()
        ),
        (
            "slow CPQ hovers: average over rounds",
            f"bound broken in {settling['hover_bound_broken']} of {settling['cases']}",
            "holds",
        ),
        (
            "slow CPQ, recovery: late rounds from the start",
            f"over l in {recovery['ever_over_limit_from_start']} of {settling['cases']}, by at most "
            f"{max(recovery['most_over_limit_in_limits'], 0):.0%}",
            "measured",
        ),
        (
            "slow CPQ, stays put: late rounds from the start",
            f"over l in {stay['ever_over_limit_from_start']} of {settling['cases']}; trapped at once in "
            f"{stay['trapped_at_start']}",
            "measured",
        ),
        (
            f"Vc from a log, with probability {1 - samples['delta']:g}",
            f"broken in {broken['worst_model']} (worst model), {broken['judge']} (judge) of {samples['logs']} logs; without "
            f"a bound in {broken['counted']}",
            "holds",
        ),
        (
            "error of that bound by rows (worst model / judge)",
            "; ".join(f"{rows}: {found['worst_model']:.2f} / {found['judge']:.2f}" for rows, found in errors.items()),
            "measured",
        ),
        (
            "operator in the log's norm",
            f"expands in {projected['expands_in_log_norm']} of {projected['cases']}, linear critic diverges in "
            f"{projected['linear_critic_diverges']}",
            "measured",
        ),
        (
            "diverging example: growth per round by anchor",
            ", ".join(f"{weight}: {found['factor']:.2f}" for weight, found in projected["diverging_example"].items()),
            "holds",
        ),
    ]


def claims_table(title: str, rows: Sequence[Row]) -> RichTable:
    table = RichTable(title=title, show_lines=False)
    for heading in ("claim", "found", "verdict"):
        table.add_column(heading, overflow="fold")
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


def _median(quartiles: dict[str, float | None], form: str) -> str:
    """The median, or a dash where there was no case."""
    return "–" if quartiles["median"] is None else format(quartiles["median"], form)


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
