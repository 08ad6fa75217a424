"""The demonstration: from two controllers' log to a policy that is better than either inside the limit.

A log of HalfCheetah is made by an unsafe and a safe policy, half each. CPQ learns from it with the limit l = 30 and is
put beside the two behaviours, cloning of the whole log and cloning of its safe half. All policies are the last
iterates; all evaluations use the same fresh episodes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ringfence import api
from ringfence.behaviour.collect import collect
from ringfence.behaviour.shipped import shipped_policy
from ringfence.data import load_file, plot_summary, print_summary, summarise
from ringfence.deploy import Policy
from ringfence.evaluation import Evaluation, evaluate
from ringfence.files import write_json
from ringfence.limits import Limit
from ringfence.progress import counting
from ringfence.training import Result

TASK, LIMIT, DISCOUNT, HORIZON = "halfcheetah-torque", 30.0, 0.99, 1000
TEST_SEED = 50_000  # episodes that no evaluation during training has used


@dataclass(frozen=True)
class Scale:
    """How long everything takes."""

    rows: int
    steps: int
    cloning_steps: int
    detector_steps: int
    episodes: int


FULL = Scale(rows=200_000, steps=25_000, cloning_steps=10_000, detector_steps=5_000, episodes=20)
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
    policies: dict[str, tuple[Policy, bool]] = {
        "unsafe behaviour": (shipped_policy(TASK, "unsafe"), False),
        "safe behaviour": (shipped_policy(TASK, "safe"), False),
    }
    policies |= {name: (run.policy, True) for name, run in runs.items()}
    tested = {}
    with counting("evaluating", "policies") as progress:
        for i, (name, (policy, deterministic)) in enumerate(policies.items()):
            tested[name] = evaluate(
                policy, TASK, episodes=scale.episodes, seed=TEST_SEED, limit=LIMIT, deterministic=deterministic
            )
            progress(i + 1, len(policies))
    print_comparison(tested, console)
    plot_demo(runs["CPQ"], tested, out / "demo.png")
    results = {name: evaluation.to_dict() for name, evaluation in tested.items()}
    write_json(out / "results.json", {"scale": vars(scale), "policies": results})
    console.print(f"figures: {out / 'log.png'}, {out / 'demo.png'}; policy: {out / 'cpq' / 'policy.safetensors'}")
    return results


def learn(out: Path, log: Path, name: str, steps: int, *, task: str | None = None, **settings: Any) -> Result:
    """Train, or go on with a run that was stopped."""
    if (out / "config.json").exists():
        return api.resume(out)
    method = api.method_of(name, {"limit": LIMIT, "discount": DISCOUNT, **settings})
    every = max(steps // 10, 1)
    return api.train(log, method, steps=steps, task=task, out=out, evaluate_every=every, checkpoint_every=every)


def print_comparison(tested: dict[str, Evaluation], console: Console) -> None:
    table = Table(title=f"{TASK}, limit {LIMIT:g}", title_justify="left")
    for column in ("", "return", "discounted cost", "episode cost", "episodes over the limit"):
        table.add_column(column, justify="left" if not column else "right")
    for name, result in tested.items():
        over = result.share_over_limit or 0.0
        inside = result.discounted_costs.mean() <= LIMIT
        table.add_row(
            name,
            f"{result.returns.mean():.0f} ± {result.returns.std():.0f}",
            f"{result.discounted_costs.mean():.1f} ± {result.discounted_costs.std():.1f}",
            f"{result.costs.mean():.0f}",
            f"{over:.0%}",
            style="" if inside else "red",
        )
    console.print(table)
    console.print(conclusion(tested), highlight=False)


def conclusion(tested: dict[str, Evaluation]) -> str:
    """What the numbers say of CPQ against the best other policy inside the limit."""
    ours = tested["CPQ"]
    inside = {n: e for n, e in tested.items() if n != "CPQ" and e.discounted_costs.mean() <= LIMIT}
    if ours.discounted_costs.mean() > LIMIT:
        return f"CPQ does not keep the limit here: {ours.discounted_costs.mean():.1f} against {LIMIT:g}."
    if not inside:
        return f"CPQ keeps the limit and earns {ours.returns.mean():.0f}; nothing else keeps it."
    best = max(inside, key=lambda n: float(inside[n].returns.mean()))
    ratio = ours.returns.mean() / inside[best].returns.mean()
    word = "more than" if ratio > 1 else "less than"
    return (
        f"CPQ keeps the limit ({ours.discounted_costs.mean():.1f} of {LIMIT:g}) and earns {abs(ratio - 1):.0%} {word} the "
        f"best of the others that keep it ({best}, {inside[best].returns.mean():.0f})."
    )


def plot_demo(run: Result, tested: dict[str, Evaluation], path: Path) -> None:
    """Return and discounted cost over training with the limit drawn, and every policy's test episodes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), dpi=120, layout="constrained")
    earned, spent, final = figure.subplots(1, 3)
    steps = [row["step"] for row in run.evaluations]
    for axes, name, label in ((earned, "return", "return"), (spent, "discounted_cost", "discounted cost")):
        means = [row[name] for row in run.evaluations]
        spreads = [row[f"{name}_std"] for row in run.evaluations]
        band = (
            [m - s for m, s in zip(means, spreads, strict=True)],
            [m + s for m, s in zip(means, spreads, strict=True)],
        )
        axes.plot(steps, means, color="C0")
        axes.fill_between(steps, *band, color="C0", alpha=0.2, linewidth=0)
        axes.set(xlabel="training step", title=f"CPQ: {label}")
    spent.axhline(LIMIT, color="black", linestyle="--", linewidth=1)
    markers = {"unsafe behaviour": ("C3", "x"), "safe behaviour": ("C2", "+"), "CPQ": ("C0", "*")}
    for i, (name, result) in enumerate(tested.items()):
        colour, marker = markers.get(name, (f"C{4 + i}", "o"))
        size = 70 if name == "CPQ" else 22
        final.scatter(result.discounted_costs, result.returns, s=size, color=colour, marker=marker, label=name)
    final.axvline(LIMIT, color="black", linestyle="--", linewidth=1)
    final.annotate(
        f"limit {LIMIT:g}", (LIMIT, 1), (3, -3), xycoords=("data", "axes fraction"), textcoords="offset points",
        va="top", fontsize=8,
    )  # fmt: skip
    final.set(xlabel=f"discounted cost (at {DISCOUNT:g})", ylabel="return", title="test episodes")
    final.legend(fontsize=7, frameon=False)
    for axes in (earned, spent, final):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
