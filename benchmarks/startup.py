"""How long a person waits before anything happens."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


def command_seconds(arguments: list[str], environment: dict[str, str] | None = None) -> float:
    """Wall time of a `ringfence` command, from the shell's point of view."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ringfence", *arguments],
        env={**os.environ, **(environment or {})},
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - began


def startup(rows: int = 100_000, hidden: int = 256) -> dict[str, Any]:
    """`ringfence --help`; then a whole training command that does one step of each stage, which loads the log, compiles
    every program, steps, diagnoses, saves and draws: first with an empty cache of compiled programs, then again."""
    from ringfence.data import Dataset, save

    rng = np.random.default_rng(0)
    log = Dataset.from_arrays(
        observations=rng.normal(size=(rows, 11)),
        actions=rng.uniform(-1, 1, size=(rows, 3)),
        rewards=rng.uniform(size=rows),
        costs=rng.uniform(size=rows),
        episode=np.arange(rows) // 1000,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.h5"
        save(log, path)
        settings = ["--limit", "30", "--steps", "1", "--set", "cvae_steps=1", f"hidden=[{hidden},{hidden}]"]
        cache = {"RINGFENCE_CACHE": str(Path(folder) / "cache")}

        def first_step(number: int) -> float:
            return command_seconds(["train", str(path), *settings, "--out", str(Path(folder) / f"run{number}")], cache)

        return {
            "help_seconds": min(command_seconds(["--help"]) for _ in range(3)),
            "train_one_step_cold_seconds": first_step(0),
            "train_one_step_cached_seconds": min(first_step(1), first_step(2)),
            "cached_programs": len(list(Path(folder).rglob("cache/**/*-cache"))),
        }
