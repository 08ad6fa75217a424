"""`ringfence theory`: run the checks, print what they found, draw the pictures, keep the numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ringfence.errors import WouldOverwrite
from ringfence.files import atomic_write, write_json
from ringfence.reports.theory_pictures import draw_alpha_sweeps, draw_methods
from ringfence.reports.theory_tables import (
    PAPER_TITLE,
    PROMISE_TITLE,
    claims_table,
    markdown,
    methods_table,
    paper_rows,
    promise_rows,
)
from ringfence.tabular.cpq import out_of_distribution
from ringfence.tabular.examples import Example, hand_made
from ringfence.tabular.methods import (
    OOD_THRESHOLD,
    Point,
    alpha_sweeps,
    exact_methods,
    mixed_behaviour,
    sampled_methods,
)
from ringfence.tabular.naive import least_cost_within
from ringfence.tabular.promises import default_study, projected_study, samples_study, settling_study
from ringfence.tabular.studies import counterexample_numbers, cpq_study, operator_study, theorem1_study

NUMBERS, TABLES, ALPHA_PICTURE, METHODS_PICTURE = "theory.json", "tables.md", "alpha.png", "methods.png"


def run_theory(
    out: Path, console: Console, seed: int = 0, overwrite: bool = False, cases: int = 300, logs: int = 20
) -> dict[str, Any]:
    """Check the paper's claims and ours on exact CMDPs; write theory.json, tables.md, alpha.png and methods.png into `out`.

    Returns the numbers that theory.json holds. The same seed gives the same numbers. Takes some minutes with `cases`
    random CMDPs per claim of the paper, a third as many per claim of ours, `logs` sampled logs per example and fifty
    times as many for the coverage of the finite-sample bounds.
    """
    for name in (NUMBERS, TABLES, ALPHA_PICTURE, METHODS_PICTURE):
        if (out / name).exists() and not overwrite:
            raise WouldOverwrite(f"{out / name} exists; choose another directory or ask for it to be overwritten")
    out.mkdir(parents=True, exist_ok=True)  # or fail now, and not after minutes
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
    with atomic_write(out / TABLES) as temporary:
        temporary.write_text(markdown(numbers), encoding="utf-8")
    console.print(claims_table(PAPER_TITLE, paper_rows(numbers)))
    console.print(claims_table(PROMISE_TITLE, promise_rows(numbers)))
    for example in examples:
        console.print(methods_table(example.name, numbers["examples"][example.name]))
    console.print(f"pictures and numbers: {out}", highlight=False)
    return numbers


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
