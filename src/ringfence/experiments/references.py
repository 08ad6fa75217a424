"""What cells are compared with: the behaviours that wrote a built-in log, and the log's own range of returns."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ringfence.experiments.cell import TEST_SEED, rounded
from ringfence.experiments.grid import Cell, LogSource
from ringfence.files import write_json
from ringfence.limits import DISCOUNT


def write_references(cells: Iterable[Cell], results: Path) -> None:
    """`references.json`: for each built-in log whose cells are evaluated, the shipped behaviours with and without noise
    on the test's episodes, and the lowest and highest return in the log. What is there already stays."""
    file = results / "references.json"
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for source, task, episodes in dict.fromkeys((cell.log, cell.task, cell.schedule.test_episodes) for cell in cells):
        if source.name not in known and source.builtin and task is not None and has_behaviours(task):
            known[source.name] = {"behaviours": evaluate_behaviours(task, episodes), "log": log_range(make(source))}
            write_json(file, known)


def make(source: LogSource) -> Path:
    from ringfence.behaviour.datasets import builtin_dataset

    assert source.rows is not None
    return builtin_dataset(source.source, source.rows, source.seed)


def has_behaviours(task: str) -> bool:
    from ringfence.behaviour.shipped import shipped_policy
    from ringfence.errors import UnknownName

    try:
        shipped_policy(task, "safe")
    except (UnknownName, OSError):
        return False
    return True


def evaluate_behaviours(task: str, episodes: int) -> dict[str, Any]:
    from ringfence.behaviour.shipped import BEHAVIOURS, shipped_policy
    from ringfence.evaluation import evaluate

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
    from ringfence.data import episode_table, load_file

    log = load_file(path)
    returns = episode_table(log, DISCOUNT).returns
    return {"least_return": float(returns.min()), "most_return": float(returns.max()), "horizon": log.horizon}
