"""The built-in tasks' datasets, made on first use and kept in the user's cache directory."""

import hashlib
import json
from pathlib import Path

from ringfence import tasks
from ringfence.behaviour.collect import COLLECTOR, Progress, collect
from ringfence.behaviour.shipped import BEHAVIOURS, shipped_policy
from ringfence.errors import UnknownName
from ringfence.files import cache_directory

PAPER_SIZE = 2_000_000


def dataset_path(name: str, size: int = PAPER_SIZE, seed: int = 0) -> Path:
    """Where the dataset is, or will be: its name holds a fingerprint of everything that it is made from."""
    if name not in tasks.TASKS:
        raise UnknownName(f"no built-in dataset is called {name!r}; there are {', '.join(tasks.TASKS)}")
    policies = [shipped_policy(name, behaviour).checksum for behaviour in BEHAVIOURS]
    made_from = json.dumps([name, size, seed, COLLECTOR, *policies])
    fingerprint = hashlib.sha256(made_from.encode()).hexdigest()[:12]
    return cache_directory() / "datasets" / f"{name}-{size}-{fingerprint}.h5"


def builtin_dataset(
    name: str, size: int = PAPER_SIZE, seed: int = 0, *, workers: int | None = None, progress: Progress | None = None
) -> Path:
    """The half unsafe, half safe log of a built-in task: from the cache, or made now and kept there.

    Two processes that make the same dataset at once both write it whole; the contents are the same.
    """
    path = dataset_path(name, size, seed)
    if not path.exists():
        collect(name, size, path, seed=seed, workers=workers, overwrite=True, progress=progress)
    return path
