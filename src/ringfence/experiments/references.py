"""What cells are compared with: the behaviours that wrote a built-in log, and the log's own range of returns."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ringfence.behaviour.datasets import builtin_dataset
from ringfence.behaviour.shipped import BEHAVIOURS, shipped_policy
from ringfence.data import episode_table, load_file
from ringfence.errors import UnknownName
from ringfence.evaluation import evaluate
from ringfence.experiments.cell import TEST_SEED, rounded
from ringfence.experiments.grid import Cell, LogSource
from ringfence.files import write_json
from ringfence.limits import DISCOUNT
from ringfence.reports.results import read_references, read_result

FILE = "references.json"


def write_references(cells: Iterable[Cell], results: Path) -> None:
    """`references.json`: for each built-in log whose cells are evaluated, the shipped behaviours with and without noise
    on as many test episodes as the cells have, and the lowest and highest return in the log. What is there of the same
    log and number of episodes stays."""
    known = read_references(results)
    for name, entry in known.items():
        if None in said_by(entry).values():
            entry |= shown_by_cells(name, results)
    wanted = {(cell.log, cell.task): said_of(cell) for cell in cells}
    for (source, task), said in wanted.items():
        if source.builtin and task is not None and has_behaviours(task):
            if said_by(known.get(source.name, {})) != said:
                print(f"evaluating the behaviours that wrote the log of {source.name}", file=sys.stderr, flush=True)
                behaviours = evaluate_behaviours(task, said["test_episodes"])
                known[source.name] = {**said, "behaviours": behaviours, "log": log_range(make(source))}
            write_json(results / FILE, known)


def said_of(cell: Cell) -> dict[str, Any]:
    """What references depend on."""
    return {"log_fingerprint": cell.log_fingerprint, "test_episodes": cell.schedule.test_episodes}


def said_by(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry.get(name) for name in ("log_fingerprint", "test_episodes")}


def shown_by_cells(log: str, results: Path) -> dict[str, Any]:
    """What an older entry, which does not say it, was made from: what all cells of the log beside it have in common."""
    found = [read_result(file)["cell"] for file in sorted((results / "cells").glob("*.json"))]
    said = [said_of(Cell.from_dict(cell)) for cell in found if cell["log"]["source"] == log]
    return said[0] if said and all(one == said[0] for one in said) else {}


def make(source: LogSource) -> Path:
    assert source.rows is not None
    return builtin_dataset(source.source, source.rows, source.seed)


def has_behaviours(task: str) -> bool:
    try:
        shipped_policy(task, "safe")
    except (UnknownName, OSError):
        return False
    return True


def evaluate_behaviours(task: str, episodes: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for behaviour in BEHAVIOURS:
        policy = shipped_policy(task, behaviour)
        found[behaviour] = {}
        for how, deterministic in (("noise-free", True), ("sampled", False)):
            tested = evaluate(policy, task, episodes=episodes, seed=TEST_SEED, deterministic=deterministic)
            row = {"return": tested.returns, "discounted_cost": tested.discounted_costs, "episode_cost": tested.costs}
            means = {name: float(values.mean()) for name, values in row.items()}
            means["step_cost"] = float(tested.costs.sum() / tested.lengths.sum())
            found[behaviour][how] = rounded(means)
    return found


def log_range(path: Path) -> dict[str, float]:
    log = load_file(path)
    returns = episode_table(log, DISCOUNT).returns
    return {"least_return": float(returns.min()), "most_return": float(returns.max()), "horizon": log.horizon}
