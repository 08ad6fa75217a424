"""The log that steps are timed on: a real one, made by `ringfence collect` and kept in .bench/ between runs."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import ROOT

FOLDER = ROOT / ".bench"
ROWS = 100_000


def log_path(task: str = "hopper-torque", rows: int = ROWS) -> Path:
    """The log's file; it is made if it is not there."""
    path = FOLDER / f"{task}-{rows}.h5"
    if not path.exists():
        from ringfence.behaviour.collect import collect

        collect(task, rows, path, seed=0)
    return path


def read(rows: int = ROWS) -> Any:
    from ringfence.data import load_file

    return load_file(log_path(rows=rows))


def as_arrays(path: Path) -> Path:
    """A log as other implementations take it: plain arrays, observations normalised and actions in [-1, 1] as ours are."""
    from ringfence.data import load_file

    log = load_file(path)
    target = path.with_suffix(".npz")
    centre, half = (log.action_high + log.action_low) / 2, (log.action_high - log.action_low) / 2
    normalise = log.normaliser
    arrays = {
        "observations": (log.observations - normalise.mean) / normalise.std,
        "actions": np.clip((log.actions - centre) / half, -1.0, 1.0),
        "rewards": log.rewards,
        "costs": log.costs,
        "next_observations": (log.next_observations - normalise.mean) / normalise.std,
        "continues": ~log.terminations,
        "starts": np.isin(np.arange(len(log)), log.episode_starts),
    }
    np.savez(target, **{name: np.asarray(array, np.float32) for name, array in arrays.items()})
    return target
