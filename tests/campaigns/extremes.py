"""Numbers at the edge of what floats hold, in every column and format: refused, or finite all the way to the summary."""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from ringfence.data import load_file, save, summarise
from ringfence.limits import Limit
from tests.data.example_logs import assert_same, columns, write_foreign

VALUES = (np.nan, np.inf, -np.inf, 3.4028235e38, -3.4028235e38, 3.5e38, 1e37, -1e37, 1.1e37, 1e300, -1e300, 1e25, -1e25)
VALUES = (*VALUES, 1.7e9, 5e-324, 1e-45, -0.0)
COLUMNS = ("observations", "next_observations", "actions", "rewards", "costs", "terminations", "truncations")
FORMATS = (".h5", ".npz", ".parquet", ".csv")


def cases() -> dict[str, Callable[[], tuple[str, str]]]:
    places = {"one row": slice(3, 4), "all rows": slice(None), "half": slice(None, None, 2)}
    return {
        f"{value} in {column}, {place}, {suffix}": partial(judge, column, rows, value, suffix)
        for value, column, (place, rows), suffix in product(VALUES, COLUMNS, places.items(), FORMATS)
    }


def judge(column: str, rows: slice, value: float, suffix: str) -> tuple[str, str]:
    log = columns(40)
    values = np.array(log[column], np.float64)
    values[rows] = value
    with tempfile.TemporaryDirectory() as directory:
        dataset = load_file(write_foreign(log | {column: values}, Path(directory) / f"log{suffix}"))
        summary = summarise(dataset, 0.99, Limit(1.0))
        json.dumps(summary.to_dict(), allow_nan=False)
        normalised = dataset.normaliser(dataset.observations)
        if not (np.isfinite(normalised).all() and np.isfinite(dataset.action_high - dataset.action_low).all()):
            return "NOT FINITE", "after scaling"
        kept = getattr(dataset, column).astype(np.float64)
        if column != "actions" and not np.allclose(kept, values, rtol=1e-6, atol=1e-38):
            return "OTHER NUMBERS", column
        save(dataset, Path(directory) / "again.h5")
        assert_same(load_file(Path(directory) / "again.h5"), dataset)
    return "same", ""
