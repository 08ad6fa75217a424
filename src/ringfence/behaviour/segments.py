"""Experience for on-policy training: fixed-length segments of a stochastic policy, from fresh starts.

Each iteration starts from new episodes, so an iteration depends on the policy and its seeds alone: training can be
killed and resumed exactly, and the work can be split over processes with one message each way.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from ringfence import tasks
from ringfence.data.episodes import discounted_sum
from ringfence.deploy import KINDS, RowNoise
from ringfence.deploy.network import outputs
from ringfence.training.artifact import layer_tensors

MeanFunction = Callable[[Float[np.ndarray, "batch obs"]], Float[np.ndarray, "batch act"]]


@dataclass(frozen=True)
class NumpyActor:
    """The mean of the policy in NumPy, from raw observations: what steps environments, also in other processes."""

    tensors: dict[str, np.ndarray]
    observation_mean: Float[np.ndarray, " obs"]
    observation_std: Float[np.ndarray, " obs"]

    @classmethod
    def of(cls, actor: Any, moments: Any) -> "NumpyActor":
        return cls(layer_tensors("actor", actor), np.asarray(moments.mean), np.asarray(moments.std))

    def __call__(self, observations: Float[np.ndarray, "batch obs"]) -> Float[np.ndarray, "batch act"]:
        normalised = (observations - self.observation_mean) / self.observation_std
        mean: np.ndarray = outputs(KINDS["clipped-gaussian"].networks["actor"], self.tensors, normalised)
        return mean


class Segments(NamedTuple):
    """`steps` steps in each of `envs` environments, in the order they were made."""

    observations: Float[np.ndarray, "steps envs obs"]
    actions: Float[np.ndarray, "steps envs act"]  # the Gaussian's sample, before it is cut off at -1 and 1
    rewards: Float[np.ndarray, "steps envs"]
    costs: Float[np.ndarray, "steps envs"]
    next_observations: Float[np.ndarray, "steps envs obs"]  # at an episode's end, its last observation
    terminated: Bool[np.ndarray, "steps envs"]
    ended: Bool[np.ndarray, "steps envs"]  # terminated or truncated: the next row is another episode

    @property
    def size(self) -> int:
        return self.rewards.size

    @staticmethod
    def join(parts: "Sequence[Segments]") -> "Segments":
        return Segments(*(np.concatenate(column, axis=1) for column in zip(*parts, strict=True)))


def run_segments(envs: Sequence[Any], mean: MeanFunction, std: float, seeds: Sequence[int], steps: int) -> Segments:
    """Step environment i from `reset(seed=seeds[i])`; u ~ N(mean(s), std^2), executed is clip(u, -1, 1), scaled to the
    environment's own range of actions."""
    noise = RowNoise([np.random.default_rng([seed, 1]) for seed in seeds])
    low, high = envs[0].action_space.low, envs[0].action_space.high
    centre, half = (high + low) / 2, (high - low) / 2
    now = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]).astype(np.float32)
    rows: list[tuple[np.ndarray, ...]] = []
    for _ in range(steps):
        means = mean(now)
        actions = means + np.float32(std) * noise.standard_normal(means.shape).astype(np.float32)
        executed = centre + half * np.clip(actions, -1.0, 1.0)
        results = [env.step(action) for env, action in zip(envs, executed, strict=True)]
        following = np.stack([result[0] for result in results]).astype(np.float32)
        rewards, costs = [result[1] for result in results], [result[4]["cost"] for result in results]
        terminated = np.array([result[2] for result in results])
        ended = terminated | np.array([result[3] for result in results])
        rows.append((now, actions, np.array(rewards), np.array(costs), following, terminated, ended))
        now = following.copy()
        for i in np.flatnonzero(ended).tolist():
            now[i] = envs[i].reset()[0]
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    return Segments(*(c.astype(np.float32) if c.dtype == np.float64 else c for c in columns))


@dataclass(frozen=True)
class EpisodeSums:
    """Means over the episodes that ended within the segments, of undiscounted and discounted sums."""

    episodes: int
    mean_return: float
    mean_cost: float
    mean_discounted_cost: float
    mean_length: float
    mean_discounted_length: float  # sum over steps of discount^t


def episode_sums(segments: Segments, discount: float) -> EpisodeSums:
    """An episode that the segment's end cuts short is left out, unless it is its environment's first."""
    steps, envs = segments.ended.shape
    found = []
    for env in range(envs):
        ends = [int(t) + 1 for t in np.flatnonzero(segments.ended[:, env])] or [steps]
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            rewards, costs = segments.rewards[start:end, env], segments.costs[start:end, env]
            lengths = (end - start, discounted_sum(np.ones(end - start), discount))
            found.append((rewards.sum(), costs.sum(), discounted_sum(costs, discount), *lengths))
    return EpisodeSums(len(found), *(float(x) for x in np.mean(found, axis=0)))


# Over processes


@lru_cache(maxsize=2)
def _own_envs(task: str | tasks.Task, count: int) -> list[Any]:
    return [tasks.make(task) for _ in range(count)]


def _run_share(task: str | tasks.Task, mean: MeanFunction, std: float, seeds: Sequence[int], steps: int) -> Segments:
    return run_segments(_own_envs(task, len(seeds)), mean, std, seeds, steps)


class Sampler:
    """Makes segments in this process, or shares them out over `workers` processes; the result is the same."""

    def __init__(self, task: str | tasks.Task, workers: int = 1):
        self.task, self.workers = task, workers
        self._pool = None if workers == 1 else ProcessPoolExecutor(workers, mp_context=_spawn())

    def __call__(self, mean: MeanFunction, std: float, seeds: Sequence[int], steps: int) -> Segments:
        if self._pool is None:
            return _run_share(self.task, mean, std, seeds, steps)
        size = -(-len(seeds) // self.workers)
        shares = [seeds[i : i + size] for i in range(0, len(seeds), size)]
        parts = [self._pool.submit(_run_share, self.task, mean, std, share, steps) for share in shares]
        return Segments.join([part.result() for part in parts])

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


def _spawn() -> Any:
    """Fresh processes: a fork of a process that runs JAX's threads can hang."""
    return multiprocessing.get_context("spawn")
