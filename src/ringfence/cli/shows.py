"""Verbs that show something: the demo and the theorems."""

import argparse
from pathlib import Path
from typing import Any

from ringfence.cli.options import LARGEST_SEED, add_verb, whole


def add_theory(verbs: Any) -> None:
    parser = add_verb(verbs, "theory", theory, "check the paper's theorems on small exact problems and draw them")
    parser.add_argument(
        "--out", type=Path, default=Path("theory"), metavar="DIR", help="for pictures (default theory/)"
    )
    parser.add_argument("--seed", type=whole(0, LARGEST_SEED), default=0)
    parser.add_argument(
        "--cases", type=whole(1), default=300, metavar="N", help="random problems per claim (default %(default)s)"
    )
    parser.add_argument(
        "--logs", type=whole(1), default=20, metavar="N", help="sampled logs per example (default %(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what an earlier call wrote there")


def theory(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ringfence.reports.theory import run_theory

    run_theory(
        options.out, Console(), seed=options.seed, overwrite=options.overwrite, cases=options.cases, logs=options.logs
    )


def add_demo(verbs: Any) -> None:
    parser = add_verb(
        verbs, "demo", demo, "make a log, learn a safe policy from it and compare (three to eight minutes)"
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="for results (default demo/)")
    parser.add_argument("--quick", action="store_true", help="a minute's version that shows the steps, not the result")


def demo(options: argparse.Namespace) -> None:
    from ringfence.experiments.demo import run_demo

    run_demo(options.out, quick=options.quick)
