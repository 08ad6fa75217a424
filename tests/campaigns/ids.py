"""Odd names of episodes and sources in every format: the rows are grouped as a plain comparison groups them."""

import random
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ringfence.data import load_file
from tests.data.example_logs import columns, without, write_foreign

FORMATS = (".h5", ".npz", ".parquet", ".csv")
KINDS: dict[str, Callable[[int], Any]] = {
    "time stamps": lambda k: 1.7e9 + k,
    "large whole numbers": lambda k: 2**53 + k,
    "larger than 63 bits": lambda k: np.uint64(2**63 + k),
    "negative": lambda k: -1 - k,
    "fractions": lambda k: k + 0.1,
    "next floats": lambda k: float(np.nextafter(1.0, 2.0)) if k % 2 else 1.0,
    "text": lambda k: f"run {k}",
    "text like numbers": lambda k: f"{k}e0",
    "long text": lambda k: "x" * 3000 + str(k),
    "odd text": lambda k: ("ö", "a'b", 'a"b', "a;b", "[a]", "\u2028", "a b", "NULL")[k % 8],
    "bytes": lambda k: f"run {k}".encode(),
}


def cases(seed: int, count: int = 1000) -> dict[str, Callable[[], tuple[str, str]]]:
    rng = random.Random(seed)
    found = {}
    for index in range(count):
        kind, suffix, column = rng.choice(list(KINDS)), rng.choice(FORMATS), rng.choice(("episode", "source"))
        groups = [rng.randrange(8) for _ in range(rng.randint(1, 6))]
        lengths = [rng.randint(1, 9) for _ in groups]
        found[f"{index} {kind} as {column} in {suffix}"] = partial(judge, kind, suffix, column, groups, lengths)
    return found


def judge(kind: str, suffix: str, column: str, groups: Sequence[int], lengths: Sequence[int]) -> tuple[str, str]:
    ids = [KINDS[kind](group) for group, length in zip(groups, lengths, strict=True) for _ in range(length)]
    if kind == "bytes" and suffix in (".parquet", ".csv"):
        ids = [value.decode() for value in ids]
    rows = len(ids)
    log = without(columns(rows), "truncations", "terminations") | {column: np.array(ids)}
    if column == "source":
        log["terminations"] = np.arange(rows) == rows - 1
    with tempfile.TemporaryDirectory() as directory:
        dataset = load_file(write_foreign(log, Path(directory) / f"log{suffix}"))
    if column == "source":
        names = {}
        for value, code in zip(ids, dataset.source.tolist(), strict=True):
            if names.setdefault(value, code) != code:
                return "OTHER GROUPS", f"{value!r}"
        return ("same", "") if len(set(names.values())) == len(names) else ("OTHER GROUPS", str(names))
    stretches = 1 + sum(a != b for a, b in pairwise(ids))
    if stretches != len(set(ids)):
        return "INTERLEAVED", "accepted"
    return (
        ("same", "") if len(dataset.episode_starts) == stretches else ("OTHER GROUPS", f"{len(dataset.episode_starts)}")
    )
