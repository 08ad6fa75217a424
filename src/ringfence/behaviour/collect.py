"""Logs made of several behaviour policies: `collect`.

Episode e of source j is seeded by (seed, j, e) and depends on nothing else, so the same seed gives the same log
whatever the number of processes. Each source contributes its share of the rows in whole episodes, of which the last
is cut off (marked truncated) where the share is full.
"""

import itertools
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from ringfence import __version__, tasks
from ringfence.behaviour.pool import SIDE_BY_SIDE, EpisodePool, in_order
from ringfence.behaviour.shipped import BEHAVIOURS, shipped_policy
from ringfence.data.dataset import Dataset
from ringfence.data.names import units_in_names
from ringfence.data.writers import require_writable, save
from ringfence.deploy import Policy
from ringfence.errors import InvalidSetting
from ringfence.evaluation.episodes import Controller, Episode

COLLECTOR = 1  # changes when the same arguments would give another log
Progress = Callable[[int, int], None]
"""Called with (rows made, rows in all)."""


def collect(
    task: str | tasks.Task,
    size: int,
    out: str | Path,
    *,
    seed: int = 0,
    policies: Sequence[Controller | str | Path] | None = None,
    shares: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Log `size` transitions of a mixture of policies to `out` (HDF5 with the DSRL keys; or by its suffix).

    `policies` are `Policy` objects, policy files or functions from observations to actions; by default the shipped
    pair of the task. Policies are sampled, and the executed action is recorded. `shares` are in proportion, by default
    equal. `workers` defaults to the number of cores; only built-in tasks with policy files can be spread over
    processes. The file appears whole or not at all: after a kill, start again.
    """
    out = Path(out)
    require_writable(out, overwrite=overwrite)
    dataset = collect_dataset(
        task, size, seed=seed, policies=policies, shares=shares, names=names, workers=workers, progress=progress
    )
    save(dataset, out, overwrite=overwrite)
    return out


def collect_dataset(
    task: str | tasks.Task,
    size: int,
    *,
    seed: int = 0,
    policies: Sequence[Controller | str | Path] | None = None,
    shares: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """As `collect`, but in memory."""
    found = tasks.find(task)
    controllers, names = _sources(found, policies, names)
    rows = rows_per_source(size, [1.0] * len(controllers) if shares is None else shares, len(controllers))
    done = 0

    def count(episode: Episode) -> None:
        nonlocal done
        done = min(done + len(episode), size)
        if progress:
            progress(done, size)

    with _Runner(found, controllers, workers) as runner:
        collected = []
        for source, wanted in enumerate(rows):
            collected.append(take(runner.episodes(source, seed), wanted, count))
    metadata = {
        "task": found.name,
        "environment": found.env_id,
        "cost": found.cost if isinstance(found.cost, str) else "other",
        "limit": found.limit,
        "discount": found.discount,
        "horizon": found.horizon,
        "seed": seed,
        "rows per source": rows,
        "policies": [_described(c, name) for c, name in zip(controllers, names, strict=True)],
        "collector": COLLECTOR,
        "version": __version__,
    }
    return _to_dataset(interleaved(collected), names, found, metadata)


def rows_per_source(size: int, shares: Sequence[float], sources: int) -> list[int]:
    """Split `size` in proportion to `shares`; rounding never loses a row."""
    weights = np.asarray(shares, float)
    if size < 1:
        raise InvalidSetting(f"size must be at least 1 transition, not {size}")
    if weights.shape != (sources,) or not (np.isfinite(weights).all() and (weights > 0).all()):
        raise InvalidSetting(
            f"shares must be one positive number for each of the {sources} policies, not {list(shares)}"
        )
    edges = np.round(size * np.cumsum(weights) / weights.sum()).astype(int)
    rows: list[int] = np.diff(edges, prepend=0).tolist()
    return rows


def episode_seed(seed: int, source: int, episode: int) -> int:
    return int(np.random.SeedSequence([seed, source, episode]).generate_state(1)[0])


def take(episodes: Iterator[Episode], rows: int, count: Callable[[Episode], None]) -> list[Episode]:
    """Episodes up to exactly `rows` rows; the last one cut off, which is a truncation."""
    taken: list[Episode] = []
    while rows > 0:
        episode = next(episodes)
        taken.append(episode if len(episode) <= rows else cut(episode, rows))
        rows -= len(taken[-1])
        count(taken[-1])
    return taken


def cut(episode: Episode, rows: int) -> Episode:
    actions, rewards, costs = (x[:rows] for x in (episode.actions, episode.rewards, episode.costs))
    return Episode(episode.observations[: rows + 1], actions, rewards, costs, terminated=False, truncated=True)


def interleaved(collected: Sequence[Sequence[Episode]]) -> list[tuple[int, Episode]]:
    """(source, episode) in an order that mixes the sources evenly, so that the first part of a log is a mixture too."""
    placed = []
    for source, episodes in enumerate(collected):
        starts = np.cumsum([0, *(len(e) for e in episodes)])
        placed += [(starts[i] / starts[-1], source, i) for i in range(len(episodes))]
    return [(source, collected[source][i]) for _, source, i in sorted(placed)]


class _Runner:
    """Runs the sources' episodes: over processes where possible, else in this one."""

    def __init__(self, task: tasks.Task, controllers: Sequence[Controller], workers: int | None):
        self.task, self.controllers = task, controllers
        workers = (os.cpu_count() or 1) if workers is None else workers
        if workers < 1:
            raise InvalidSetting(f"workers must be at least 1, not {workers}")
        shareable = tasks.TASKS.get(task.name) == task and all(isinstance(c, Policy) for c in controllers)
        self.workers = workers if shareable else 1

    def __enter__(self) -> "_Runner":
        self._files = tempfile.TemporaryDirectory()
        self._pool = EpisodePool(self.task.name, self.workers) if self.workers > 1 else None
        self._envs = [] if self._pool else [tasks.make(self.task) for _ in range(SIDE_BY_SIDE)]
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.close()
        for env in self._envs:
            env.close()
        self._files.cleanup()

    def episodes(self, source: int, seed: int) -> Iterator[Episode]:
        """The source's episodes without end, in order."""
        chunks = (
            [episode_seed(seed, source, e) for e in range(start, start + SIDE_BY_SIDE)]
            for start in itertools.count(0, SIDE_BY_SIDE)
        )
        controller = self.controllers[source]
        if self._pool is None:
            for seeds in chunks:
                yield from in_order(controller, self._envs, seeds)
            return
        assert isinstance(controller, Policy)
        path = controller.save(Path(self._files.name) / f"{source}.safetensors")
        ahead = deque(self._pool.submit(path, next(chunks)) for _ in range(2 * self.workers))
        try:
            while True:
                yield from ahead.popleft().result()
                ahead.append(self._pool.submit(path, next(chunks)))
        finally:
            for future in ahead:
                future.cancel()


def _sources(
    task: tasks.Task, policies: Sequence[Controller | str | Path] | None, names: Sequence[str] | None
) -> tuple[list[Controller], list[str]]:
    controllers: list[Controller]
    default: Sequence[str]
    if policies is None:
        controllers, default = [shipped_policy(task.name, behaviour) for behaviour in BEHAVIOURS], BEHAVIOURS
    else:
        controllers = [Policy.load(p) if isinstance(p, str | Path) else p for p in policies]
        default = [Path(p).stem if isinstance(p, str | Path) else getattr(p, "__name__", "policy") for p in policies]
    if not controllers:
        raise InvalidSetting("give at least one policy")
    named = list(default if names is None else names)
    if len(named) != len(controllers):
        raise InvalidSetting(f"{len(named)} names were given for {len(controllers)} policies")
    return controllers, [n if named.count(n) == 1 else f"{n}-{i}" for i, n in enumerate(named)]


def _described(controller: Controller, name: str) -> dict[str, Any]:
    if not isinstance(controller, Policy):
        return {"name": name, "kind": "function"}
    return {"name": name, "kind": controller.kind, "sha256": controller.checksum, **controller.metadata}


def _to_dataset(
    placed: Sequence[tuple[int, Episode]], names: Sequence[str], task: tasks.Task, metadata: dict[str, Any]
) -> Dataset:
    episodes = [episode for _, episode in placed]
    last = np.cumsum([len(e) for e in episodes]) - 1
    env = tasks.make(task)
    space: Any = env.action_space
    observation_names, action_names = (
        getattr(env.unwrapped, name, None) for name in ("observation_names", "action_names")
    )
    env.close()
    return Dataset.from_arrays(
        observations=np.concatenate([e.observations[:-1] for e in episodes]),
        next_observations=np.concatenate([e.observations[1:] for e in episodes]),
        actions=np.concatenate([e.actions for e in episodes]),
        rewards=np.concatenate([e.rewards for e in episodes]).astype(np.float32),
        costs=np.concatenate([e.costs for e in episodes]).astype(np.float32),
        terminations=_flags(last, [e.terminated for e in episodes]),
        truncations=_flags(last, [e.truncated for e in episodes]),
        source=np.repeat([source for source, _ in placed], [len(e) for e in episodes]),
        source_names=names,
        action_low=space.low,
        action_high=space.high,
        observation_names=observation_names,
        action_names=action_names,
        units=units_in_names([*(observation_names or ()), *(action_names or ())]),
        name=task.name,
        metadata=metadata,
    )


def _flags(last: Int[np.ndarray, " episodes"], values: Sequence[bool]) -> np.ndarray:
    flags = np.zeros(last[-1] + 1, bool)
    flags[last] = values
    return flags
