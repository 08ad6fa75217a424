"""What a worker does with a cell: train it, or go on with it, and put what matters into a small result."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ringfence.data import load_file
from ringfence.deploy import Pacer, Policy, Turns
from ringfence.deploy.pacer import has_gains
from ringfence.deploy.turns import can_take_turns
from ringfence.experiments.clock import Clock
from ringfence.experiments.grid import FORMAT, Cell, short_digest

TEST_SEED = 50_000  # episodes that neither the logs nor the evaluations on the way have used
DIGITS = 6  # of the numbers in a result


def train_cell(cell: Cell, path: Path, log_file: Path) -> dict[str, Any] | None:
    """Run the cell in the run directory `path`, from its last checkpoint if there is one. None if interrupted: what was
    reached is saved."""
    with Clock(path) as clock:
        log = load_file(log_file, **cell.log.options)
        run = train_or_go_on(cell, path, log, log_file)
    if run.interrupted:
        clock.note()
        return None
    return {
        "format": FORMAT,
        "id": cell.id,
        "fingerprint": cell.fingerprint,
        "cell": portable(cell),
        "log": {"name": log.name, "rows": len(log), "fingerprint": log.fingerprint},
        "evaluations": [rounded(row) for row in run.evaluations],
        "metrics": [rounded(row) for row in worth_keeping(run.metrics, cell.schedule.evaluate_every)],
        "warnings": [rounded(row) for row in run.warnings],
        "test": test_policy(cell, run.policy, run.configuration.extras.get("horizon")),
        **test_with_costs(cell, run.policy, run.configuration.extras.get("horizon")),
        "policy": run.policy.checksum,
        "seconds": round(clock.seconds, 1),
        "threads": int(os.environ.get("NPROC", 0)) or os.cpu_count(),
        "verdict": run.verdict.judgement,
        "computed_by": [dict(entry) for entry in run.configuration.computed_by],
        "versions": dict(run.configuration.versions),
        "code": code_fingerprint(),
    }


def train_or_go_on(cell: Cell, path: Path, log: Any, log_file: Path) -> Any:
    """The run of the cell, from its last checkpoint if there is one."""
    from ringfence import api
    from ringfence.training import RunDirectory

    if RunDirectory(path).is_run:
        return api.resume(path, log, task=cell.task, progress=False)  # named: it may be code of the user's own
    schedule = cell.schedule
    return api.train(
        log,
        cell.variant.make(),
        limits=[cell.limit],
        seeds=[cell.seed],
        steps=schedule.steps,
        task=cell.task,
        episodes=schedule.episodes,
        out=path,
        origin={"source": str(log_file), "options": cell.log.options},
        log_every=schedule.log_every,
        evaluate_every=schedule.evaluate_every,
        checkpoint_every=schedule.checkpoint_every,
        holdout=cell.holdout,
        progress=False,
    )


def test_policy(cell: Cell, policy: Any, horizon: int | None) -> dict[str, Any] | None:
    """The last iterate on fresh episodes, cut off after `horizon` steps if it is given: one number for each of them."""
    if cell.task is None:
        return None
    from ringfence.evaluation import evaluate

    tested = evaluate(
        policy,
        cell.task,
        episodes=cell.schedule.test_episodes,
        seed=TEST_SEED,
        limit=cell.limit,
        discount=cell.hyperparameters["discount"],
        horizon=horizon,
    )
    episodes: dict[str, Any] = tested.to_dict()["per episode"]
    return {name.replace(" ", "_"): rounded({"": values})[""] for name, values in episodes.items()}


def test_with_costs(cell: Cell, policy: Policy, horizon: int | None) -> dict[str, dict[str, Any] | None]:
    """The same where the policy is told its costs: with a pacer, and in turns with a costlier policy. None where the file
    has no gains for the one, or no second policy for the other."""
    told: dict[str, Pacer | Turns | None] = {
        "paced": Pacer(policy, horizon=horizon) if has_gains(policy.artifact) else None,
        "in_turns": Turns(policy, horizon=horizon) if can_take_turns(policy.artifact) else None,
    }
    return {name: test_policy(cell, each, horizon) if each else None for name, each in told.items()}


@cache
def code_fingerprint() -> str:
    """A digest of the package's source, so that results of different code can be told apart."""
    package = Path(__file__).parents[1]
    files = sorted(file for suffix in ("py", "cc", "h") for file in package.rglob(f"*.{suffix}"))
    return short_digest([[file.relative_to(package).as_posix(), file.read_text(encoding="utf-8")] for file in files])


def portable(cell: Cell) -> dict[str, Any]:
    """The cell without the place of a user's file on this machine."""
    described = cell.to_dict()
    described["log"]["source"] = cell.log.name
    return described


def worth_keeping(metrics: list[dict[str, Any]], every: int) -> list[dict[str, Any]]:
    """Metrics at the steps of evaluations, and the last of each stage."""
    last = {row["stage"]: i for i, row in enumerate(metrics)}
    policy = metrics[-1]["stage"] if metrics else ""
    return [
        row
        for i, row in enumerate(metrics)
        if last[row["stage"]] == i or (row["stage"] == policy and row["step"] % every == 0)
    ]


def rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(v) for v in value]
        return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value

    return {name: short(value) for name, value in row.items()}
