"""The ablation's table in docs/cpq-explained.md is that of `results/`. A failure says what a row should have."""

import json
import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
PARTS = {  # as the page calls them: as results/cpq-study/ablation/run.py does
    "none, the default": "the default",
    "the anchor": "no anchor",
    "the growth of the anchor with terminations": "an anchor that does not grow with terminations",
    "the plain backup": "the reward target as printed",
    "the penalty": "the actor's objective as printed",
    "feedback": "no feedback",
    "how the push is done": "the push as printed",
    "the push on OOD actions itself": "no push (alpha 0)",
    "LayerNorm and scale of the critics": "critics as printed (no LayerNorm, no scale)",
    "less weight of unsafe logged actions": "an anchor to all logged actions alike",
    "noise on the next actions": "no noise on the next actions",
    "both of these": "equal weights and no noise",
    "the cost after an end": "an episode's end is the end of its cost",
    "the average over steps, and the choice": "the last actor, and no choice",
}
TASKS = {"halfcheetah": 50, "hopper": 30, "walker2d": 30}


def trials():
    lines = (ROOT / "results" / "cpq-study" / "ablation" / "trials.jsonl").read_text().splitlines()
    return {(row["part"], row["task"], row["limit"]): row for row in map(json.loads, lines)}


def shown(found):
    return f"{np.mean(found['return']):.0f}", f"({np.mean(found['cost_per_step']):.3f})"


def rows_of_the_page():
    section = (ROOT / "docs" / "cpq-explained.md").read_text().split("## The ablation\n")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| ")][1:]
    for line in table:
        name, *cells = (cell.strip() for cell in line.replace("**", "").strip("|").split("|"))
        yield re.sub(r" \(.*\)$", "", name), cells


def test_every_number_of_the_ablation_is_that_of_its_trials():
    found, wrong = trials(), []
    page = dict(rows_of_the_page())
    assert list(page) == list(PARTS)
    for name, cells in page.items():
        for (task, limit), pair in zip(TASKS.items(), np.reshape(cells, (3, 2)), strict=True):
            row = found.get((PARTS[name], task, limit))
            if row is None:
                assert set(pair) <= {"", "the same"}, f"{name}, {task}: there is no such trial"
                continue
            for policy, cell in zip((row["averaged"], row), pair, strict=True):
                wanted = shown(policy)
                if cell and not (cell.startswith(wanted[0]) and cell.endswith(wanted[1])):
                    wrong.append(f"{name}, {task}: {' '.join(wanted)}, not {cell}")
    assert not wrong, "; ".join(wrong)
