"""python picture.py OUT.png RESULTS...: return against cost per step for every seed of the report, each limit's pace drawn in."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

COLOURS = ["#0072B2", "#009E73", "#E69F00", "#D55E00", "#CC79A7"]  # of limits, from the lowest; told apart by the colour-blind

cells = [json.loads(file.read_text()) for folder in sys.argv[2:] for file in sorted(Path(folder).glob("cells/*.json"))]
tasks = sorted({cell["cell"]["task"] for cell in cells})
figure, axes = plt.subplots(1, len(tasks), figsize=(4.2 * len(tasks), 3.8), squeeze=False, layout="constrained")
for axis, task in zip(axes[0], tasks, strict=True):
    mine = [cell for cell in cells if cell["cell"]["task"] == task]
    limits = sorted({cell["cell"]["limit"] for cell in mine})
    for limit, colour in zip(limits, COLOURS, strict=False):
        axis.axvline(limit / 100, color=colour, linestyle="--", linewidth=1)
        axis.annotate(f"l = {limit:g}", (limit / 100, 0.0), (2, 3), xycoords=("data", "axes fraction"),
                      textcoords="offset points", rotation=90, color=colour, fontsize=8)  # fmt: skip
        for method, marker in (("bc-safe", "x"), ("cpq", "o")):
            tests = [c["test"] for c in mine if c["cell"]["limit"] == limit and c["cell"]["variant"]["label"] == method]
            pace = [np.sum(test["episode_cost"]) / np.sum(test["length"]) for test in tests]
            face = {"facecolors": colour, "edgecolors": "white"} if method == "cpq" else {"color": "0.35"}
            axis.scatter(pace, [np.mean(test["return"]) for test in tests], marker=marker, s=36, zorder=3, **face)
        paced = [c["paced"] for c in mine if c["cell"]["limit"] == limit and c.get("paced")]
        pace = [np.sum(test["episode_cost"]) / np.sum(test["length"]) for test in paced]
        axis.scatter(pace, [np.mean(test["return"]) for test in paced], marker="D", s=30, zorder=4, facecolors="none", edgecolors=colour)
    axis.set(title=task.removesuffix("-torque"), xlabel="cost per step", ylim=(0, None))
axes[0][0].set_ylabel("return")
handles = [plt.Line2D([], [], color="0.35", marker=marker, linestyle="", fillstyle=fill) for marker, fill in zip("oDx", ("full", "none", "full"), strict=True)]
labels = ["CPQ, one seed", "the same policy, paced", "BC-Safe, one seed"]
figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
figure.savefig(sys.argv[1], dpi=130)
