"""Verbs that judge policies from a log alone: `ringfence judge`, `ringfence choose`."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringfence.cli.options import (
    LARGEST_SEED,
    LOG_HELP,
    add_log_options,
    add_verb,
    limit_of,
    load_log,
    note_what_is_given,
    refuse,
    warn_of_unfinished,
    whole,
)
from ringfence.cli.training import NOT_INSIDE
from ringfence.errors import InvalidSetting
from ringfence.training import defaults
from ringfence.training.configuration import READING


def add_confidence(parser: argparse.ArgumentParser) -> None:
    default = defaults.CONFIDENCE
    parser.add_argument(
        "--confidence", type=float, default=default, help=f"of each one-sided bound (default {default})"
    )


def add_judge(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "judge",
        judge,
        "say from a log alone what a policy will earn and cost, and how sure that is\n"
        "examples:\n"
        "  ringfence judge runs/my_run\n"
        "  ringfence judge policy.safetensors other_log.parquet --limit 30 --against old_policy.safetensors\n\n"
        "A policy is not judged by rows that it learned from: of its run's own log the episodes that were set aside are "
        "taken (`ringfence train --holdout`), of another log those that the run did not learn from.",
    )
    parser.add_argument("policy", type=Path, metavar="POLICY", help="a policy file, or a run's directory")
    parser.add_argument("log", metavar="LOG", nargs="?", help=f"{LOG_HELP} (default: the run's own)")
    add_log_options(parser)
    add_confidence(parser)
    parser.add_argument(
        "--against", type=Path, nargs="+", default=[], metavar="POLICY", help="policies to compare with"
    )
    parser.add_argument(
        "--seed", type=whole(0, LARGEST_SEED), default=0, help="of features and groups of episodes (default 0)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--require-inside", action="store_true", help=f"exit with status {NOT_INSIDE} unless the policy is inside"
    )
    note_what_is_given(parser)


def judge(options: argparse.Namespace) -> int:
    from rich.console import Console

    from ringfence.evaluation.ope.judge import Judge
    from ringfence.evaluation.ope.rows import rows_to_judge
    from ringfence.evaluation.ope.runs import load_policies
    from ringfence.reports.judgement import print_judgements

    if options.limit_kind == "discounted":
        refuse(options.given & {"horizon"}, "only for a limit per step or episode; policies are judged over the log's")
    policies, run = load_policies(options.policy)
    discount = discount_of(options, policies)
    log = log_to_judge_by(options, run)
    rows = rows_to_judge(run, log)
    if rows.note:
        print(rows.note, file=sys.stderr)
    require_horizon(options, log)
    bound = limit_of(options, log, discount)
    asked = None if bound is None else bound.discounted
    compared = {name: (policy, run) for name, policy in policies.items()}
    for path in options.against:
        others, their_run = load_policies(path)
        compared |= {name: (policy, their_run) for name, policy in others.items()}
    warn_of_unfinished({name: policy for name, (policy, _) in compared.items()})
    warn_of_names({name: policy for name, (policy, _) in compared.items()}, log)
    limits = {name: limit_for(policy, asked, discount, name) for name, (policy, _) in compared.items()}
    judging_from = Judge(rows.judging, rows.reference, discount=discount, horizon=log.horizon, seed=options.seed)
    found = [
        judging_from(
            policy, limits[name], confidence=options.confidence, name=name, rows_were=rows.were(policy, made_by)
        )
        for name, (policy, made_by) in compared.items()
    ]
    if options.json:
        print(json.dumps([judgement.to_dict() for judgement in found], indent=2))
    else:
        print_judgements(found, Console())
    inside = all(judgement.inside for judgement in found[: len(policies)])
    return NOT_INSIDE if options.require_inside and not inside else 0


def require_horizon(options: argparse.Namespace, log: Any) -> None:
    """Raise if the limit is meant for another number of steps than policies are judged over: it would not fit their cost."""
    if options.horizon is not None and options.horizon != log.horizon:
        raise InvalidSetting(
            f"--horizon {options.horizon:g}: policies are judged over the {log.horizon} steps of the log's longest episode, "
            f"and a limit for another number of steps does not fit what they cost there; leave --horizon out"
        )


def limit_for(policy: Any, asked: float | None, discount: float, name: str) -> float | None:
    """The limit to judge a policy at: the one that was asked for, else the one that it was trained for, if any. Raise if
    that one bounds a sum at another discount than the one judged."""
    if asked is not None:
        return asked
    own: float | None = policy.metadata.get("limit")
    trained = policy.metadata.get("discount", discount)
    if own is not None and trained != discount:
        raise InvalidSetting(
            f"{name} was trained for a limit of {own:g} at a discount of {trained:g}, and costs are discounted by "
            f"{discount:g} here; say at which limit to judge with --limit"
        )
    return own


def warn_of_names(policies: Mapping[str, Any], log: Any) -> None:
    """Warn of policies that know the log's columns by other names; raise if these are in another order."""
    from ringfence.evaluation.ope.columns import check_columns

    for name, policy in policies.items():
        for sentence in check_columns(policy.artifact, log):
            print(f"warning: {name}: {sentence}; make sure that they are the same", file=sys.stderr)


def discount_of(options: argparse.Namespace, policies: Any) -> float:
    """The policy's own discount; one on the command line is for a policy that has none."""
    own = {policy.metadata.get("discount") for policy in policies.values()} - {None}
    if own and "discount" in options.given and own != {options.discount}:
        raise InvalidSetting(f"--discount {options.discount}: the policy was trained at {sorted(own)[0]}; leave it out")
    return float(own.pop() if own else options.discount)


def log_to_judge_by(options: argparse.Namespace, run: Any) -> Any:
    from ringfence import api

    if options.log is not None:
        return load_log(options)
    refuse(options.given & set(READING), "only for a LOG that is named; a run's own is read as the run read it")
    if run is None:
        raise InvalidSetting(f"{options.policy} belongs to no run; name a LOG to judge it by")
    return api.log_of_run(run.path)


def add_choose(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "choose",
        choose,
        "choose a policy without a simulator: the most return among those whose cost is inside the limit\n"
        "example:\n  ringfence choose runs/my_log-cpq-1 runs/my_log-bc-safe-1 --limit 30\n\n"
        "The runs must have set the same episodes of the same log aside. Half of these choose; the other half judge the "
        "winner again.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories, or policy files in them")
    parser.add_argument("--limit", type=float, metavar="L", help="bound on the discounted cost (default: the runs')")
    parser.add_argument(
        "--kept", action="store_true", help="also among the policies kept on the way (`ringfence train --keep-every N`)"
    )
    add_confidence(parser)
    parser.add_argument("--seed", type=whole(0, LARGEST_SEED), default=0, help="which episodes choose (default 0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def choose(options: argparse.Namespace) -> int:
    from rich.console import Console

    from ringfence import api
    from ringfence.evaluation.ope.runs import choose_among_runs, load_policies
    from ringfence.reports.judgement import print_choice

    run = load_policies(options.runs[0])[1]
    if run is None or run.path is None:
        raise InvalidSetting(f"{options.runs[0]} belongs to no run; choose among run directories")
    log = api.log_of_run(run.path)
    for path in options.runs:
        warn_of_unfinished(load_policies(path)[0])
    choice = choose_among_runs(
        options.runs, log, options.limit, kept=options.kept, confidence=options.confidence, seed=options.seed
    )
    if options.json:
        print(json.dumps(choice.to_dict(), indent=2))
    else:
        print_choice(choice, Console())
    return 0 if choice.chosen is not None else NOT_INSIDE
