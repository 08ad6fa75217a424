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
    limits = sorted({cell["cell"]["limit"] for cell in mine if cell["cell"]["variant"]["label"] == "cpq"})
    for limit, colour in zip(limits, COLOURS, strict=False):
        axis.axvline(limit / 100, color=colour, linestyle="--", linewidth=1)
        axis.annotate(f"l = {limit:g}", (limit / 100, 0.0), (2, 3), xycoords=("data", "axes fraction"),
                      textcoords="offset points", rotation=90, color=colour, fontsize=8)  # fmt: skip
        for method, marker in (("bc-safe", "x"), ("cpq", "o")):
            tests = [c["test"] for c in mine if c["cell"]["limit"] == limit and c["cell"]["variant"]["label"] == method]
            pace = [np.sum(test["episode_cost"]) / np.sum(test["length"]) for test in tests]
            face = {"facecolors": colour, "edgecolors": "white"} if method == "cpq" else {"color": "0.35"}
            axis.scatter(pace, [np.mean(test["return"]) for test in tests], marker=marker, s=36, zorder=3, **face)
        for kind, marker in (("paced", "D"), ("in_turns", "^")):
            tests = [c[kind] for c in mine if c["cell"]["limit"] == limit and c.get(kind)]
            pace = [np.sum(test["episode_cost"]) / np.sum(test["length"]) for test in tests]
            axis.scatter(pace, [np.mean(test["return"]) for test in tests], marker=marker, s=34, zorder=4, facecolors="none", edgecolors=colour)
    axis.set(title=task.removesuffix("-torque"), xlabel="cost per step", ylim=(0, 1.06 * axis.get_ylim()[1]))
axes[0][0].set_ylabel("return")
handles = [plt.Line2D([], [], color="0.35", marker=marker, linestyle="", fillstyle=fill) for marker, fill in zip("oD^x", ("full", "none", "none", "full"), strict=True)]
labels = ["CPQ, one seed", "the same policy, paced", "in turns with a costlier one", "BC-Safe, one seed (l = 30)"]
figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
figure.savefig(sys.argv[1], dpi=130)
