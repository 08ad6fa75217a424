"""Which cell of an experiment to take, from the episodes that its cells set aside: `choice.json` beside the results."""

import json
from pathlib import Path
from typing import Any

from ringfence import api
from ringfence.errors import RingfenceError
from ringfence.experiments.grid import Cell, Experiment
from ringfence.experiments.store import DirectoryStore, Store
from ringfence.files import write_json

FILE = "choice.json"


def write_choices(experiment: Experiment, store: Store, results: Path) -> None:
    """What `choose` takes at each limit of an experiment whose cells set episodes aside. What was chosen from the same cells
    before stays. Needs the cells' policies, and so a store in a directory."""
    finished = [cell for cell in experiment.cells if cell.holdout and cell.id in store.finished()]
    if not finished or not isinstance(store, DirectoryStore):
        return
    names = sorted(cell.id for cell in finished)
    if _read(results / FILE).get("cells") == names:
        return
    limits = sorted({cell.limit for cell in finished})
    write_json(results / FILE, {"cells": names, "choices": [chosen(store, finished, limit) for limit in limits]})


def chosen(store: DirectoryStore, cells: list[Cell], limit: float) -> dict[str, Any]:
    """The choice among all cells at one limit, each by its id."""
    from ringfence.evaluation.ope.runs import choose_among_runs

    paths = [store.path / "runs" / cell.id for cell in cells]
    try:
        found = choose_among_runs(paths, api.log_of_run(paths[0]), limit).to_dict()
    except RingfenceError as error:
        return {"limit": limit, "chosen": None, "reason": str(error), "candidates": []}
    candidates = [{"name": _cell(c["name"]), "sentence": c["sentence"]} for c in found["candidates"]]
    name = None if found["chosen"] is None else _cell(found["chosen"])
    reason = found["reason"] if name is None else found["reason"].replace(found["chosen"], name)
    return {"limit": limit, "chosen": name, "reason": reason, "candidates": candidates}


def _cell(policy: str) -> str:
    """A policy lies in its cell's run directory."""
    return Path(policy).parent.name


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
