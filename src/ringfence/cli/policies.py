"""Verbs about policies: learn one, see what it does, and which methods there are."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ringfence.cli.options import (
    LOG_HELP,
    add_log_options,
    add_verb,
    limit_of,
    load_log,
    parse_settings,
    reading_options,
)
from ringfence.errors import InvalidSetting


def add_train(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "train",
        train,
        "learn a policy that earns what the log supports with its cost inside the limit\n"
        "examples:\n"
        "  ringfence train my_logs.parquet --limit 30\n"
        "  ringfence train halfcheetah-torque --limit 30 --seeds 0 1 2 --task halfcheetah-torque\n"
        "  ringfence train --resume runs/my_logs-cpq-1\n\n"
        "Everything the run makes goes into its directory: configuration, metrics, checkpoints, the policy and a picture.",
    )
    parser.add_argument("log", metavar="LOG", nargs="?", help=LOG_HELP)
    add_log_options(parser)
    parser.add_argument("--method", default="cpq", help="how to learn (default cpq; `ringfence methods` lists them)")
    parser.add_argument("--preset", default="default", help="'paper' takes the method exactly as its paper prints it")
    parser.add_argument("--steps", type=int, default=50_000, metavar="N", help="updates of the policy (default 50000)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], metavar="S", help="one policy per seed (default 0)"
    )
    parser.add_argument("--task", metavar="T", help="evaluate in this simulated task while training")
    parser.add_argument("--episodes", type=int, default=10, help="episodes per evaluation (default 10)")
    parser.add_argument("--out", type=Path, metavar="RUN", help="the run's directory (default: a new one in runs/)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run that was stopped")
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="change the method's settings, e.g. anchor=2 tau=0.01",
    )
    parser.add_argument("--log-every", type=int, default=1000, metavar="N", help="steps between lines of metrics")
    parser.add_argument("--evaluate-every", type=int, default=5000, metavar="N", help="steps between evaluations")
    parser.add_argument("--checkpoint-every", type=int, default=5000, metavar="N", help="steps between checkpoints")
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard files")


def train(options: argparse.Namespace) -> int:
    from ringfence.kernels import build

    build.start()  # while the rest is imported and the log is read

    from rich.console import Console

    from ringfence import api
    from ringfence.data import summarise
    from ringfence.reports.run import plot_run, print_run

    if options.resume:
        if options.log:
            raise InvalidSetting("--resume takes its log and settings from the run; leave LOG out")
        log = api.log_of_run(options.resume)
        result = api.resume(options.resume, log)
    else:
        if options.log is None or options.limit is None:
            raise InvalidSetting("train needs a LOG and a --limit (or --resume RUN)")
        settings = parse_settings(options.set)
        settings.setdefault("discount", options.discount)
        method = api.method_of(options.method, settings, options.preset)
        api.check_request(options.out, options.task)
        log = load_log(options)
        limit = limit_of(options, log)
        assert limit is not None
        print(f"limit: {limit}", file=sys.stderr)
        for note in log.notes:
            print(f"note: {note}", file=sys.stderr)
        for warning in summarise(log, method.discount, limit).warnings:
            print(f"warning: {warning}", file=sys.stderr)
        out = options.out or api.new_run_directory(log, method)
        print(f"run: {out}", file=sys.stderr)
        result = api.train(
            log,
            method,
            limits=[limit.discounted],
            steps=options.steps,
            seeds=options.seeds,
            task=options.task,
            episodes=options.episodes,
            out=out,
            origin={"source": options.log, "options": reading_options(options)},
            log_every=options.log_every,
            evaluate_every=options.evaluate_every,
            checkpoint_every=options.checkpoint_every,
            tensorboard=options.tensorboard,
        )
    assert result.path is not None
    if result.interrupted:
        print(f"stopped and saved; go on with: ringfence train --resume {result.path}", file=sys.stderr)
        return 130
    print_run(result, Console())
    plot_run(result, log, result.path / "result.png")
    for file in sorted(result.path.glob("policy*.safetensors")):
        print(f"policy: {file}")
    print(f"picture: {result.path / 'result.png'}")
    return 0


def add_evaluate(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "evaluate",
        evaluate,
        "run a policy in a simulated task: what it earns, what it costs, how often it breaks the limit\n"
        "example:\n  ringfence evaluate runs/my_run/policy.safetensors --task hopper-torque --episodes 100",
    )
    parser.add_argument("policy", type=Path, metavar="POLICY", help="a policy file")
    parser.add_argument(
        "--task", required=True, metavar="T", help="a built-in task, or a Gymnasium id whose steps report info['cost']"
    )
    parser.add_argument("--episodes", type=int, default=10, help="how many episodes (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first episode; the others follow (default 0)")
    parser.add_argument("--limit", type=float, metavar="L", help="bound on the discounted cost (default: the policy's)")
    parser.add_argument("--sampled", action="store_true", help="draw the policy's actions instead of taking their mode")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw each episode's return against its cost")
    parser.add_argument("--video", type=Path, metavar="FILE", help="film one episode (.mp4 or .gif)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def evaluate(options: argparse.Namespace) -> None:
    from ringfence.deploy import Policy
    from ringfence.evaluation import evaluate, record_video

    policy = Policy.load(options.policy)
    limit = options.limit if options.limit is not None else policy.metadata.get("limit")
    result = evaluate(
        policy,
        options.task,
        episodes=options.episodes,
        seed=options.seed,
        limit=limit,
        discount=policy.metadata.get("discount"),
        deterministic=not options.sampled,
    )
    if options.json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        result.print()
    if options.plot:
        result.plot(options.plot)
        print(f"wrote {options.plot}", file=sys.stderr)
    if options.video:
        record_video(policy, options.task, options.video, seed=options.seed)
        print(f"wrote {options.video}", file=sys.stderr)


def add_methods(verbs: Any) -> None:
    parser = add_verb(verbs, "methods", methods, "list the methods, or one method's settings")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a method")


def methods(options: argparse.Namespace) -> None:
    from ringfence.algorithms.describe import print_methods

    print_methods(options.name)
