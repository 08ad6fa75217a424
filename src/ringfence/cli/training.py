"""The verb that learns: `ringfence train`, a new run or one that goes on."""

import argparse
import math
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from ringfence.cli.options import (
    COST_HELP,
    LOG_HELP,
    TASK_HELP,
    add_log_options,
    add_verb,
    limit_of,
    limits_of,
    load_log,
    note_what_is_given,
    parse_settings,
    reading_options,
    refuse,
)
from ringfence.errors import InvalidSetting, MissingExtra
from ringfence.limits import check_range
from ringfence.training import defaults
from ringfence.training.configuration import READING

NOT_INSIDE = 3  # the exit status of --require-inside
# The options that go with --resume. All other settings are those of the run.
WHILE_RESUMING = {"resume", "steps", "other_computation", "require_inside", "task", "cost"}
OF_THE_LOG = set(READING)  # how to read a LOG that is named


def add_train(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "train",
        train,
        "learn a policy that earns what the log supports with its cost inside the limit\n"
        "examples:\n"
        "  ringfence train my_logs.parquet --limit 30\n"
        "  ringfence train halfcheetah-torque --limit 30 --seeds 0 1 2 --task halfcheetah-torque\n"
        "  ringfence train my_logs.parquet --limit-range 20 60\n"
        "  ringfence train --resume runs/my_logs-cpq-1\n"
        "  ringfence train --resume runs/my_logs-cpq-1 --steps 100000\n\n"
        "Everything the run makes goes into its directory: configuration, metrics, checkpoints, the policy, the verdict, "
        "a picture and a page for the browser.",
    )
    parser.add_argument("log", metavar="LOG", nargs="?", help=f"{LOG_HELP}; with --resume, where the log is now")
    add_log_options(parser)
    parser.add_argument(
        "--limit-range",
        type=float,
        nargs=2,
        metavar=("L", "L"),
        help="instead of --limit: one policy for every limit from the first to the second, given to it when it acts; "
        "watched and judged at the middle. Only cpq. EXPERIMENTAL: see docs/limits.md",
    )
    parser.add_argument("--method", default="cpq", help="how to learn (default cpq; `ringfence methods` lists them)")
    parser.add_argument("--preset", default="default", help="'paper' takes the method exactly as its paper prints it")
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="updates of the policy (default: the method's own, see `ringfence methods NAME`); what comes before them, "
        "such as CPQ's detector, is extra. With --resume: go on to N",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=list(defaults.SEEDS),
        metavar="S",
        help="one policy per seed (default 0)",
    )
    parser.add_argument("--task", metavar="T", help=f"evaluate in this simulated task while training: {TASK_HELP}")
    parser.add_argument("--cost", metavar="M:F", help=COST_HELP)
    parser.add_argument(
        "--episodes", type=int, default=defaults.EPISODES, help=f"episodes per evaluation (default {defaults.EPISODES})"
    )
    parser.add_argument("--out", type=Path, metavar="RUN", help="the run's directory (default: a new one in runs/)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run that was stopped, or for longer")
    parser.add_argument(
        "--other-computation",
        action="store_true",
        help="with --resume: go on although this machine computes in another way, and so to other numbers",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="change the method's settings, e.g. anchor=2 tau=0.01",
    )
    for name, default, what in (
        ("log", defaults.LOG_EVERY, "lines of metrics"),
        ("evaluate", defaults.EVALUATE_EVERY, "evaluations"),
        ("checkpoint", defaults.CHECKPOINT_EVERY, "checkpoints"),
    ):
        parser.add_argument(
            f"--{name}-every", type=int, default=default, metavar="N", help=f"steps between {what} (default {default})"
        )
    parser.add_argument(
        "--keep-every",
        type=int,
        metavar="N",
        help="keep the policies of every N steps beside those of the end, for `ringfence choose --kept` (default: none)",
    )
    parser.add_argument(
        "--holdout",
        type=float,
        default=defaults.HOLDOUT,
        metavar="SHARE",
        help=f"share of the episodes set aside to judge the policy by (default {defaults.HOLDOUT}; 0: learn from all; "
        f"logs of fewer than {defaults.LEAST_EPISODES_TO_HOLD_OUT} episodes are learned from whole)",
    )
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard files")
    parser.add_argument(
        "--require-inside",
        action="store_true",
        help=f"exit with status {NOT_INSIDE} unless every policy is inside: by the episodes that were set aside, or by the "
        "verdict of training where none judged",
    )
    note_what_is_given(parser)


def train(options: argparse.Namespace) -> int:
    from rich.console import Console

    from ringfence.reports.html.pages import write_run_page
    from ringfence.reports.judgement import print_disagreements, print_judgements
    from ringfence.reports.run import plot_run, print_run

    log, run = go_on(options) if options.resume else begin(options)
    assert run.path is not None
    if run.interrupted:
        print(f"stopped and saved; go on with: ringfence train --resume {run.path}", file=sys.stderr)
        return 130
    print_run(run, Console())
    if run.judgements:
        print_judgements(run.judgements, Console())
        print_disagreements(run.verdicts, run.judgements, Console())
    plot_run(run, log, run.path / "result.png")
    for member in run.members:
        print(f"policy: {run.directory.policy_path(member, run.members)}")
    print(f"picture: {run.path / 'result.png'}")
    try:
        print(f"page: {write_run_page(run, log)}")
    except MissingExtra as error:
        print(f"note: no page was written: {error}", file=sys.stderr)
    return NOT_INSIDE if options.require_inside and not is_inside(run) else 0


