"""Verbs about experiments: the paper's figures, and a user's own grid."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from ringfence.cli.options import LARGEST_SEED, Parser, add_verb, whole
from ringfence.errors import MissingExtra
from ringfence.experiments.paper import FIGURES, SCALES, SEEDS
from ringfence.training import defaults


def add_reproduce(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "reproduce",
        reproduce,
        "make a figure of the CPQ paper again: every method on every task, with seeds and intervals\n"
        "examples:\n"
        "  ringfence reproduce figure1 --dry-run\n"
        "  ringfence reproduce figure1 --methods bc-safe cpq --seeds 0 1 2\n"
        "  ringfence reproduce figure2 --tasks hopper --limits 27 30 33 --engine ray --address auto\n\n"
        "Stop it at any time and start it again: only what is missing runs.",
    )
    parser.add_argument("figure", choices=FIGURES, help="curves at l = 30, or cost and return over limits")
    parser.add_argument("--out", default="reproduction", metavar="STORE", help=STORE_HELP)
    parser.add_argument("--steps", type=whole(1), metavar="N", help="updates of each policy (default: the scale's)")
    parser.add_argument("--rows", type=whole(1), metavar="N", help="transitions in each log (default: the scale's)")
    parser.add_argument(
        "--seeds",
        type=whole(0, LARGEST_SEED),
        nargs="+",
        default=list(SEEDS),
        metavar="S",
        help=f"default {' '.join(map(str, SEEDS))}",
    )
    parser.add_argument("--tasks", nargs="+", metavar="T", help="hopper, halfcheetah, walker2d (default: all)")
    parser.add_argument("--methods", nargs="+", metavar="M", help="such as cpq-paper, cpq, bc-safe (default: all)")
    parser.add_argument("--limits", type=float, nargs="+", metavar="L", help="discounted (default: the figure's)")
    parser.add_argument(
        "--evaluate-every",
        type=whole(1),
        default=defaults.EVALUATE_EVERY,
        metavar="N",
        help="steps (default %(default)s)",
    )
    parser.add_argument(
        "--episodes",
        type=whole(1),
        default=defaults.EPISODES,
        metavar="N",
        help="of each evaluation on the way (default %(default)s)",
    )
    parser.add_argument(
        "--test-episodes",
        type=whole(1),
        default=defaults.TEST_EPISODES,
        metavar="N",
        help="for each last iterate (default %(default)s)",
    )
    parser.add_argument(
        "--scale", choices=tuple(SCALES), default="default",
        help="; ".join(f"{name}: {scale.steps:,} steps and {scale.rows:,} rows" for name, scale in SCALES.items()),
    )  # fmt: skip
    parser.add_argument("--width", type=whole(1), metavar="N", help="of hidden layers (default: each method's own)")
    add_engine_options(parser)


def reproduce(options: argparse.Namespace) -> int:
    from ringfence.experiments.paper import figure_grid

    names = (
        "scale",
        "steps",
        "rows",
        "seeds",
        "tasks",
        "methods",
        "limits",
        "evaluate_every",
        "episodes",
        "test_episodes",
        "width",
    )
    experiment = figure_grid(options.figure, **{name: getattr(options, name) for name in names})
    return carry_out(experiment, options)


def add_sweep(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "sweep",
        sweep,
        "train every combination of methods, settings, limits and seeds that a file lists\n"
        "example (see docs/cluster.md for the file):\n  ringfence sweep grid.toml --engine local --workers 2",
    )
    parser.add_argument("grid", type=Path, metavar="GRID", help="a .toml or .yaml file")
    parser.add_argument("--out", metavar="STORE", help=f"{STORE_HELP} (default: sweeps/ and the grid's name)")
    add_engine_options(parser)


def sweep(options: argparse.Namespace) -> int:
    from ringfence.experiments.sweepfile import read_sweep

    experiment = read_sweep(options.grid)
    options.out = options.out or f"sweeps/{experiment.name}"
    return carry_out(experiment, options)


STORE_HELP = "directory, or fsspec address such as s3://bucket/name, that all workers see; run again to go on with it"


def add_engine_options(parser: Parser) -> None:
    parser.add_argument("--results", type=Path, metavar="DIR", help="for small results, tables and figures")
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="processes here, or Ray tasks")
    parser.add_argument(
        "--workers",
        type=whole(1),
        metavar="W",
        help="cells side by side (default: as many as the cores hold); with --address only for the estimate of --dry-run",
    )
    parser.add_argument(
        "--threads",
        type=whole(1),
        metavar="N",
        help="threads of each cell, without Ray (default: its share of the cores)",
    )
    parser.add_argument("--address", metavar="A", help="Ray cluster (default: a Ray started on this machine)")
    parser.add_argument(
        "--cpus", type=float, metavar="N", help="processors and threads of each cell, with Ray (default 1)"
    )
    parser.add_argument("--gpus", type=float, default=0.0, metavar="N", help="GPUs for each cell, with Ray")
    parser.add_argument("--dry-run", action="store_true", help="list what would run and how long it takes")
    parser.add_argument(
        "--report-only",
        action="store_true",
        help="tables and figures of those of these cells that are there; nothing runs",
    )


def carry_out(experiment: Any, options: argparse.Namespace) -> int:
    from ringfence.experiments.conduct import conduct, dry_run
    from ringfence.experiments.machine import Machine
    from ringfence.reports.experiment import write_report
    from ringfence.reports.results import Described

    given = {name: getattr(options, name) for name in ("engine", "workers", "threads", "address", "cpus", "gpus")}
    machine = Machine(**given)
    results = options.results or Path("" if "://" in options.out else options.out) / experiment.name
    command = "ringfence " + shlex.join(word for word in sys.argv[1:])
    if options.dry_run:
        dry_run(experiment, options.out, results, machine)
        return 0
    if options.report_only:
        described = Described(experiment.name, tuple(cell.id for cell in experiment.cells), command)
        print_files(write_report(results, described))
        write_page(results, described)
        return 0
    state = conduct(experiment, options.out, results, machine, command=command)
    if state.done:
        print_files(write_report(results))
        write_page(results)
    if state.interrupted:
        print("stopped and saved; run the same command to go on", file=sys.stderr)
        return 130
    without = {**state.failed, **{cell.id: "it did not end; run the same command again" for cell in state.left}}
    for name, reason in without.items():
        print(f"{name} has no result: {reason}", file=sys.stderr)
    return 1 if without else 0


def write_page(results: Path, described: Any = None) -> None:
    """The page for the browser, where it can be made."""
    from ringfence.reports.html.pages import write_sweep_page

    try:
        print_files([write_sweep_page(results, described)])
    except MissingExtra as error:
        print(f"note: no page was written: {error}", file=sys.stderr)


def print_files(files: Any) -> None:
    for file in files:
        print(file)
