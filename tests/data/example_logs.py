"""Small logs for the tests, and files as other programs would write them."""

import csv
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ringfence.data import Dataset

DSRL_KEYS = {"terminations": "terminals", "truncations": "timeouts"}
TABLE_NAMES = {
    "observations": "obs_",
    "actions": "action_",
    "next_observations": "next_obs_",
    "rewards": "reward",
    "costs": "cost",
    "terminations": "terminated",
    "truncations": "truncated",
}
SAVED_FORMATS = (".h5", ".hdf5", ".npz", ".parquet")
ALL_FORMATS = (*SAVED_FORMATS, ".csv")


def columns(rows: int = 40, seed: int = 0) -> dict[str, Any]:
    """A log of episodes of 10 rows that end, in turn, by termination and by truncation."""
    rng = np.random.default_rng(seed)
    path = rng.normal(size=(rows + 1, 3)).astype(np.float32)
    step = np.arange(rows)
    return {
        "observations": path[:-1],
        "actions": rng.uniform(-1, 1, size=(rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "costs": rng.uniform(0, 2, size=rows).astype(np.float32),
        "next_observations": path[1:],
        "terminations": step % 20 == 9,
        "truncations": step % 20 == 19,
    }


def without(log: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values for name, values in log.items() if name not in names}


def full_dataset() -> Dataset:
    """One with everything a dataset can hold."""
    return Dataset.from_arrays(
        **columns(),
        source=np.repeat([1, 0, 1, 2], 10),
        source_names=("slow", "fast", "öl"),
        action_low=[-2, -1],
        action_high=[2, 1.5],
        observation_names=("Tc [K]", "flow", "öl"),
        action_names=("valve", "pump"),
        units={"Tc [K]": "K", "pump": "1/min", "rewards": "€"},
        name="valve",
        notes=("written by a test",),
        metadata={"task": "valve", "seed": 3, "policies": ["a", "b"], "discount": 0.99},
    )


def write_foreign(log: dict[str, Any], path: Path) -> Path:
    """The columns as another program would write them; tables need columns of one or two dimensions."""
    if path.suffix in (".h5", ".hdf5"):
        with h5py.File(path, "w") as file:
            for name, values in log.items():
                text = np.asarray(values).dtype.kind in "UO"
                data = np.asarray(values).astype(object) if text else values
                kind = h5py.string_dtype() if text else None
                file.create_dataset(DSRL_KEYS.get(name, name), data=data, dtype=kind)
    elif path.suffix == ".npz":
        np.savez(path, **{DSRL_KEYS.get(name, name): values for name, values in log.items()})
    elif path.suffix == ".parquet":
        pq.write_table(
            pa.table({name: pa.array(np.asarray(values)) for name, values in table_columns(log).items()}), path
        )
    else:
        table = table_columns(log)
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))
    return path


def table_columns(log: dict[str, Any]) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {}
    for name, values in log.items():
        array = np.asarray(values)
        if array.ndim == 1:
            table[TABLE_NAMES.get(name, name)] = array.tolist()
        else:
            table |= {f"{TABLE_NAMES[name]}{index}": array[:, index].tolist() for index in range(array.shape[1])}
    return table


def assert_same(left: Dataset, right: Dataset) -> None:
    assert left.fingerprint == right.fingerprint
    assert (left.name, left.notes, left.metadata) == (right.name, right.notes, right.metadata)
    assert left.source_names == right.source_names
    assert (left.observation_names, left.action_names) == (right.observation_names, right.action_names)
    assert left.units == right.units
    if left.source is None or right.source is None:
        assert left.source is right.source
    else:
        np.testing.assert_array_equal(left.source, right.source)