def is_inside(run: Any) -> bool:
    """Whether every policy of a run keeps its limit. Episodes that were set aside decide if they judged the policies, unless
    a simulation broke the limit; else the verdict of training does."""
    if not run.judgements:
        return all(verdict.inside for verdict in run.verdicts)
    broken = any(verdict.basis == "simulation" and verdict.judgement == "outside" for verdict in run.verdicts)
    return not broken and all(judgement.inside for judgement in run.judgements)


def go_on(options: argparse.Namespace) -> tuple[Any, Any]:
    from ringfence import api

    refuse(
        options.given - WHILE_RESUMING - (OF_THE_LOG if options.log else set()),
        "a run that goes on keeps its settings; leave it out, or start a new run with --out",
    )
    log = load_log(options) if options.log else api.log_of_run(options.resume)
    run = api.resume(
        options.resume,
        log,
        steps=options.steps,
        task=options.task,
        cost=options.cost,
        other_computation=options.other_computation,
    )
    return log, run


def begin(options: argparse.Namespace) -> tuple[Any, Any]:
    from ringfence import api, launch
    from ringfence.algorithms.named import method_of
    from ringfence.data import summarise

    if options.log is None or (options.limit is None and options.limit_range is None):
        raise InvalidSetting("train needs a LOG and a --limit (or --limit-range, or --resume RUN)")
    if options.limit is not None and options.limit_range is not None:
        raise InvalidSetting("--limit trains a policy for one limit, --limit-range one for a range: give one of them")
    if options.other_computation:
        raise InvalidSetting("--other-computation goes with --resume")
    method = method_of(options.method, settings_of(options), options.preset)
    launch.check_request(options.out, options.task, options.cost, options.episodes)
    if options.limit_range is not None:
        require_ranges(method)
        check_range(options.limit_range)
    log = load_log(options)
    if options.limit_range is None:
        limit = limit_of(options, log, method.discount)
    else:
        least, greatest = limits_of(options, log, method.discount)
        method = replace(method, limits=(least.discounted, greatest.discounted))
        limit = replace(least, discounted=launch.watched_limit(method))
        print(f"limits: from {least}\n        to {greatest} (experimental)\nwatched at the middle:", file=sys.stderr)
    print(f"limit: {limit}", file=sys.stderr)
    for note in log.notes:
        print(f"note: {note}", file=sys.stderr)
    for warning in summarise(log, method.discount, limit).warnings:
        print(f"warning: {warning}", file=sys.stderr)
    out = options.out or new_run_directory(log, method)
    print(f"run: {out}", file=sys.stderr)
    run = api.train(
        log,
        method,
        limits=[limit.discounted],
        steps=options.steps,
        seeds=options.seeds,
        task=options.task,
        cost=options.cost,
        horizon=whole_steps(options.horizon) if options.task else None,
        episodes=options.episodes,
        out=out,
        origin={"source": options.log, "options": reading_options(options)},
        log_every=options.log_every,
        evaluate_every=options.evaluate_every,
        checkpoint_every=options.checkpoint_every,
        keep_every=options.keep_every,
        tensorboard=options.tensorboard,
        holdout=holdout_of(options, log, limit),
    )
    return log, run


def holdout_of(options: argparse.Namespace, log: Any, limit: Any) -> float:
    """The share to set aside: as asked for, or the default where the log has enough episodes and the limit is meant for
    episodes as long as the log's, over which policies are judged."""
    if options.limit_kind != "discounted" and limit.horizon != log.horizon:
        meant = f"the limit is meant for {limit.horizon:g} steps, and policies are judged over the log's {log.horizon}"
        if options.holdout > 0 and "holdout" in options.given:
            raise InvalidSetting(f"--holdout {options.holdout:g}: {meant}; leave --horizon or --holdout out")
        print(f"note: {meant}: no episode is set aside, and the policy is not judged by any", file=sys.stderr)
        return 0.0
    if "holdout" in options.given or len(log.episode_starts) >= defaults.LEAST_EPISODES_TO_HOLD_OUT:
        return float(options.holdout)
    print(
        f"note: the log has {len(log.episode_starts)} episodes: none is set aside, and the policy is not judged by any",
        file=sys.stderr,
    )
    return 0.0


def whole_steps(horizon: float | None) -> int | None:
    """Where simulated episodes are cut off: a limit may be meant for any horizon, steps are whole."""
    return None if horizon is None or math.isinf(horizon) else math.ceil(horizon)


def require_ranges(method: Any) -> None:
    from ringfence.algorithms import METHODS

    if not hasattr(method, "limits"):
        able = ", ".join(name for name, kind in METHODS.items() if hasattr(kind, "limits"))
        raise InvalidSetting(f"--limit-range: {method.name} takes one limit; for a range of limits use --method {able}")


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of the method; its discount is given once, by --discount or by --set."""
    settings = parse_settings(options.set)
    if "limit" in settings:
        raise InvalidSetting("the limit is given by --limit, not by --set")
    if "limits" in settings:
        raise InvalidSetting("a range of limits is given by --limit-range, not by --set")
    if "discount" not in settings:
        settings["discount"] = options.discount
    elif "discount" in options.given and settings["discount"] != options.discount:
        raise InvalidSetting(
            f"--discount {options.discount} and --set discount={settings['discount']}: give one of them"
        )
    return settings


def new_run_directory(log: Any, method: Any) -> Path:
    """runs/LOG-METHOD-N with the first N that is free."""
    stem = Path(log.name).stem or "log"
    return next(p for n in count(1) if not (p := Path("runs") / f"{stem}-{method.name}-{n}").exists())
