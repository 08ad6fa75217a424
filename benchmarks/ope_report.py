"""Tables and pictures of what `benchmarks.ope` measured: cover, sharpness, order, danger, choice, tails, time."""

import json

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from benchmarks.ope_policies import KINDS, VARIANT
from ringfence.files import write_json

CHOICES, AMONG = 200, 8
LEARNED = (*KINDS, VARIANT)


def report(out):
    every = [json.loads(line) for line in (out / "policies.jsonl").read_text().splitlines()]
    # Two draws of a finite problem, or training for two limits, can give the same policy: it counts once, and as one that
    # was looked at if one of them was.
    every.sort(key=lambda row: row.get("part") == "held-out", reverse=True)
    rows = list({(row["task"], row["true_cost"], row["true_return"]): row for row in every}.values())
    tasks = sorted({row["task"] for row in rows})
    table = {task: summary([row for row in rows if row["task"] == task]) for task in tasks}
    table["all"] = summary(rows)
    kinds = {kind: summary([row for row in rows if row["kind"] == kind]) for kind in sorted({r["kind"] for r in rows})}
    trained = [row for row in rows if row["kind"] in LEARNED]
    if trained:
        kinds["all trained"] = summary(trained)
    held_out = [row for row in rows if row.get("part") == "held-out"]
    blind = {task: summary(mine) for task in tasks if (mine := [row for row in held_out if row["task"] == task])}
    if held_out:
        blind["all held-out"] = summary(held_out)
        blind["development (robots)"] = summary([r for r in rows if "torque" in r["task"] and r["part"] != "held-out"])
    write_json(out / "summary.json", {"by task": table, "held-out": blind, "by kind": kinds})
    text = f"# By task\n\n{markdown(table)}\n"
    if held_out:
        text += f"# Policies judged once, when the judge was done\n\n{markdown(blind)}\n"
    text += f"# By kind of policy\n\n{markdown(kinds)}\n# Not covered\n\n{misses(rows)}"
    (out / "summary.md").write_text(text)
    picture(rows, tasks, out / "cost.png", "cost", "upper")
    picture(rows, tasks, out / "return.png", "return", "lower")
    calibration_picture(rows, tasks, out / "calibration.png")
    print(text)


def summary(rows):
    judged = [row for row in rows if row["judgeable"]]
    learned = [row for row in rows if row["kind"] in LEARNED]
    cover = [row["cost_upper"] >= row["true_cost"] - 1.64 * row["true_cost_error"] for row in judged]
    strict = [row["cost_upper"] >= row["true_cost"] for row in judged]
    sizes = [max(row["true_cost"], 0.05 * row["largest_source"]) for row in judged]
    sharp = [
        row["cost_upper"] / row["true_cost"] - 1 for row in judged if row["true_cost"] > 0.05 * row["largest_source"]
    ]
    breaking = [row for row in rows if row["true_cost"] > row["limit"]]
    groups = {}
    for row in judged:
        groups.setdefault(problem_of(row), []).append(row)
    bounded = [row for row in judged if row.get("return_is_bounded", True)]
    ranks = {
        signal: [
            float(spearmanr([r[signal] for r in group], [r[f"true_{signal}"] for r in group]).statistic)
            for group in groups.values()
            if len(group) > 4
        ]
        for signal in ("return", "cost")
    }
    return {
        "policies": len(rows),
        "unjudgeable": len(rows) - len(judged),
        "trained": len(learned),
        "trained unjudgeable": sum(not row["judgeable"] for row in learned),
        "cover": mean(strict),
        "cover, within the truth's own error": mean(cover),
        "return said to be bounded": len(bounded),
        "of these truly above the bound": mean([row["return_lower"] <= row["true_return"] for row in bounded]),
        "the same, of those said to be without a bound": mean(
            [row["return_lower"] <= row["true_return"] for row in judged if row not in bounded]
        ),
        "bound above the truth, median": median(sharp),
        "error of the cost, median": median(
            [abs(row["cost"] - row["true_cost"]) / size for row, size in zip(judged, sizes, strict=True)]
        ),
        "error of the cost, median with sign": median(
            [(row["cost"] - row["true_cost"]) / size for row, size in zip(judged, sizes, strict=True)]
        ),
        "rank correlation of return": mean(ranks["return"]),
        "rank correlation of cost": mean(ranks["cost"]),
        "break the limit": len(breaking),
        "of these blessed": sum(row["verdict"] == "inside" for row in breaking),
        "choices": choices(groups.values()),
        "share over the limit, mean error": mean(
            [abs(row["share_over"] - row["true_share_over"]) for row in judged if "true_share_over" in row]
        ),
        "worst tenth, median error": median(
            [
                abs(row["worst_tenth"] / row["true_worst_tenth"] - 1)
                for row in judged
                if row.get("true_worst_tenth", 0) > 0.05 * row["largest_source"]
            ]
        ),
        "processor seconds, median": median([row["seconds"] for row in rows]),
    }


