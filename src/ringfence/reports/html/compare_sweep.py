"""The numbers of a page about the cells of a sweep."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ringfence.evaluation.statistics import bootstrap_interval
from ringfence.reports.html.compare_numbers import Candidate, Chosen, Comparison, chosen_of, groups_of
from ringfence.reports.results import Described, gather, read_experiment


def sweep_numbers(results: Path, described: Described | None = None) -> Comparison:
    """From the result files of an experiment alone, and the choice that was made at its end."""
    experiment = described or read_experiment(results)
    gathered = gather(results, experiment)
    found = [result for group in gathered.groups for result in group.results]
    tested = all(result.get("test") for result in found)
    candidates = tuple(of_cell(result, tested) for result in found)
    held_out = {result.get("id", "") for result in found if result["cell"].get("holdout")}
    choices = tuple(read_choices(results / "choice.json", held_out))
    why = (
        "a choice is made when the sweep has ended, in a store that is a directory" if held_out else
        "the cells set no episodes aside; with holdout = 0.2 in the grid's file some of them judge the policies"
    )  # fmt: skip
    return Comparison(
        kind="sweep",
        title=gathered.name,
        evidence="fresh simulated episodes" if tested else "the critics",
        measure=f"return; discounted cost, {steps_of(found)}" if tested else "discounted sums over an infinite horizon",
        axes=("discounted cost", "return")
        if tested
        else ("discounted cost, over an infinite horizon", "discounted return, over an infinite horizon"),
        candidates=candidates,
        groups=groups_of(candidates),
        choices=choices,
        why_no_choice="" if choices else why,
        missing=tuple(sorted(set(experiment.cells) - {result.get("id", "") for result in found})),
        command=experiment.command,
    )


def steps_of(results: Sequence[Mapping[str, Any]]) -> str:
    longest = max(max(result["test"]["length"]) for result in results)
    return f"over episodes of up to {longest:.0f} steps"


def of_cell(result: Mapping[str, Any], tested: bool) -> Candidate:
    cell, last = result["cell"], (result["metrics"] or [{}])[-1]
    known: dict[str, Any] = {"returned": last.get("qr_start"), "cost": last.get("qc_start")}
    if tested:
        returns, costs = (np.asarray(result["test"][name], float) for name in ("return", "discounted_cost"))
        known = {
            "returned": float(returns.mean()),
            "cost": float(costs.mean()),
            "return_interval": bootstrap_interval(returns),
            "cost_interval": bootstrap_interval(costs),
            "over_limit": float(np.mean(costs > cell["limit"])),
        }
    return Candidate(
        name=result.get("id", f"{cell['variant']['label']}, limit {cell['limit']:g}, seed {cell['seed']}"),
        log=cell["log"]["source"],
        method=cell["variant"]["label"],
        limit=float(cell["limit"]),
        seed=int(cell["seed"]),
        steps=int(cell["schedule"]["steps"]),
        verdict=str(result.get("verdict", "")),
        seconds=result.get("seconds"),
        **known,
    )


def read_choices(path: Path, cells: set[str]) -> list[Chosen]:
    """What `experiments.choosing` wrote; nothing where there is nothing to read. Of `cells`, among which to choose, some may
    have ended since then."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = [chosen_of(float(entry["limit"]), entry) for entry in content["choices"]]
        later = len(cells.difference(content["cells"]))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    since = f"; {later} of the {len(cells)} cells have ended since and had no part in the choice" if later else ""
    return [replace(choice, reason=choice.reason + since) for choice in found]
