"""Cells that take no time, and what workers do with them in the tests of the runner."""

import json
import os
import signal
import threading
import time
from pathlib import Path

from ringfence.errors import EmptyData
from ringfence.experiments.grid import Cell, Experiment, LogSource, Schedule, Variant
from ringfence.files import write_json


def experiment(*labels, seeds=(0,), **settings):
    """A cell for each label and seed. The label says what its worker does."""
    return Experiment("trivial", tuple(cell(label, seed, **settings) for seed in seeds for label in labels))


def cell(label, seed=0, **settings):
    source = LogSource("nowhere.csv")
    return Cell(source, "0" * 16, Variant(label, "none", settings=settings), settings, 30.0, seed, Schedule(steps=10))


LOGS = {"0" * 16: "nowhere.csv"}


def work(cell: Cell, path: Path, log: Path):
    """Ten steps, each noted and saved. A label such as "killed" is a fault in the fifth step of an attempt, in as many
    attempts as `times` says."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "entered").open("a").write(f"{os.getpid()}\n")
    entered = len((path / "entered").read_text().split())
    told = cell.hyperparameters
    label = cell.variant.label.split()[0]
    checkpoint = path / "checkpoints" / "step-1.json"
    done = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
    for step in range(done, 10):
        with (path / "steps").open("a") as file:
            file.write(f"{step}\n")
        write_json(checkpoint, step + 1)  # whole, whenever Ctrl-C comes
        if step - done == 4 and entered <= told.get("times", 1):
            if label == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if label == "interrupted":
                os.kill(os.getpid(), signal.SIGINT)
            if label == "raises":
                raise ValueError("a fault of the cell")
            if label == "refused":
                raise EmptyData("no episode is inside the limit")
        time.sleep(told.get("pause", 0.0))
    (path / "ended").open("a").write("once\n")
    return {"id": cell.id, "seed": cell.seed, "square": cell.seed**2, "threads": int(os.environ["NPROC"])}


def train_cell_killed_once(cell: Cell, path: Path, log: Path):
    """`train_cell`, killed as soon as its first attempt has written a checkpoint. The second must not begin anew."""
    from ringfence import api
    from ringfence.experiments.cell import train_cell

    seen, mark = path / "checkpoints", path.with_suffix(".killed")

    def kill():
        while not (written := sorted(seen.glob("step-*.json"))):
            time.sleep(0.001)
        mark.write_text(written[-1].stem)
        os.kill(os.getpid(), signal.SIGKILL)

    def train(*_, **__):
        raise AssertionError("the cell began anew")

    if mark.exists():
        api.train = train
    else:
        threading.Thread(target=kill, daemon=True).start()
    return train_cell(cell, path, log)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def drive(store, engine, *labels, **settings):
    """Run a trivial experiment in a process of its own: `python -c "from tests.experiments.trivial import drive; ..."`."""
    from ringfence.experiments.engines import LocalEngine
    from ringfence.experiments.ray_engine import RayEngine
    from ringfence.experiments.runner import run_experiment
    from ringfence.experiments.store import open_store

    made = LocalEngine(work, 2) if engine == "local" else RayEngine(work, workers=2)
    try:
        run_experiment(experiment(*labels, **settings), open_store(store), made, LOGS, elsewhere_wait=0.2)
    finally:
        made.close()
