"""What the runner itself costs: many cells that do nothing, on a local Ray or on processes of this machine.

    python -m benchmarks.sweep --cells 1000 --workers 4 --out results/cluster/overhead.json

The overhead of a cell is the time for which it keeps a slot busy or waiting: wall time times slots, divided by cells.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from ringfence.experiments.engines import Engine, LocalEngine
from ringfence.experiments.grid import Cell, Experiment, LogSource, Schedule, Variant
from ringfence.experiments.runner import run_experiment
from ringfence.experiments.store import open_store
from ringfence.files import write_json

CELL_SECONDS = 120.0  # the cell that the overhead is compared with
LOG = "0" * 16


def nothing(cell: Cell, path: Path, log: Path) -> dict[str, Any]:
    """A cell without work, with a result of the size of a real one."""
    rows = [{"step": step, "return": 3000.0 + step, "discounted_cost": 27.123456} for step in range(60)]
    return {"id": cell.id, "evaluations": rows}


def cells(count: int) -> Experiment:
    source, variant = LogSource("none.csv"), Variant("nothing", "none")
    return Experiment("overhead", tuple(Cell(source, LOG, variant, {}, 30.0, n, Schedule()) for n in range(count)))


def measure(engine_name: str, count: int, workers: int) -> dict[str, Any]:
    experiment = cells(count)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        began = time.monotonic()
        engine = open_engine(engine_name, workers)
        started = time.monotonic()
        try:
            driver = time.process_time()
            state = run_experiment(experiment, store, engine, {LOG: "none.csv"})
        finally:
            driver, wall = time.process_time() - driver, time.monotonic() - started
            engine.close()
        assert len(state.done) == count, state.failed
    each = wall * workers / count
    return {
        "engine": engine_name,
        "cells": count,
        "workers": workers,
        "start_seconds": round(started - began, 2),
        "wall_seconds": round(wall, 2),
        "overhead_seconds_per_cell": round(each, 4),
        "share_of_a_two_minute_cell": round(each / CELL_SECONDS, 6),
        "driver_processor_seconds_per_cell": round(driver / count, 5),
        "driver_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def open_engine(name: str, workers: int) -> Engine:
    if name == "local":
        return LocalEngine(nothing, workers)
    from ringfence.experiments.ray_engine import RayEngine

    return RayEngine(nothing, workers=workers)


def main() -> None:
    parser = argparse.ArgumentParser(description="measure the overhead of the experiment runner")
    parser.add_argument("--engine", choices=("ray", "local"), default="ray")
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = measure(options.engine, options.cells, options.workers)
    print(*(f"{name}: {value}" for name, value in found.items()), sep="\n")
    if options.out:
        write_json(options.out, {**found, "machine": describe()})


if __name__ == "__main__":
    main()
