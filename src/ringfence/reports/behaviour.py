"""What the shipped policies and the logs they write are like: the numbers and pictures under `results/behaviour/`.

python -m ringfence.reports.behaviour results/behaviour
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ringfence import tasks
from ringfence.behaviour.collect import collect_dataset
from ringfence.behaviour.shipped import BEHAVIOURS, shipped_policy
from ringfence.data.dataset import Dataset
from ringfence.deploy import Policy
from ringfence.evaluation import Evaluator
from ringfence.files import atomic_write, write_json

EPISODES, MODE_EPISODES, SEED = 100, 20, 1_000_000  # seeds that neither training nor collecting used
WIDTHS, WIDTH_EPISODES = (0.05, 0.1, 0.15, 0.2, 0.3), 20
PICTURE_ROWS = 100_000
COLOURS = {"unsafe": "#d1495b", "safe": "#2e86ab"}


def evaluate_shipped(out: Path) -> list[dict[str, Any]]:
    """Each shipped policy on fresh episodes, sampled (as it writes logs) and deterministic; a JSON file for each."""
    table = []
    for task in tasks.ROBOTS:
        evaluator = Evaluator(task, parallel=20)
        for behaviour in BEHAVIOURS:
            policy = shipped_policy(task, behaviour)
            sampled = evaluator(policy, EPISODES, seed=SEED, deterministic=False)
            mode = evaluator(policy, MODE_EPISODES, seed=SEED)
            row = {
                "policy": f"{task}-{behaviour}",
                "method": policy.metadata["method"],
                "std": policy.metadata["std"],
                "sha256": policy.checksum,
                "sampled": sampled.to_dict(),
                "deterministic": mode.to_dict(),
            }
            write_json(out / f"{task}-{behaviour}.json", row)
            table.append(row)
        evaluator.close()
    return table


def markdown_table(table: list[dict[str, Any]]) -> str:
    """The table of the docs: mean (standard deviation over episodes)."""
    columns = ("return", "discounted cost", "episode cost", "length")
    lines = [
        "| policy | method | std | " + " | ".join(columns) + " | over the limit | return without noise |",
        "|---" * (len(columns) + 5) + "|",
    ]
    for row in table:
        summary = row["sampled"]["summary"]
        cells = [f"{summary[c]['mean']:.{'1' if 'disc' in c else '0'}f} ({summary[c]['std']:.1f})" for c in columns]
        share = f"{summary['share over limit']:.0%}"
        quiet = f"{row['deterministic']['summary']['return']['mean']:.0f}"
        start = (f"`{row['policy']}`", row["method"].upper(), f"{row['std']:g}")
        lines.append(f"| {' | '.join((*start, *cells, share, quiet))} |")
    return "\n".join(lines)


def width_table(out: Path) -> str:
    """Return and discounted cost of each policy when its noise is made narrower or wider: what the log's width costs."""
    lines = ["| policy | " + " | ".join(f"std {std:g}" for std in WIDTHS) + " |", "|---" * (len(WIDTHS) + 1) + "|"]
    measured = {}
    for task in tasks.ROBOTS:
        evaluator = Evaluator(task, parallel=20)
        for behaviour in BEHAVIOURS:
            artifact, cells = shipped_policy(task, behaviour).artifact, []
            for std in WIDTHS:
                log_std = np.full(artifact.action_dim, np.log(std), np.float32)
                policy = Policy(replace(artifact, tensors={**artifact.tensors, "log_std": log_std}))
                result = evaluator(policy, WIDTH_EPISODES, seed=SEED, deterministic=False)
                cells.append((float(result.returns.mean()), float(result.discounted_costs.mean())))
            measured[f"{task}-{behaviour}"] = dict(zip(map(str, WIDTHS), cells, strict=True))
            shown = " | ".join(f"{earned:.0f} / {cost:.1f}" for earned, cost in cells)
            lines.append(f"| `{task}-{behaviour}` | {shown} |")
        evaluator.close()
    write_json(out / "widths.json", {"episodes": WIDTH_EPISODES, "return, discounted cost": measured})
    return "\n".join(lines)


def episode_points(dataset: Dataset, discount: float) -> dict[str, np.ndarray]:
    """(discounted cost, return) of each episode, by source; those cut off at the end of a share are left out."""
    assert dataset.source is not None
    starts, ends = dataset.episode_starts, dataset.episode_ends
    costs, returns = dataset.cost_to_go(discount)[starts], dataset.return_to_go(1.0)[starts]
    sources = dataset.source[starts]
    horizon = dataset.metadata["horizon"]
    whole = dataset.terminations[ends - 1] | (ends - starts == horizon)
    points = np.stack([costs, returns], -1)
    return {name: points[whole & (sources == i)] for i, name in enumerate(dataset.source_names)}


def plot_dataset(dataset: Dataset, path: Path) -> None:
    """Return against discounted cost, a dot per episode, by source, the limit drawn."""
    from matplotlib.figure import Figure

    limit, discount = dataset.metadata["limit"], dataset.metadata["discount"]
    figure = Figure(figsize=(5.2, 3.7), dpi=110, layout="constrained")
    axes = figure.subplots()
    for name, points in episode_points(dataset, discount).items():
        axes.scatter(
            points[:, 0],
            points[:, 1],
            s=15,
            alpha=0.55,
            linewidths=0,
            color=COLOURS.get(name),
            label=f"{name}: {len(points)} episodes",
        )
    axes.axvline(limit, color="black", linestyle="--", linewidth=1)
    axes.set_xlim(left=0.0)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.annotate(
        f"limit {limit:g}",
        (limit, 0.0),
        (3, 3),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        fontsize=8,
    )
    axes.set(
        xlabel=f"discounted cost of the episode (at {discount:g})",
        ylabel="return of the episode",
        title=f"{dataset.name}, {len(dataset):,} transitions",
    )
    axes.title.set_fontsize(10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, markerscale=1.6, loc="upper left")
    with atomic_write(path) as temporary:
        figure.savefig(temporary)


def main(out: Path) -> None:
    for name, text in (("table.md", markdown_table(evaluate_shipped(out))), ("widths.md", width_table(out))):
        with atomic_write(out / name) as temporary:
            temporary.write_text(text + "\n")
        print(text, "\n")
    for task in tasks.ROBOTS:
        plot_dataset(collect_dataset(task, PICTURE_ROWS), out / f"{task}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results/behaviour"))
