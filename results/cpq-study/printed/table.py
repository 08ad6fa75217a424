"""python table.py trials.jsonl curves.png: the table of the printed algorithm's fair trial, and its curves."""

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
EVERY = 500  # steps between lines of metrics


def numbers(values, digits=0):
    return ", ".join(f"{value:.{digits}f}" for value in values)


def last(row, name):
    return [history[name][-1] for history in row["history"].values()]


def least(row, name):
    """The first step from which on the metric stays below 0.05, of each seed; - if it never does."""
    found = []
    for history in row["history"].values():
        above = [i for i, value in enumerate(history[name]) if value >= 0.05]
        first = (above[-1] + 1 if above else 0) + 1
        found.append(f"{EVERY * first:,}" if first <= len(history[name]) else "-")
    return ", ".join(found)


print("| setting | return, seeds 0, 1, 2 | discounted cost | cost per step | indicator at the end | below 0.05 from step | OOD rate at the end | Qc of the policy at the end |")
print("|---|---|---|---|---|---|---|---|")
for row in rows:
    print(
        f"| {row['name']} | {numbers(row['return'])} | {numbers(row['discounted_cost'], 1)} | {numbers(row['cost_per_step'], 2)} | {numbers(last(row, 'indicator'), 2)} | {least(row, 'indicator')} "
        f"| {numbers(last(row, 'ood_rate'), 2)} | {', '.join(f'{value:.3g}' for value in last(row, 'qc_policy'))} |"
    )

columns = 6
figure = Figure(figsize=(2.5 * columns, 2.1 * -(-len(rows) // columns)), layout="constrained")
panels = figure.subplots(-(-len(rows) // columns), columns, squeeze=False, sharex=True, sharey=True)
for panel in panels.flat[len(rows) :]:
    panel.set_axis_off()
for panel, row in zip(panels.flat, rows, strict=False):
    for history in row["history"].values():
        steps = EVERY * (1 + np.arange(len(history["indicator"])))
        panel.plot(steps, history["indicator"], color="#0072B2", linewidth=1)
        panel.plot(steps, history["ood_rate"], color="#D55E00", linewidth=1, linestyle=(0, (4, 2)))
    panel.set_title(row["name"] if len(row["name"]) < 34 else row["name"][:31] + "...", fontsize=7)
    panel.set_ylim(-0.03, 1.03)
    panel.tick_params(labelsize=6)
figure.supxlabel("step of the policy", fontsize=8)
figure.suptitle("HalfCheetah, l = 50, three seeds: the share of the policy's actions with Qc <= l (blue) and out of distribution (orange, dashed)", fontsize=8)
figure.savefig(sys.argv[2], dpi=110)
