"""Large logs: time to read them, memory to hold them and to train on them."""

import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

WALKER = (17, 6)  # observations, actions


def peak_megabytes() -> float:
    """The most memory this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def write_log(folder: str, rows: int) -> dict[str, Any]:
    """The same log as HDF5 and as Parquet."""
    from ringfence.data import Dataset, save

    rng = np.random.default_rng(0)
    observations = rng.standard_normal((rows, WALKER[0]), np.float32)
    log = Dataset.from_arrays(
        observations=observations,
        next_observations=np.roll(observations, -1, 0),
        actions=rng.uniform(-1, 1, (rows, WALKER[1])).astype(np.float32),
        rewards=rng.random(rows, np.float32),
        costs=rng.random(rows, np.float32),
        terminations=np.zeros(rows, bool),
        truncations=np.arange(1, rows + 1) % 1000 == 0,
    )
    written = {}
    for suffix in ("h5", "parquet"):
        began = time.perf_counter()
        save(log, Path(folder) / f"log.{suffix}")
        written[f"write_{suffix}_seconds"] = time.perf_counter() - began
    return written


def load(path: str) -> dict[str, Any]:
    """Read a log, and how much memory that took beyond an idle Python with the same imports."""
    import h5py  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from ringfence.data import load_file

    idle = peak_megabytes()
    began = time.perf_counter()
    log = load_file(path)
    seconds = time.perf_counter() - began
    columns = [getattr(log, name) for name in ("observations", "next_observations", "actions", "rewards", "costs")]
    data = sum(column.nbytes for column in columns) / 2**20
    peak = peak_megabytes() - idle
    return {
        "seconds": seconds,
        "rows_per_second": len(log) / seconds,
        "data_megabytes": data,
        "peak_megabytes": peak,
        "peak_over_data": peak / data,
    }


def train(path: str, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Train on a log through the public API, and the most memory the process ever had."""
    from ringfence.algorithms import CPQ
    from ringfence.api import train as train_policy

    method = CPQ(limit=30.0, cvae_steps=steps, **{name: tuple_of(value) for name, value in settings.items()})
    train_policy(path, method, steps=steps, progress=False)
    return {"peak_megabytes": peak_megabytes()}


def sampling(rows: int, batch: int = 256, draws: int = 2000) -> dict[str, Any]:
    """Batches per second that the device draws out of a log, as they are drawn inside training."""
    import jax
    import jax.numpy as jnp

    from benchmarks.machine import best_seconds
    from benchmarks.workload import random_data
    from ringfence.algorithms.batches import Transitions

    data = random_data(rows, *WALKER)

    @jax.jit
    def draw(data: Any) -> Any:
        def body(number: Any, total: Any) -> Any:
            key = jax.random.fold_in(jax.random.key(0), number)
            drawn = Transitions(batch).draw(data, key, ())._replace(starts=None)  # few methods use the starts
            return total + sum(x.sum() for x in jax.tree.leaves(drawn))

        return jax.lax.fori_loop(0, draws, body, jnp.zeros(()))

    return {"batches_per_second": draws / best_seconds(lambda: draw(data).block_until_ready(), 1.0).wall}


def tuple_of(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value


def large_log(rows: int, settings: dict[str, Any], steps: int = 50) -> dict[str, Any]:
    """All of the above on one log of Walker2d's size. What training needs is compared with training on a tiny log, so
    that Python and JAX themselves do not count."""
    from benchmarks.child import measure

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as tiny:
        # In a process of its own: a child starts with the greatest memory that its parent has had.
        written = measure("benchmarks.logs:write_log", {"folder": folder, "rows": rows})
        measured: dict[str, Any] = {"rows": rows, **written}
        measure("benchmarks.logs:write_log", {"folder": tiny, "rows": 5000})
        for suffix in ("h5", "parquet"):
            measured[suffix] = measure("benchmarks.logs:load", {"path": f"{folder}/log.{suffix}"})
        how = {"settings": settings, "steps": steps}
        training = measure("benchmarks.logs:train", {"path": f"{folder}/log.h5", **how})["peak_megabytes"]
        idle = measure("benchmarks.logs:train", {"path": f"{tiny}/log.h5", **how})["peak_megabytes"]
    data = measured["h5"]["data_megabytes"]
    measured["train"] = {
        "peak_megabytes": training,
        "peak_on_a_tiny_log_megabytes": idle,
        "for_the_log_over_data": (training - idle) / data,
    }
    measured["sampling"] = measure("benchmarks.logs:sampling", {"rows": rows})
    return measured
