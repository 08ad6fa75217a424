"""How long a user waits before anything happens."""

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
    return training_seconds(arguments, None, environment)[1]


def training_seconds(
    arguments: list[str], sign: Path | None, environment: dict[str, str] | None = None
) -> tuple[float, float]:
    """Seconds until the file `sign` appears and until the command ends."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "ringfence", *arguments],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seen = float("nan")
    while sign and process.poll() is None:
        if sign.exists():
            seen = time.perf_counter() - began
            break
        time.sleep(0.02)
    if process.wait():
        raise RuntimeError(f"ringfence {' '.join(arguments)} failed")
    return seen, time.perf_counter() - began


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

        def train(number: int) -> tuple[float, float]:
            run = Path(folder) / f"run{number}"
            # The first line of metrics follows the first step: the first stage has only one.
            return training_seconds(["train", str(path), *settings, "--out", str(run)], run / "metrics.jsonl", cache)

        cold, cached = train(0), min(train(1), train(2))
        return {
            "help_seconds": min(command_seconds(["--help"]) for _ in range(3)),
            "first_step_cold_seconds": cold[0],
            "first_step_cached_seconds": cached[0],
            "whole_run_cold_seconds": cold[1],
            "whole_run_cached_seconds": cached[1],
            "cached_programs": len(list(Path(folder).rglob("cache/**/*-cache"))),
        }
