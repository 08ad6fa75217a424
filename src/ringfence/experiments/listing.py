"""Which cells the results of an experiment are: those of its last command, and of earlier ones what belongs to them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringfence.errors import RingfenceError, UnreadableFile
from ringfence.experiments.grid import Cell, Experiment, Variant
from ringfence.experiments.store import DirectoryStore, Store
from ringfence.files import write_json
from ringfence.reports.results import is_result, read_experiment


def former_cells(experiment: Experiment, results: Path) -> dict[str, Cell]:
    """The cells that `experiment.json` listed before, have a result and belong in one report with those of this command."""
    listed = read_experiment(results).cells if (results / "experiment.json").exists() else ()
    kept, kinds = DirectoryStore(results), {(c.log.name, c.variant.label): c for c in experiment.cells}
    found = {name: whole_result(kept, name)["cell"] for name in listed if name in kept.finished()}
    names = {cell.id for cell in experiment.cells}

    def belongs(former: Mapping[str, Any]) -> bool:
        return comparable(former, kinds.values(), experiment.own_steps)

    stay = {name: cell for name, cell in found.items() if name in names or belongs(cell)}
    return {name: Cell.from_dict(cell) for name, cell in stay.items()}


def comparable(former: Mapping[str, Any], cells: Iterable[Cell], own_steps: bool = False) -> bool:
    """Whether a finished cell belongs in one report with these: trained and tested as long, logs of one name with the same
    content, methods of one name with the same settings. With `own_steps`, trained as long as is its method's own."""
    return all(
        (former["schedule"]["steps"] == cell.schedule.steps or (own_steps and has_own_steps(former)))
        and tested_alike(former["schedule"]) == tested_alike(asdict(cell.schedule))
        and former.get("holdout", 0.0) == cell.holdout
        and (former["log"]["source"] != cell.log.name or former["log_fingerprint"] == cell.log_fingerprint)
        and (former["variant"]["label"] != cell.variant.label or is_another_seed_of(former, cell))
        for cell in cells
    )


def is_another_seed_of(former: Mapping[str, Any], cell: Cell) -> bool:
    """Whether two cells of one method can be averaged: the same settings, evaluated at the same steps."""
    same_steps = former["schedule"].get("evaluate_every") == cell.schedule.evaluate_every
    return bool(same_steps and former["hyperparameters"] == cell.hyperparameters)


def has_own_steps(former: Mapping[str, Any]) -> bool:
    try:
        own = Variant(**former["variant"]).default_steps
    except RingfenceError:  # of another version, whose settings are not those of today
        return False
    return bool(former["schedule"]["steps"] == own)


def tested_alike(schedule: Mapping[str, Any]) -> list[Any]:
    return [schedule.get(name) for name in ("episodes", "test_episodes")]


def describe(experiment: Experiment, results: Path, former: list[str], command: str) -> None:
    """Write `experiment.json`: the cells of earlier commands first, so that a table keeps its order."""
    file = results / "experiment.json"
    before = json.loads(file.read_text(encoding="utf-8")) if former else {}
    earlier = dict.fromkeys([*before.get("earlier_commands", []), before.get("command", "")])
    described = {
        "name": experiment.name,
        "command": command,
        "earlier_commands": [text for text in earlier if text not in ("", command)],
        "fingerprint": experiment.fingerprint,
        "cells": list(dict.fromkeys([*former, *(cell.id for cell in experiment.cells)])),
    }
    write_json(file, described)


def whole_result(store: Store, name: str) -> dict[str, Any]:
    """The result of a finished cell; an error if it is damaged, so that nothing takes its place in silence."""
    found = store.result(name)
    if found is None or not is_result(found):
        raise UnreadableFile(
            f"the result cells/{name}.json in {store.address} is damaged; remove it and start again: its run is still there"
        )
    return found
