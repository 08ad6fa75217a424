"""The demonstration: from two controllers' log to a policy that earns more than the safe one, inside the limit.

A log of HalfCheetah is made by an unsafe and a safe policy, half each. CPQ learns from it with the limit l = 30 and is
put beside the two behaviours, cloning of the whole log and cloning of its safe half. Whatever learns does so with three
seeds. All policies are the last iterates; all evaluations use the same fresh episodes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ringfence import api
from ringfence.algorithms.named import method_of
from ringfence.behaviour.collect import collect
from ringfence.behaviour.shipped import shipped_policy
from ringfence.data import load_file, summarise
from ringfence.deploy import Policy
from ringfence.evaluation import evaluate
from ringfence.files import write_json
from ringfence.limits import Limit
from ringfence.progress import counting
from ringfence.reports.demo import Tested, plot_demo, print_comparison
from ringfence.reports.log import plot_summary, print_summary
from ringfence.training import Run

TASK, LIMIT, DISCOUNT, HORIZON = "halfcheetah-torque", 30.0, 0.99, 1000
SEEDS = (0, 1, 2)
TEST_SEED = 50_000  # episodes that no evaluation during training has used


@dataclass(frozen=True)
class Scale:
    """How long everything takes."""

    rows: int
    steps: int
    cloning_steps: int
    detector_steps: int
    episodes: int


# As many steps as CPQ's critics need: `training.verdict.critic_steps`.
FULL = Scale(rows=200_000, steps=15_000, cloning_steps=5_000, detector_steps=5_000, episodes=20)
QUICK = Scale(rows=4_000, steps=300, cloning_steps=300, detector_steps=200, episodes=2)


def run_demo(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Make the log, train, evaluate, print a table and write figures into `out`. Run again, it goes on where it was."""
    console, scale = Console(), QUICK if quick else FULL
    console.rule("1  A log from two controllers, one of them unsafe")
    log_file = out / "log.h5"
    if not log_file.exists():
        with counting(f"making {scale.rows:,} rows of {TASK}", "rows") as progress:
            collect(TASK, scale.rows, log_file, progress=progress)
    log = load_file(log_file)
    limit = Limit(LIMIT, DISCOUNT, HORIZON)
    print_summary(summarise(log, DISCOUNT, limit), console)
    plot_summary(log, out / "log.png", DISCOUNT, limit, overwrite=True)

    console.rule("2  Learn from it without touching the robot")
    runs = {
        "cloning everything": learn(out / "bc", log_file, "bc", scale.cloning_steps),
        "cloning the safe half": learn(out / "bc-safe", log_file, "bc-safe", scale.cloning_steps),
        "CPQ": learn(out / "cpq", log_file, "cpq", scale.steps, cvae_steps=scale.detector_steps, task=TASK),
    }

    console.rule("3  Put everything to the test")
    policies: dict[str, tuple[list[Policy], bool]] = {
        "unsafe behaviour": ([shipped_policy(TASK, "unsafe")], False),
        "safe behaviour": ([shipped_policy(TASK, "safe")], False),
    }
    policies |= {name: (run.policies, True) for name, run in runs.items()}
    tested: Tested = {}
    with counting("evaluating", "policies") as progress:
        for i, (name, (seeds, deterministic)) in enumerate(policies.items()):
            options: dict[str, Any] = {"episodes": scale.episodes, "seed": TEST_SEED, "limit": LIMIT}
            tested[name] = [evaluate(policy, TASK, deterministic=deterministic, **options) for policy in seeds]
            progress(i + 1, len(policies))
    print_comparison(tested, console)
    plot_demo(runs["CPQ"], tested, out / "demo.png")
    results = {name: [evaluation.to_dict() for evaluation in seeds] for name, seeds in tested.items()}
    write_json(out / "results.json", {"task": TASK, "scale": vars(scale), "seeds": SEEDS, "policies": results})
    console.print(
        f"figures: {out / 'log.png'}, {out / 'demo.png'}; runs: {out / 'bc'}, {out / 'bc-safe'}, {out / 'cpq'}"
    )
    return results


def learn(out: Path, log: Path, name: str, steps: int, *, task: str | None = None, **settings: Any) -> Run:
    """Train, or go on with a run that was stopped."""
    if (out / "config.json").exists():
        return api.resume(out)
    method = method_of(name, {"limit": LIMIT, "discount": DISCOUNT, **settings})
    often: dict[str, Any] = dict.fromkeys(("evaluate_every", "checkpoint_every"), max(steps // 10, 1))
    return api.train(log, method, seeds=SEEDS, steps=steps, task=task, out=out, **often)