def problem_of(row):
    return row["policy"].split(",")[0] if row["task"] == "tabular" else row["task"]


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
            best = max(candidates, key=lambda row: (row.get("return_is_bounded", True), row["return_lower"]))
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
    for measure in next(iter(table.values())):
        lines.append(f"| {measure} | " + " | ".join(cell(table[name][measure]) for name in names) + " |")
    return "\n".join(lines) + "\n"


def misses(rows):
    """Every judged policy whose true cost lies above its bound, or whose true return lies below what is called a bound."""
    lines = ["| task | policy | what | estimate | bound | truth | verdict |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        too_cheap = row["cost_upper"] < row["true_cost"]
        too_good = row.get("return_is_bounded", True) and row["return_lower"] > row["true_return"]
        for what, bound, missed in (("cost", "cost_upper", too_cheap), ("return", "return_lower", too_good)):
            if row["judgeable"] and missed:
                numbers = " | ".join(f"{row[name]:.2f}" for name in (what, bound, f"true_{what}"))
                lines.append(f"| {row['task']} | {row['policy']} | {what} | {numbers} | {row['verdict']} |")
    return "\n".join(lines) + "\n"


def picture(rows, tasks, path, signal, bound):
    """Estimate and bound against the truth."""
    figure = Figure(figsize=(3.2 * len(tasks), 3.2), dpi=120, layout="constrained")
    for axes, task in zip(np.atleast_1d(figure.subplots(1, len(tasks))), tasks, strict=True):
        mine = [row for row in rows if row["task"] == task]
        for judgeable, colour in ((True, "#2e86ab"), (False, "#bbbbbb")):
            some = [row for row in mine if row["judgeable"] == judgeable]
            true, value, limit = (
                np.array([row[name] for row in some]) for name in (f"true_{signal}", signal, f"{signal}_{bound}")
            )
            if len(some):
                axes.vlines(true, value, limit, color=colour, linewidth=1)
                axes.scatter(true, value, s=12, color=colour, label="judged" if judgeable else "the log cannot tell")
        least, most = (function(row[f"true_{signal}"] for row in mine) for function in (min, max))
        room = 0.15 * (most - least)
        axes.plot([least - room, most + room], [least - room, most + room], color="black", linewidth=0.8)
        axes.set(
            title=task, xlabel=f"true discounted {signal}", ylabel=f"estimate, to its 95 % {bound} bound",
            ylim=(least - 3 * room, most + 3 * room),
        )  # fmt: skip
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7)
    figure.savefig(path)


def calibration_picture(rows, tasks, path):
    """The share of policies whose true cost lies under the bound, for bounds at several confidences."""
    figure = Figure(figsize=(4, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.plot([0.5, 1], [0.5, 1], color="black", linewidth=0.8)
    for task in tasks:
        judged = [row for row in rows if row["task"] == task and row["judgeable"] and "cost_bounds" in row]
        if judged:
            true, bounds = (np.array([row[name] for row in judged]) for name in ("true_cost", "cost_bounds"))
            covered = (bounds >= true[:, None]).mean(0)
            axes.plot(judged[0]["levels"], covered, marker="o", markersize=3, label=f"{task} ({len(judged)})")
    axes.set(xlabel="confidence asked for", ylabel="share of policies truly under the bound", ylim=(0.3, 1.02))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7)
    figure.savefig(path)
