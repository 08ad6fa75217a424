"""python picture.py: unsafe_anchor.png from trials.jsonl, all of seed 0 except one."""

import json
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).parent
NAMES = {
    "c0": "none, no noise",
    "c0n": "none (weight 0)",
    "s3": "a tenth (the default)",
    "s2": "0.3 (anchor 1.5)",
    "s1": "as safe ones (weight 1)",
}
rows = [json.loads(line) for line in (HERE / "trials.jsonl").read_text().splitlines()]
figure = Figure(figsize=(11, 4), dpi=120, layout="constrained")
walker, cheetah = figure.subplots(1, 2)
for i, (name, label) in enumerate(NAMES.items()):
    for row in rows:
        if row["name"] != name:
            continue
        if row["task"] == "walker2d" and row["limit"] == 30:
            steps = [row["steps"] * (k + 1) / 6 for k in range(len(row["curve"]))][:6]
            style = "--" if row.get("seed") else "-"
            walker.plot(steps, [point[0] for point in row["curve"]][:6], style, marker=".", color=f"C{i}", label=label)
        if row["task"] == "halfcheetah" and row["limit"] == 50:
            cheetah.scatter(row["episode_cost"], row["return"], color=f"C{i}", s=60)
            cheetah.annotate(label, (row["episode_cost"], row["return"]), (6, -3), textcoords="offset points", fontsize=8)
walker.set(xlabel="step", ylabel="return of the averaged policy", title="Walker2d, l = 30: pull to unsafe logged actions")
handles = dict(zip(*reversed(walker.get_legend_handles_labels()), strict=True))
walker.legend(handles.values(), handles.keys(), fontsize=8, frameon=False)
cheetah.axvline(500, color="black", linestyle="--", linewidth=1)
cheetah.set(xlabel="episode cost (the limit's pace is 500)", ylabel="return", title="HalfCheetah, l = 50: the same", xlim=(250, 620))
for axes in (walker, cheetah):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(HERE / "unsafe_anchor.png")
