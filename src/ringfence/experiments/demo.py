"""The demonstration: from two controllers' log to a policy that earns more than the safe one, inside the limit.

A log of HalfCheetah is made by an unsafe and a safe policy, half each. CPQ learns from it with the limit l = 30 and is
put beside the two behaviours, cloning of the whole log and cloning of its safe half. Whatever learns does so with three
seeds. All policies are the last iterates; all evaluations use the same fresh episodes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ringfence import api
from ringfence.behaviour.collect import collect
from ringfence.behaviour.shipped import shipped_policy
from ringfence.data import load_file, summarise
from ringfence.deploy import Policy
from ringfence.evaluation import Evaluation, evaluate
from ringfence.files import write_json
from ringfence.limits import Limit
from ringfence.progress import counting
from ringfence.reports.log import plot_summary, print_summary
from ringfence.training import Run

TASK, LIMIT, DISCOUNT, HORIZON = "halfcheetah-torque", 30.0, 0.99, 1000
SEEDS = (0, 1, 2)
TEST_SEED = 50_000  # episodes that no evaluation during training has used

Tested = dict[str, list[Evaluation]]  # of each way to get a policy, one for every seed


@dataclass(frozen=True)
class Scale:
    """How long everything takes."""

    rows: int
    steps: int
    cloning_steps: int
    detector_steps: int
    episodes: int


FULL = Scale(rows=200_000, steps=10_000, cloning_steps=5_000, detector_steps=5_000, episodes=20)
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
    method = api.method_of(name, {"limit": LIMIT, "discount": DISCOUNT, **settings})
    often: dict[str, Any] = dict.fromkeys(("evaluate_every", "checkpoint_every"), max(steps // 10, 1))
    return api.train(log, method, seeds=SEEDS, steps=steps, task=task, out=out, **often)


def mean_return(seeds: list[Evaluation]) -> float:
    return float(np.mean([evaluation.returns.mean() for evaluation in seeds]))


def mean_cost(seeds: list[Evaluation]) -> float:
    return float(np.mean([evaluation.discounted_costs.mean() for evaluation in seeds]))


def by_seed(means: list[float], digits: int) -> str:
    """The mean over seeds, and the least and the greatest of them."""
    spread = f"  ({min(means):.{digits}f} to {max(means):.{digits}f})" if len(means) > 1 else ""
    return f"{np.mean(means):.{digits}f}{spread}"


def print_comparison(tested: Tested, console: Console) -> None:
    title = f"{TASK}, limit {LIMIT:g}: mean over {len(SEEDS)} seeds (least to greatest seed)"
    table = Table(title=title, title_justify="left")
    for column in ("", "return", "discounted cost", "episode cost", "episodes over the limit"):
        table.add_column(column, justify="left" if not column else "right")
    for name, seeds in tested.items():
        table.add_row(
            name,
            by_seed([e.returns.mean() for e in seeds], 0),
            by_seed([e.discounted_costs.mean() for e in seeds], 1),
            f"{np.mean([e.costs.mean() for e in seeds]):.0f}",
            f"{np.mean([e.share_over_limit or 0.0 for e in seeds]):.0%}",
            style="" if mean_cost(seeds) <= LIMIT else "red",
        )
    console.print(table)
    console.print(conclusion(tested), highlight=False)


def conclusion(tested: Tested) -> str:
    """What the numbers say of CPQ against the best other policy inside the limit."""
    ours, cost = mean_return(tested["CPQ"]), mean_cost(tested["CPQ"])
    inside = {name: mean_return(e) for name, e in tested.items() if name != "CPQ" and mean_cost(e) <= LIMIT}
    if cost > LIMIT:
        return f"CPQ does not keep the limit here: {cost:.1f} against {LIMIT:g}."
    if not inside:
        return f"CPQ keeps the limit and earns {ours:.0f}; nothing else keeps it."
    best = max(inside, key=lambda name: inside[name])
    return (
        f"CPQ keeps the limit ({cost:.1f} of {LIMIT:g}) and earns {compared(tested['CPQ'], tested[best])} "
        f"the best of the others that keep it ({best}, {inside[best]:.0f})."
    )


def compared(ours: list[Evaluation], theirs: list[Evaluation]) -> str:
    """Such as "12% more than"; "as much as" where the seeds of both overlap."""
    one, other = ([evaluation.returns.mean() for evaluation in seeds] for seeds in (ours, theirs))
    if max(min(one), min(other)) <= min(max(one), max(other)):
        return "as much as"
    ratio = np.mean(one) / np.mean(other)
    return f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'} than"


def plot_demo(run: Run, tested: Tested, path: Path) -> None:
    """Return and discounted cost over training with the limit drawn, and every policy's test episodes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), dpi=120, layout="constrained")
    earned, spent, final = figure.subplots(1, 3)
    for axes, name, label in ((earned, "return", "return"), (spent, "discounted_cost", "discounted cost")):
        for i, seed in enumerate(SEEDS):
            rows = [row for row in run.evaluations if row["seed"] == seed]
            steps, means = ([row[key] for row in rows] for key in ("step", name))
            spread = np.array([row[f"{name}_std"] for row in rows])
            axes.plot(steps, means, color="C0", alpha=1 - 0.25 * i, label=f"seed {seed}")
            axes.fill_between(steps, means - spread, means + spread, color="C0", alpha=0.1, linewidth=0)
        axes.set(xlabel="training step", title=f"CPQ, {len(SEEDS)} seeds: {label}")
    spent.axhline(LIMIT, color="black", linestyle="--", linewidth=1)
    markers = {"unsafe behaviour": ("C3", "x"), "safe behaviour": ("C2", "+"), "CPQ": ("C0", "*")}
    for i, (name, seeds) in enumerate(tested.items()):
        colour, marker = markers.get(name, (f"C{4 + i}", "o"))
        costs = np.concatenate([evaluation.discounted_costs for evaluation in seeds])
        returns = np.concatenate([evaluation.returns for evaluation in seeds])
        final.scatter(costs, returns, s=50 if name == "CPQ" else 18, color=colour, marker=marker, label=name, alpha=0.7)
    final.axvline(LIMIT, color="black", linestyle="--", linewidth=1)
    final.annotate(
        f"limit {LIMIT:g}", (LIMIT, 0), (3, 3), xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8
    )  # fmt: skip
    final.set(xlabel=f"discounted cost (at {DISCOUNT:g})", ylabel="return", title="test episodes of every seed")
    final.legend(fontsize=7, frameon=False)
    for axes in (earned, spent, final):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
