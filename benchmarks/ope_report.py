"""Tables and pictures of what `benchmarks.ope` measured: cover, sharpness, order, danger, choice, time."""

import json

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from ringfence.files import write_json

TRAINED = ("bc", "bc-safe", "cpq")
CHOICES, AMONG = 200, 8


def report(out):
    every = [json.loads(line) for line in (out / "policies.jsonl").read_text().splitlines()]
    # Two draws of a finite problem can give the same policy: it counts once.
    rows = list(
        {
            (row["task"], row["policy"].split(",")[0], row["true_cost"], row["true_return"]): row for row in every
        }.values()
    )
    tasks = sorted({row["task"] for row in rows})
    table = {task: summary([row for row in rows if row["task"] == task]) for task in tasks}
    table["all"] = summary(rows)
    write_json(out / "summary.json", table)
    (out / "summary.md").write_text(markdown(table))
    picture(rows, tasks, out / "cost.png")
    print(markdown(table))


def summary(rows):
    judged = [row for row in rows if row["judgeable"]]
    learned = [row for row in rows if row["kind"] in TRAINED]
    cover = [row["cost_upper"] >= row["true_cost"] - 1.64 * row["true_cost_error"] for row in judged]
    strict = [row["cost_upper"] >= row["true_cost"] for row in judged]
    sizes = [max(row["true_cost"], 0.05 * row["largest_source"]) for row in judged]
    sharp = [
        row["cost_upper"] / row["true_cost"] - 1 for row in judged if row["true_cost"] > 0.05 * row["largest_source"]
    ]
    breaking = [row for row in rows if row["true_cost"] > row["limit"]]
    same_problem = {}
    for row in judged:
        same_problem.setdefault(row["policy"].split(",")[0] if row["task"] == "tabular" else row["task"], []).append(
            row
        )
    ranks = {
        signal: [
            float(spearmanr([r[signal] for r in group], [r[f"true_{signal}"] for r in group]).statistic)
            for group in same_problem.values()
            if len(group) > 4
        ]
        for signal in ("return", "cost")
    }
    chosen = choices(same_problem.values())
    return {
        "policies": len(rows),
        "unjudgeable": len(rows) - len(judged),
        "trained": len(learned),
        "trained unjudgeable": sum(not row["judgeable"] for row in learned),
        "cover": mean(strict),
        "cover, within the truth's own error": mean(cover),
        "bound above the truth, median": median(sharp),
        "error of the cost, median": median(
            [abs(row["cost"] - row["true_cost"]) / size for row, size in zip(judged, sizes, strict=True)]
        ),
        "rank correlation of return": mean(ranks["return"]),
        "rank correlation of cost": mean(ranks["cost"]),
        "break the limit": len(breaking),
        "of these blessed": sum(row["verdict"] == "inside" for row in breaking),
        "choices": chosen,
        "seconds, median": median([row["seconds"] for row in rows]),
    }


def choices(groups):
    """The rule of `choose` (without its second look) on random sets of 8 policies of one problem, at random limits: how
    often the chosen one is truly inside, and its return over that of the best one truly inside."""
    rng = np.random.default_rng(0)
    inside, share, made, refused = 0, [], 0, 0
    for group in groups:
        if len(group) < AMONG:
            continue
        costs = np.array([row["true_cost"] for row in group])
        for _ in range(CHOICES):
            few = [group[i] for i in rng.choice(len(group), AMONG, replace=False)]
            limit = rng.uniform(*np.quantile(costs, (0.2, 0.8)))
            candidates = [row for row in few if row["cost_upper"] <= limit]
            truly = [row["true_return"] for row in few if row["true_cost"] <= limit]
            if not candidates:
                refused += 1
                continue
            best = max(candidates, key=lambda row: row["return_lower"])
            made += 1
            inside += best["true_cost"] <= limit
            if truly and best["true_cost"] <= limit:
                share.append(best["true_return"] / max(truly))
    return {
        "made": made,
        "refused": refused,
        "truly inside": inside / made if made else None,
        "return of the best": mean(share),
    }


def mean(values):
    return float(np.mean(values)) if len(values) else None


def median(values):
    return float(np.median(values)) if len(values) else None


def markdown(table):
    def cell(value):
        if isinstance(value, dict):
            return ", ".join(f"{k} {cell(v)}" for k, v in value.items())
        return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)

    names = list(table)
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for measure in table["all"]:
        lines.append(f"| {measure} | " + " | ".join(cell(table[name][measure]) for name in names) + " |")
    return "\n".join(lines) + "\n"


def picture(rows, tasks, path):
    """Estimate and upper bound against the true cost."""
    figure = Figure(figsize=(3.2 * len(tasks), 3.2), dpi=120, layout="constrained")
    for axes, task in zip(np.atleast_1d(figure.subplots(1, len(tasks))), tasks, strict=True):
        mine = [row for row in rows if row["task"] == task]
        for judgeable, colour in ((True, "#2e86ab"), (False, "#bbbbbb")):
            some = [row for row in mine if row["judgeable"] == judgeable]
            true = np.array([row["true_cost"] for row in some])
            value = np.array([row["cost"] for row in some])
            upper = np.array([row["cost_upper"] for row in some])
            if len(some):
                axes.vlines(true, value, upper, color=colour, linewidth=1)
                axes.scatter(true, value, s=12, color=colour, label="judged" if judgeable else "the log cannot tell")
        most = max(row["true_cost"] for row in mine) * 1.1
        axes.plot([0, most], [0, most], color="black", linewidth=0.8)
        axes.set(
            title=task, xlabel="true discounted cost", ylabel="estimate, up to its 95 % bound", ylim=(0, 1.5 * most)
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7)
    figure.savefig(path)
