"""How long cells take, from measured speeds.

A finished cell of the same kind is the best measurement. Before there is one, a few hundred steps of each stage of the
method and a few episodes of the task are timed in a process of its own, with a worker's number of threads, and kept in
the cache directory. What is timed on processors is processor time, so that other work on the machine does not count.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ringfence import __version__
from ringfence.data import Dataset
from ringfence.errors import SimulatorError
from ringfence.experiments.grid import Cell, Variant, short_digest
from ringfence.experiments.worker import thread_environment
from ringfence.files import cache_directory, machine_fingerprint, write_json
from ringfence.values import is_number

SECONDS = 2.0  # how long each stage is timed for
EPISODES = 4
LONGEST = 1000  # steps of an episode that a task may never end; training cuts it off where the log's were
START = 8.0  # seconds: imports, reading the log, compiled programs from the cache
UNKNOWN_SIZES = (17, 6)  # of a log that cannot be seen yet


@dataclass(frozen=True)
class Speeds:
    """Seconds for a step of each stage, by the digest of the method's settings; for an episode, by task."""

    steps: Mapping[str, Mapping[str, float]]
    episodes: Mapping[str, float]
    cells: Mapping[str, float]  # seconds of finished cells, by `kind`

    def seconds(self, cell: Cell) -> float:
        """How long the cell should take from its start to its end."""
        if (known := self.cells.get(kind(cell))) is not None:
            return known
        per_step, schedule = self.steps[settings(cell)], cell.schedule
        learning: float = sum(
            stage.steps * per_step[stage.name] for stage in cell.variant.make().stages(schedule.steps)
        )
        if cell.task is None:
            return START + learning
        evaluations = -(-schedule.steps // schedule.evaluate_every)
        return START + learning + self.episodes[cell.task] * (evaluations * schedule.episodes + schedule.test_episodes)


def kind(cell: Cell) -> str:
    """Cells that differ in seed and limit only take about as long as each other."""
    schedule = cell.schedule
    lengths = [schedule.steps, schedule.evaluate_every, schedule.episodes, schedule.test_episodes]
    return short_digest([cell.log_fingerprint, cell.variant.method, cell.hyperparameters, lengths, cell.task])


def settings(cell: Cell) -> str:
    return short_digest([cell.variant.method, cell.hyperparameters])


def measured_speeds(cells: Iterable[Cell], results: Iterable[Mapping[str, Any]], threads: int) -> Speeds:
    """Speeds for these cells: from results, from the cache, or measured now."""
    cells = list(cells)
    took: dict[str, list[float]] = {}
    for result in results:
        if result.get("threads") == threads:
            took.setdefault(kind(Cell.from_dict(result["cell"])), []).append(result["seconds"])
    finished = {name: median(seconds) for name, seconds in took.items()}
    rest = [cell for cell in cells if kind(cell) not in finished]
    by_settings = {settings(cell): cell for cell in rest}
    steps = {key: measure(threads, "steps", described(cell)) for key, cell in by_settings.items()}
    tasks = sorted({cell.task for cell in rest if cell.task is not None})
    episodes = {task: measure(threads, "episodes", {"task": task})["episode"] for task in tasks}
    return Speeds(steps, episodes, finished)


def described(cell: Cell) -> dict[str, Any]:
    variant = cell.variant
    return {"method": variant.method, "preset": variant.preset, "settings": dict(variant.settings)}


def measure(threads: int, what: str, subject: Mapping[str, Any]) -> dict[str, float]:
    """A measurement from the cache, or made now in a process with so many threads."""
    key = short_digest([what, subject, threads, machine_fingerprint(), __version__])
    file = cache_directory() / "speeds" / f"{key}.json"
    if known := read_measured(file):
        return known
    name = subject.get("task") or f"{subject['method']} ({subject['preset']})"
    print(f"measuring the speed of {name} on {threads} thread(s)", file=sys.stderr, flush=True)
    answer = subprocess.run(
        [sys.executable, "-m", "ringfence.experiments.speed", what, json.dumps(subject)],
        capture_output=True,
        text=True,
        env={**os.environ, **thread_environment(threads)},
    )
    if answer.returncode:
        reason = (answer.stderr.strip().splitlines() or [f"status {answer.returncode}"])[-1]
        raise (SimulatorError if "task" in subject else RuntimeError)(f"{name} cannot be timed: {reason}")
    seconds: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    write_json(file, {"what": what, "subject": subject, "threads": threads, "seconds": seconds})
    return seconds


def read_measured(file: Path) -> dict[str, float]:
    """What was measured before; nothing if it was not, or its file is damaged."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["seconds"]
        return {str(name): float(seconds) for name, seconds in found.items() if is_number(seconds)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def time_steps(method: Any, sizes: tuple[int, int] = UNKNOWN_SIZES, seconds: float = SECONDS) -> dict[str, float]:
    """Seconds for one update of each stage, on random rows."""
    import jax
    import jax.numpy as jnp

    from ringfence.algorithms.interface import AddsColumns
    from ringfence.training.compilation import use_compilation_cache
    from ringfence.training.device import spec_of, to_device
    from ringfence.training.population import compile_programs, without_limit, zero_sums

    use_compilation_cache()
    log = random_log(*sizes)
    columns = method.columns(log) if isinstance(method, AddsColumns) else None
    method, data, spec = without_limit(method), to_device(log, columns), spec_of(log)
    seeds, clock = jnp.zeros(1, jnp.uint32), processor_clock if jax.default_backend() == "cpu" else time.monotonic
    took = {}
    for index, stage in enumerate(method.stages(1)):
        programs = compile_programs(method, spec, index, 1)
        state = programs.init(seeds, jnp.full(1, 30.0))
        carry = state, zero_sums(method, spec, index, 1, state, data)
        steps, spent = 0, 0.0  # the first call, of no step, compiles
        while spent < seconds:
            began = clock()
            carry = programs.advance((data, seeds), carry, jnp.asarray(0), jnp.asarray(steps))
            jax.tree.map(np.asarray, carry[1])  # wait for it
            spent = clock() - began if steps else 0.0
            if steps:
                took[stage.name] = spent / steps
            steps = min(10 * steps, int(1.2 * seconds * steps / spent) + 1) if steps else 2
    return took


def time_episode(task: str) -> float:
    """Seconds for one whole episode of evaluation."""
    from ringfence.behaviour.shipped import shipped_policy
    from ringfence.evaluation import Evaluator
    from ringfence.tasks import TASKS, find

    evaluator = Evaluator(task, parallel=EPISODES, horizon=LONGEST if find(task).horizon is None else None)
    low, high = (getattr(evaluator.envs(1)[0].action_space, end) for end in ("low", "high"))
    rest = np.clip(np.zeros_like(low), low, high)  # bounds may be infinite
    policy = shipped_policy(task, "safe") if task in TASKS else lambda x: np.tile(rest, (len(x), 1))
    evaluator(policy, 1)
    began = time.process_time()
    evaluator(policy, EPISODES)
    return (time.process_time() - began) / EPISODES


def processor_clock() -> float:
    """Seconds of processor time, divided by the threads that share the work."""
    return time.process_time() / int(os.environ.get("NPROC", "1"))


def random_log(observation_dim: int, action_dim: int, rows: int = 20_000) -> Any:
    rng = np.random.default_rng(0)
    return Dataset.from_arrays(
        observations=rng.normal(size=(rows, observation_dim)),
        actions=rng.uniform(-1, 1, size=(rows, action_dim)),
        rewards=rng.uniform(size=rows),
        costs=rng.uniform(size=rows),
        episode=np.arange(rows) // 1000,
    )


def main() -> None:
    what, subject = sys.argv[1], json.loads(sys.argv[2])
    episodes = what == "episodes"
    print(json.dumps({"episode": time_episode(**subject)} if episodes else time_steps(Variant("", **subject).make())))


if __name__ == "__main__":
    main()
