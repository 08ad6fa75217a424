"""The demonstration: one log of two controllers, four limits, a policy for each.

A log of HalfCheetah is made by an unsafe and a safe policy, half each. CPQ learns from it with four limits on the cost, in
one program, alone and with a pacer, and is put beside the two behaviours, cloning of the whole log and cloning of what is
inside each limit. All policies are the last iterates; all evaluations use the same fresh episodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ringfence import api
from ringfence.algorithms import CPQ, BCSafe
from ringfence.algorithms.named import method_of
from ringfence.behaviour.collect import collect
from ringfence.behaviour.shipped import shipped_policy
from ringfence.data import Dataset, load_file, summarise
from ringfence.deploy import Pacer, Policy
from ringfence.deploy.pacer import has_gains
from ringfence.errors import WouldOverwrite
from ringfence.evaluation import Evaluator
from ringfence.experiments.cell import TEST_SEED
from ringfence.files import write_json
from ringfence.limits import DISCOUNT, Limit
from ringfence.progress import counting
from ringfence.reports.demo import CLONE, OURS, PACED, Tested, plot_demo, print_comparison
from ringfence.reports.log import plot_summary, print_summary
from ringfence.training import Run, RunDirectory
from ringfence.training.defaults import critic_steps

TASK, HORIZON = "halfcheetah-torque", 1000
LIMITS = (30.0, 40.0, 50.0, 60.0)  # between the safe controller's cost and the unsafe one's
SEED = 20  # not one of those that the default was decided on


@dataclass(frozen=True)
class Scale:
    """How long everything takes."""

    rows: int
    steps: int
    cloning_steps: int
    episodes: int
    settings: dict[str, Any]


# CPQ's default makes more than three times as many steps. A demo is to be short: these are as many as the critics need.
FULL = Scale(rows=200_000, steps=critic_steps(CPQ.tau, DISCOUNT), cloning_steps=5_000, episodes=20, settings={})
QUICK = Scale(rows=4_000, steps=300, cloning_steps=300, episodes=2, settings={"hidden": (32, 32), "cvae_steps": 200})


def run_demo(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Make the log, train, evaluate, print a table and write figures into `out`. Run again, it goes on where it was."""
    console, scale = Console(), QUICK if quick else FULL
    console.rule("1  A log from two controllers, one of them unsafe")
    log_file = out / "log.h5"
    if not log_file.exists():
        with counting(f"making {scale.rows:,} rows of {TASK}", "rows") as progress:
            collect(TASK, scale.rows, log_file, progress=progress)
    log = load_file(log_file)
    if len(log) != scale.rows:
        raise WouldOverwrite(
            f"{out} holds a demo with a log of {len(log):,} rows, not of {scale.rows:,} (--quick is a smaller one); choose "
            "another --out, or remove it"
        )
    lowest = Limit(LIMITS[0], DISCOUNT, HORIZON)
    print_summary(summarise(log, DISCOUNT, lowest), console)
    plot_summary(log, out / "log.png", DISCOUNT, lowest, overwrite=True)

    console.rule(f"2  Learn from it without touching the robot, at the limits {', '.join(f'{x:g}' for x in LIMITS)}")
    clones = {
        limits: learn(out / f"bc-safe-{limits[0]:g}", log_file, "bc-safe", scale.cloning_steps, limits[:1])
        for limits in alike(log)
    }
    everything = learn(out / "bc", log_file, "bc", scale.cloning_steps, LIMITS[:1])
    ours = learn(out / "cpq", log_file, "cpq", scale.steps, LIMITS, task=TASK, **scale.settings)

    console.rule("3  Put everything to the test")
    learned = list(zip(ours.members, ours.policies, strict=True))
    policies: list[tuple[str, Sequence[float | None], Policy | Pacer, bool]] = [
        ("unsafe behaviour", [None], shipped_policy(TASK, "unsafe"), False),
        ("safe behaviour", [None], shipped_policy(TASK, "safe"), False),
        ("cloning everything", [None], everything.policy, True),
        *((CLONE, limits, run.policy, True) for limits, run in clones.items()),
        *((OURS, [member.limit], policy, True) for member, policy in learned),
        *((PACED, [member.limit], Pacer(policy), True) for member, policy in learned if has_gains(policy.artifact)),
    ]
    tested: Tested = []
    evaluator = Evaluator(TASK)
    with counting("evaluating", "policies") as progress:
        for i, (name, limits, policy, deterministic) in enumerate(policies):
            found = evaluator(policy, scale.episodes, seed=TEST_SEED, discount=DISCOUNT, deterministic=deterministic)
            tested += [(name, limit, found if limit is None else replace(found, limit=limit)) for limit in limits]
            progress(i + 1, len(policies))
    print_comparison(tested, console)
    plot_demo(tested, out / "demo.png")
    results = [{"policy": name, "limit": limit, **found.to_dict()} for name, limit, found in tested]
    settings = {"task": TASK, "scale": vars(scale), "seed": SEED, "policies": results}
    write_json(out / "results.json", settings)
    console.print(
        f"figures: {out / 'log.png'}, {out / 'demo.png'}; runs: {out / 'bc'}, {out / 'cpq'} and the clones beside them"
    )
    return settings


def alike(log: Dataset, limits: Sequence[float] = LIMITS) -> list[tuple[float, ...]]:
    """The limits, those together at which the same part of the log is inside: one clone serves them all."""
    found: dict[str, list[float]] = {}
    for limit in limits:
        found.setdefault(BCSafe(discount=DISCOUNT).restrict(log, [limit]).fingerprint, []).append(limit)
    return [tuple(together) for together in found.values()]


def learn(
    out: Path, log: Path, name: str, steps: int, limits: Sequence[float], *, task: str | None = None, **settings: Any
) -> Run:
    """Train, or go on with a run that was stopped."""
    if RunDirectory(out).is_run:
        return api.resume(out)
    method = method_of(name, {"discount": DISCOUNT, **settings})
    often: dict[str, Any] = dict.fromkeys(("evaluate_every", "checkpoint_every"), max(steps // 5, 1))
    return api.train(log, method, seeds=(SEED,), limits=limits, steps=steps, task=task, episodes=5, out=out, **often)
