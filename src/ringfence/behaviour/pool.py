"""Episodes from several processes at once.

The workers are plain subprocesses that are sent JSON and answer with safetensors. Unlike `multiprocessing`'s, they do
not import the caller's script, so this works from notebooks and from scripts without a main guard.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors.numpy import load, save

from ringfence import tasks
from ringfence.deploy import Policy
from ringfence.errors import RingfenceError
from ringfence.evaluation.episodes import Episode, run_episodes

SIDE_BY_SIDE = 8  # environments in one process, so that the policy is called in batches


class EpisodePool:
    """`submit(policy file, seeds)` gives a future of the episodes of these seeds, in their order."""

    def __init__(self, task: str, workers: int):
        self.task = task
        self._threads = ThreadPoolExecutor(workers)
        self._own = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []

    def submit(self, policy: Path, seeds: Sequence[int]) -> "Future[list[Episode]]":
        return self._threads.submit(self._ask, {"task": self.task, "policy": str(policy), "seeds": list(seeds)})

    def _ask(self, job: dict[str, Any]) -> list[Episode]:
        process = self._process()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # said below, when nothing comes back
        content = _receive(process.stdout)
        if content is None:
            raise RingfenceError("a worker process ended before its work was done; try again with fewer workers")
        return unpack(content)

    def _process(self) -> "subprocess.Popen[bytes]":
        """One process per thread."""
        if not hasattr(self._own, "process"):
            command = [sys.executable, "-m", "ringfence.behaviour.pool"]
            self._own.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._processes.append(self._own.process)
        process: subprocess.Popen[bytes] = self._own.process
        return process

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()


def work(requests: IO[bytes], answers: IO[bytes]) -> None:
    """A worker's life: read a job, run it, answer; end when the requests do."""
    envs: dict[str, list[Any]] = {}
    policies: dict[str, Policy] = {}
    for line in requests:
        job = json.loads(line)
        if job["task"] not in envs:
            envs[job["task"]] = [tasks.make(job["task"]) for _ in range(SIDE_BY_SIDE)]
        if job["policy"] not in policies:
            policies[job["policy"]] = Policy.load(job["policy"])
        episodes = in_order(policies[job["policy"]], envs[job["task"]], job["seeds"])
        content = pack(episodes)
        answers.write(len(content).to_bytes(8, "little") + content)
        answers.flush()


def in_order(controller: Any, envs: Sequence[Any], seeds: Sequence[int]) -> list[Episode]:
    """The sampled policy's episodes, in the order of their seeds."""
    numbered = dict(run_episodes(controller, envs, seeds, deterministic=False))
    return [numbered[i] for i in range(len(seeds))]


def pack(episodes: Sequence[Episode]) -> bytes:
    columns = ("observations", "actions", "rewards", "costs")
    joined = {name: np.concatenate([getattr(e, name) for e in episodes]) for name in columns}
    ends = {name: np.array([getattr(e, name) for e in episodes]) for name in ("terminated", "truncated")}
    return bytes(save({**joined, **ends, "lengths": np.array([len(e) for e in episodes])}))


def unpack(content: bytes) -> list[Episode]:
    arrays = load(content)
    lengths = arrays["lengths"]
    cuts = np.cumsum(lengths)[:-1]
    parts = [np.split(arrays["observations"], np.cumsum(lengths + 1)[:-1])]
    parts += [np.split(arrays[name], cuts) for name in ("actions", "rewards", "costs")]
    ends = (arrays["terminated"].tolist(), arrays["truncated"].tolist())
    return [Episode(*row) for row in zip(*parts, *ends, strict=True)]


def _receive(stream: IO[bytes]) -> bytes | None:
    size = stream.read(8)
    if len(size) < 8:
        return None
    content = stream.read(expected := int.from_bytes(size, "little"))
    return content if len(content) == expected else None


if __name__ == "__main__":
    work(sys.stdin.buffer, sys.stdout.buffer)
