"""python table.py RESULTS...: the report's table from the cells in RESULTS, such as results/figure2."""

import json
import sys
from pathlib import Path

import numpy as np

rows, with_costs = [], {"paced": [], "in_turns": []}
for file in sorted(f for folder in sys.argv[1:] for f in Path(folder).glob("cells/*.json")):
    cell = json.loads(file.read_text())
    test, about = {name: np.asarray(values) for name, values in cell["test"].items() if isinstance(values, list)}, cell["cell"]
    curve = [row["return"] for row in cell["evaluations"]]
    late = curve[-max(1, len(curve) // 4) - 1 : -1]  # evaluations of the last quarter, before the last
    rows.append({
        "task": about["task"], "limit": about["limit"], "method": about["variant"]["label"], "seed": about["seed"],
        "return": test["return"].mean(), "discounted return": test["discounted_return"].mean(), "discounted cost": test["discounted_cost"].mean(),
        "cost per step": test["episode_cost"].sum() / test["length"].sum(), "pace": about["limit"] / 100,
        "length": test["length"].mean(), "over the limit": np.mean(test["discounted_cost"] > about["limit"]),
        "steady": all(abs(value - curve[-1]) <= 0.1 * abs(curve[-1]) for value in late), "seconds": cell["seconds"],
    })  # fmt: skip
    for kind, found in with_costs.items():
        if not cell.get(kind):
            continue
        test = {name: np.asarray(values) for name, values in cell[kind].items()}
        per_step = test["episode_cost"] / test["length"]
        found.append({
            "task": about["task"], "limit": about["limit"], "seed": about["seed"], "return": test["return"].mean(), "std": test["return"].std(),
            "discounted return": test["discounted_return"].mean(), "discounted cost": test["discounted_cost"].mean(),
            "greatest": test["discounted_cost"].max(), "cost per step": test["episode_cost"].sum() / test["length"].sum(), "length": test["length"].mean(),
            "over": np.sum((per_step > about["limit"] / 100) | (test["discounted_cost"] > about["limit"])), "episodes": len(per_step), "worst": per_step.max(),
        })  # fmt: skip
rows.sort(key=lambda row: (row["task"], row["limit"], row["method"], row["seed"]))


def line(values):
    return "| " + " | ".join(values) + " |"


print(line(["task", "limit", "method", "seeds", "return (least to greatest)", "discounted return", "discounted cost", "cost per step", "pace",
            "least mean length", "episodes over the limit", "steady"]))  # fmt: skip
print(line(["---"] * 12))
for key in dict.fromkeys((row["task"], row["limit"], row["method"]) for row in rows):
    group = [row for row in rows if (row["task"], row["limit"], row["method"]) == key]
    column = {name: np.array([row[name] for row in group]) for name in group[0]}
    earned = column["return"]
    print(line([
        key[0].removesuffix("-torque"), f"{key[1]:g}", key[2], ", ".join(map(str, column["seed"])),
        f"{earned.mean():.0f} ({earned.min():.0f} to {earned.max():.0f})",
        f"{column['discounted return'].mean():.1f}",
        f"{column['discounted cost'].mean():.1f} (at most {column['discounted cost'].max():.1f})",
        f"{column['cost per step'].mean():.3f} (at most {column['cost per step'].max():.3f})", f"{key[1] / 100:.2f}",
        f"{column['length'].min():.0f}", f"{column['over the limit'].mean():.0%}",
        f"{column['steady'].sum()} of {len(group)}",
    ]))  # fmt: skip
cells = [row for row in rows if row["method"] == "cpq"]
inside = sum(row["discounted cost"] <= row["limit"] for row in cells)
paced = sum(row["cost per step"] <= row["pace"] for row in cells)
steady = sum(row["steady"] for row in cells)
print(f"\nCPQ, {len(cells)} cells: discounted cost inside in {inside}, cost per step inside the pace in {paced}, steady in {steady}.")

for kind, found in with_costs.items():
    found.sort(key=lambda row: (row["task"], row["limit"], row["seed"]))
    if found:
        print("\n" + line(["task", "limit", f"{kind.replace('_', ' ')}: seeds", "return (least to greatest)", "standard deviation of episodes", "discounted return", "discounted cost",
                           "greatest of an episode", "cost per step", "greatest of a seed", "greatest of an episode", "least mean length", "episodes over limit or pace"]))  # fmt: skip
        print(line(["---"] * 13))
    for key in dict.fromkeys((row["task"], row["limit"]) for row in found):
        group = [row for row in found if (row["task"], row["limit"]) == key]
        column = {name: np.array([row[name] for row in group]) for name in group[0]}
        earned = column["return"]
        print(line([
            key[0].removesuffix("-torque"), f"{key[1]:g}", ", ".join(map(str, column["seed"])), f"{earned.mean():.0f} ({earned.min():.0f} to {earned.max():.0f})",
            f"{column['std'].mean():.0f}", f"{column['discounted return'].mean():.1f}", f"{column['discounted cost'].mean():.1f}", f"{column['greatest'].max():.1f}",
            f"{column['cost per step'].mean():.3f}", f"{column['cost per step'].max():.3f}", f"{column['worst'].max():.3f}", f"{column['length'].min():.0f}",
            f"{column['over'].sum()} of {column['episodes'].sum()}",
        ]))  # fmt: skip
