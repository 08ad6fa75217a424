"""The command line: one verb per function, no logic. Heavy imports wait until a verb needs them."""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ringfence import __version__
from ringfence.errors import InvalidSetting, RingfenceError

LOG_HELP = "a log file (.h5, .hdf5, .npz, .parquet, .csv), a Minari dataset, or a built-in task's name"


class Parser(argparse.ArgumentParser):
    """argparse, with errors on one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; 0 if it worked, 2 for bad input, 130 if interrupted."""
    options = build_parser().parse_args(arguments)
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        return int(options.run(options) or 0)
    except RingfenceError as error:
        print(f"ringfence {options.verb}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        sys.stderr.close()
        return 0


def build_parser() -> Parser:
    parser = Parser(prog="ringfence", description="Learn a safe policy from logged data.")
    parser.add_argument("--version", action="version", version=f"ringfence {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    for add in (add_inspect, add_train, add_evaluate, add_methods, add_collect, add_behaviour, add_theory, add_demo):
        add(verbs)
    return parser


def add_verb(verbs: Any, name: str, run: Callable[[argparse.Namespace], int | None], text: str) -> Parser:
    description, _, details = text.partition("\n")
    parser: Parser = verbs.add_parser(
        name,
        help=description,
        description=description,
        epilog=details.strip("\n") or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_log_options(parser: Parser) -> None:
    parser.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="OURS=THEIRS",
        help="what a Parquet or CSV file calls its columns, e.g. rewards=profit observations=speed,angle",
    )
    parser.add_argument("--discount", type=float, default=0.99, help="discount of rewards and costs (default 0.99)")
    parser.add_argument("--limit", type=float, metavar="L", help="the most cost that is allowed")
    parser.add_argument(
        "--limit-kind",
        choices=("discounted", "episode", "step"),
        default="discounted",
        help="what L bounds: the discounted sum of costs from any state (default), an episode's total, or a step's mean",
    )
    parser.add_argument(
        "--horizon", type=float, metavar="H", help="steps in an episode (default: the log's longest episode)"
    )


# inspect


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
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw each episode's return against its cost")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def inspect(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ringfence.data import plot_summary, print_summary, summarise

    log = load_log(options)
    limit = limit_of(options, log)
    summary = summarise(log, options.discount, limit)
    if options.json:
        print(json.dumps(summary.to_dict(), indent=2))
    else:
        print_summary(summary, Console())
    if options.plot:
        plot_summary(log, options.plot, options.discount, limit)
        print(f"wrote {options.plot}", file=sys.stderr)


# train


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
    from ringfence.training.report import plot_result, print_result

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
            origin={"source": options.log, "columns": options.columns},
            log_every=options.log_every,
            evaluate_every=options.evaluate_every,
            checkpoint_every=options.checkpoint_every,
            tensorboard=options.tensorboard,
        )
    assert result.path is not None
    if result.interrupted:
        print(f"stopped and saved; go on with: ringfence train --resume {result.path}", file=sys.stderr)
        return 130
    print_result(result, Console())
    plot_result(result, log, result.path / "result.png")
    for file in sorted(result.path.glob("policy*.safetensors")):
        print(f"policy: {file}")
    print(f"picture: {result.path / 'result.png'}")
    return 0


# evaluate


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


# methods


def add_methods(verbs: Any) -> None:
    parser = add_verb(verbs, "methods", methods, "list the methods, or one method's settings")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a method")


def methods(options: argparse.Namespace) -> None:
    from ringfence.algorithms.describe import print_methods

    print_methods(options.name)


# making logs


def add_collect(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "collect",
        collect,
        "make a log of a simulated task from a mixture of policies, by default the shipped unsafe and safe ones\n"
        "example:\n  ringfence collect --task hopper-torque --size 2000000 --out hopper.h5",
    )
    parser.add_argument("--task", required=True, metavar="T", help="a built-in task, or a Gymnasium id with a cost")
    parser.add_argument("--size", type=int, required=True, metavar="N", help="how many transitions")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to (.h5 or .parquet)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same log (default 0)")
    parser.add_argument("--policies", type=Path, nargs="+", metavar="FILE", help="policy files to mix")
    parser.add_argument("--shares", type=float, nargs="+", metavar="X", help="in which proportion (default: equal)")
    parser.add_argument("--workers", type=int, metavar="W", help="processes (default: one per core)")
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, metavar="N", help="environment steps (default: the method's)")
    parser.add_argument(
        "--limit", type=float, metavar="L", help="bound on the discounted cost, for cpo (default: task's)"
    )
    parser.add_argument("--std", type=float, help="standard deviation of the final policy's actions")
    parser.add_argument("--warm-start", type=Path, metavar="DIR", help="start from the policy of another directory")
    parser.add_argument("--workers", type=int, default=1, metavar="W", help="processes (default 1)")


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


# theory and demo


def add_theory(verbs: Any) -> None:
    parser = add_verb(verbs, "theory", theory, "check the paper's theorems on small exact problems and draw them")
    parser.add_argument(
        "--out", type=Path, default=Path("theory"), metavar="DIR", help="for pictures (default theory/)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=300, metavar="N", help="random problems per claim (default 300)")
    parser.add_argument("--logs", type=int, default=20, metavar="N", help="sampled logs per example (default 20)")
    parser.add_argument("--overwrite", action="store_true", help="replace what an earlier call wrote there")


def theory(options: argparse.Namespace) -> None:
    from rich.console import Console

    from ringfence.tabular.report import run_theory

    run_theory(
        options.out, Console(), seed=options.seed, overwrite=options.overwrite, cases=options.cases, logs=options.logs
    )


def add_demo(verbs: Any) -> None:
    parser = add_verb(verbs, "demo", demo, "make a log, learn a safe policy from it and compare (about ten minutes)")
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help="for results (default demo/)")
    parser.add_argument("--quick", action="store_true", help="a minute's version that shows the steps, not the result")


def demo(options: argparse.Namespace) -> None:
    from ringfence.experiments.demo import run_demo

    run_demo(options.out, quick=options.quick)


# shared


def load_log(options: argparse.Namespace) -> Any:
    from ringfence import api

    return api.load(options.log, **api.column_options(options.columns))


def limit_of(options: argparse.Namespace, log: Any) -> Any:
    from ringfence.limits import Limit

    if options.limit is None:
        return None
    horizon = options.horizon or float((log.episode_ends - log.episode_starts).max())
    return Limit.of(options.limit, options.limit_kind, discount=options.discount, horizon=horizon)


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE words; a value is JSON where it is valid JSON, else text."""
    settings = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InvalidSetting(f"--set takes NAME=VALUE, not {pair!r}")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return settings
