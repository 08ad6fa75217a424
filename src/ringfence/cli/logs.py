"""Verbs about logs: look into one, make one, train the policies that write one."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ringfence.cli.options import (
    LARGEST_SEED,
    LOG_HELP,
    Parser,
    add_log_options,
    add_verb,
    limit_of,
    load_log,
    picture,
    whole,
)


def add_inspect(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "inspect",
        inspect,
        "show what is in a log and how safe it is\n"
        "example:\n  ringfence inspect my_logs.parquet --limit 30 --plot log.png",
    )
    parser.add_argument("log", metavar="LOG", help=LOG_HELP)
    add_log_options(parser)
    parser.add_argument("--plot", type=picture, metavar="FILE", help="draw each episode's return against its cost")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def inspect(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ringfence.data import summarise
    from ringfence.reports.log import plot_summary, print_summary

    log = load_log(options)
    limit = limit_of(options, log, options.discount)
    summary = summarise(log, options.discount, limit)
    if options.json:
        print(json.dumps(summary.to_dict(), indent=2))
    else:
        print_summary(summary, Console())
    if options.plot:
        plot_summary(log, options.plot, options.discount, limit)
        print(f"wrote {options.plot}", file=sys.stderr)


def add_collect(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "collect",
        collect,
        "make a log of a simulated task from a mixture of policies, by default the shipped unsafe and safe ones\n"
        "example:\n  ringfence collect --task hopper-torque --size 2000000 --out hopper.h5",
    )
    parser.add_argument("--task", required=True, metavar="T", help="a built-in task, or a Gymnasium id with a cost")
    parser.add_argument("--size", type=whole(1), required=True, metavar="N", help="how many transitions")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write (.h5 or .parquet)")
    parser.add_argument(
        "--seed", type=whole(0, LARGEST_SEED), default=0, help="the same seed makes the same log (default 0)"
    )
    parser.add_argument("--policies", type=Path, nargs="+", metavar="FILE", help="policy files to mix")
    parser.add_argument("--shares", type=float, nargs="+", metavar="X", help="in which proportion (default: equal)")
    parser.add_argument("--workers", type=whole(1), metavar="W", help="processes (default: one per core)")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")


def collect(options: argparse.Namespace) -> None:
    from ringfence.behaviour.collect import collect
    from ringfence.progress import counting

    with counting("collecting", "rows") as progress:
        collect(
            options.task,
            options.size,
            options.out,
            seed=options.seed,
            policies=options.policies,
            shares=options.shares,
            workers=options.workers,
            overwrite=options.overwrite,
            progress=progress,
        )
    print(f"log: {options.out}")


def add_behaviour(verbs: Any) -> None:
    text = "train the policies that write logs"
    outer = verbs.add_parser("behaviour", help=text, description=text)
    inner = outer.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    parser = add_verb(
        inner,
        "train",
        behaviour_train,
        "train a policy online in a simulated task: ppo for reward alone, cpo for reward inside a limit\n"
        "example:\n  ringfence behaviour train --task hopper-torque --method ppo --out hopper-ppo",
    )
    parser.add_argument("--task", required=True, metavar="T", help="a built-in task, or a Gymnasium id with a cost")
    parser.add_argument("--method", required=True, choices=("ppo", "cpo"), help="ppo: unsafe; cpo: safe")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory; run again to go on with it")
    parser.add_argument("--seed", type=whole(0, LARGEST_SEED), default=0)
    parser.add_argument("--steps", type=whole(1), metavar="N", help="environment steps (default: the method's)")
    parser.add_argument(
        "--limit", type=float, metavar="L", help="bound on the discounted cost, for cpo (default: task's)"
    )
    parser.add_argument("--std", type=float, help="standard deviation of the final policy's actions")
    parser.add_argument("--warm-start", type=Path, metavar="DIR", help="start from the policy of another directory")
    parser.add_argument("--workers", type=whole(1), default=1, metavar="W", help="processes (default 1)")


def behaviour_train(options: argparse.Namespace) -> None:
    from ringfence.behaviour.train import train_behaviour
    from ringfence.progress import counting

    with counting(options.method, "steps") as progress:
        policy = train_behaviour(
            options.task,
            options.method,
            out=options.out,
            seed=options.seed,
            steps=options.steps,
            limit=options.limit,
            std=options.std,
            warm_start=options.warm_start,
            workers=options.workers,
            progress=progress,
        )
    print(f"policy: {policy}")
