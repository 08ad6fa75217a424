"""python picture.py trials.jsonl OUT.png: the averaged actor's return for every seed and part removed, the default's mean dashed."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from run import PARTS, TASKS

rows = [json.loads(text) for text in Path(sys.argv[1]).read_text().splitlines()]
found = {(row["part"], row["task"]): row for row in rows if row["limit"] == TASKS[row["task"]]}
parts = list(PARTS)[::-1]
figure, axes = plt.subplots(1, len(TASKS), figsize=(12, 4.2), sharey=True, layout="constrained")
for axis, (task, limit) in zip(axes, TASKS.items(), strict=True):
    for height, part in enumerate(parts):
        if (part, task) not in found:
            continue
        row = found[part, task]
        falls = np.array(row["averaged"]["length"]) < 950
        for policy, colour, shift in ((row["averaged"], "#0072B2", 0.12), (row, "#E69F00", -0.12)):
            axis.scatter(policy["return"], [height + shift] * len(policy["return"]), s=22, color=colour, zorder=3)
        axis.scatter(np.array(row["averaged"]["return"])[falls], [height + 0.12] * falls.sum(), s=60, marker="x", color="#D55E00", zorder=4)
    axis.axvline(np.mean(found["the default", task]["averaged"]["return"]), color="0.4", linestyle="--", linewidth=1)
    axis.set(title=f"{task}, l = {limit:g}", xlabel="return", yticks=range(len(parts)), yticklabels=parts)
    axis.grid(axis="y", color="0.92")
handles = [plt.Line2D([], [], color=colour, marker=marker, linestyle="") for colour, marker in (("#0072B2", "o"), ("#E69F00", "o"), ("#D55E00", "x"))]
figure.legend(handles, ["averaged actor, one seed", "what is handed out", "falls"], loc="outside lower center", ncols=3, fontsize=8, frameon=False)
figure.savefig(sys.argv[2], dpi=120)
