"""A run directory tells its own story:

config.json         method, hyper-parameters, members, log and its fingerprint, versions
metrics.jsonl       one line per member and log interval
evaluations.jsonl   one line per member and evaluation, if a task was given
warnings.jsonl      what the run had to say, and when
checkpoints/        the newest two
policy*.safetensors one per member
"""

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from ringfence import __version__
from ringfence.data.dataset import Dataset
from ringfence.errors import CheckpointError, WouldOverwrite
from ringfence.files import atomic_write, write_json
from ringfence.training.population import without_limit

if TYPE_CHECKING:
    from ringfence.training.loop import Plan

STREAMS = ("metrics", "evaluations", "warnings")


class RunDirectory:
    """Where a run's files go."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def require_free(self) -> None:
        """Raise unless the directory is still to be made, or empty."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise WouldOverwrite(
                f"{self.path} exists already; choose another --out, or go on with it by --resume {self.path}"
            )

    def create(self, config: Mapping[str, Any]) -> None:
        self.require_free()
        write_json(self.path / "config.json", {**config, "versions": versions()})

    def config(self) -> dict[str, Any]:
        file = self.path / "config.json"
        try:
            config: dict[str, Any] = json.loads(file.read_text())
        except FileNotFoundError:
            raise CheckpointError(f"{self.path} is not a run directory: it has no config.json") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file} is damaged ({error})") from error
        return config

    def append(self, stream: str, rows: Iterable[Mapping[str, Any]]) -> None:
        with open(self.path / f"{stream}.jsonl", "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def read(self, stream: str) -> list[dict[str, Any]]:
        """The stream's rows; a last line cut off by a kill is left out."""
        file = self.path / f"{stream}.jsonl"
        rows: list[dict[str, Any]] = []
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def rewind(self, step: int) -> None:
        """Forget what was written after the checkpoint at this (overall) step: it is about to happen again."""
        for stream in STREAMS:
            if (self.path / f"{stream}.jsonl").exists():
                kept = [row for row in self.read(stream) if row["overall_step"] <= step]
                with atomic_write(self.path / f"{stream}.jsonl") as temporary:
                    temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


def versions() -> dict[str, str]:
    return {
        "ringfence": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


def describe_run(
    plan: "Plan", log: Dataset, origin: Mapping[str, Any] | None, extras: Mapping[str, Any]
) -> dict[str, Any]:
    """What config.json says: enough to make the run again, or to go on with it."""
    return {
        "method": plan.method.name,
        "hyperparameters": asdict(cast(Any, without_limit(plan.method))),
        "members": [[member.seed, member.limit] for member in plan.members],
        "schedule": {
            "steps": plan.steps,
            "log_every": plan.log_every,
            "evaluate_every": plan.evaluate_every,
            "checkpoint_every": plan.checkpoint_every,
        },
        "log": {"origin": origin, "name": log.name, "rows": len(log), "fingerprint": log.fingerprint},
        "extras": dict(extras),
    }
