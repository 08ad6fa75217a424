"""python table.py trials.jsonl: the ablation as a table for each task, parts in the order of run.py."""

import json
import sys
from pathlib import Path

rows = [json.loads(text) for text in Path(sys.argv[1]).read_text().splitlines()]


def three(values, form):
    return ", ".join(f"{value:{form}}" for value in values)


for task in ("halfcheetah", "hopper", "walker2d"):
    mine = [row for row in rows if row["task"] == task]
    if not mine:
        continue
    print(f"\n| {task}, l = {mine[0]['limit']:g} | the averaged actor: return of seeds 0, 1, 2 | mean | cost per step | mean length | handed out: return | mean | cost per step |")
    print("|---|---|---|---|---|---|---|---|")
    for row in mine:
        actor = row["averaged"]
        lengths = "1000" if min(actor["length"]) == 1000 else three(actor["length"], ".0f")
        name = row["part"] if row["limit"] == mine[0]["limit"] else f"{row['part']}, **l = {row['limit']:g}**"
        cells = [name, three(actor["return"], ".0f"), f"{sum(actor['return']) / 3:.0f}", three(actor["cost_per_step"], ".3f"), lengths]
        cells += [three(row["return"], ".0f"), f"{sum(row['return']) / 3:.0f}", three(row["cost_per_step"], ".3f")]
        print(f"| {' | '.join(cells)} |")
