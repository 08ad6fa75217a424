"""Verbs about policies: see what one does, and which methods there are."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ringfence.cli.options import COST_HELP, LARGEST_SEED, TASK_HELP, add_verb, picture, warn_of_unfinished, whole
from ringfence.errors import InvalidSetting
from ringfence.training import defaults


def add_evaluate(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "evaluate",
        evaluate,
        "run a policy in a simulated task: what it earns, what it costs, how often it breaks the limit\n"
        "example:\n  ringfence evaluate runs/my_run/policy.safetensors --task hopper-torque --episodes 100",
    )
    parser.add_argument("policy", type=Path, metavar="POLICY", help="a policy file")
    parser.add_argument("--task", required=True, metavar="T", help=TASK_HELP)
    parser.add_argument("--cost", metavar="M:F", help=COST_HELP)
    parser.add_argument(
        "--horizon", type=whole(1), metavar="H", help="cut episodes off after H steps (default: the task's)"
    )
    parser.add_argument(
        "--episodes", type=whole(1), default=defaults.EPISODES, help="how many episodes (default %(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=whole(0, LARGEST_SEED),
        default=0,
        help="seed of the first episode; the others follow (default 0)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        metavar="L",
        help="bound on the discounted cost (default: the policy's; a policy for a range of limits has none)",
    )
    parser.add_argument("--discount", type=float, help="discount of the costs (default: the policy's)")
    parser.add_argument("--sampled", action="store_true", help="draw the policy's actions instead of taking their mode")
    told = parser.add_mutually_exclusive_group()
    told.add_argument(
        "--paced", action="store_true", help="tell the policy its costs and keep each episode inside the limit's pace"
    )
    told.add_argument(
        "--in-turns",
        action="store_true",
        help="tell the policy its costs and let a costlier one act in as many episodes as keep the mean inside the limit",
    )
    parser.add_argument("--plot", type=picture, metavar="FILE", help="draw each episode's return against its cost")
    parser.add_argument("--video", type=Path, metavar="FILE", help="film one episode (.mp4 or .gif)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def evaluate(options: argparse.Namespace) -> None:
    from ringfence.deploy import Pacer, Policy, Turns
    from ringfence.evaluation import Evaluator, record_video

    policy = Policy.load(options.policy).at_limit(options.limit)
    warn_of_unfinished({str(options.policy): policy})
    if (options.paced or options.in_turns) and options.sampled:
        name = "--paced" if options.paced else "--in-turns"
        raise InvalidSetting(
            f"{name} and --sampled exclude each other: a policy that is told its costs is deterministic"
        )
    evaluator = Evaluator(options.task, cost=options.cost, horizon=options.horizon)
    told = Pacer if options.paced else Turns if options.in_turns else None
    controller = told(policy, limit=options.limit, horizon=options.horizon) if told else policy
    result = evaluator(
        controller,
        options.episodes,
        seed=options.seed,
        limit=options.limit,
        discount=options.discount,
        deterministic=not options.sampled,
        record=True,
    )
    for sentence in evaluator.doubts(policy, result):
        print(f"warning: {sentence}", file=sys.stderr)
    if options.json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        result.print()
    if options.plot:
        result.plot(options.plot)
        print(f"wrote {options.plot}", file=sys.stderr)
    if options.video:
        simulated = {"cost": options.cost, "horizon": options.horizon}
        record_video(controller, options.task, options.video, seed=options.seed, **simulated)
        print(f"wrote {options.video}", file=sys.stderr)


def add_methods(verbs: Any) -> None:
    parser = add_verb(verbs, "methods", methods, "list the methods, or one method's settings")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a method")


def methods(options: argparse.Namespace) -> None:
    from ringfence.reports.methods import print_methods

    print_methods(options.name)
