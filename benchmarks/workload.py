"""The step that is timed: a method on a real log, some thousand steps into its training, through the programs that training
runs.

A fresh network on random numbers would flatter: the kernels leave out rows whose gradient is 0, and how many these are
depends on what the critics say.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import reallog
from benchmarks.machine import quick_peak, timed
from ringfence.algorithms import CPQ, METHODS, PaperCPQ
from ringfence.algorithms.batches import DeviceData
from ringfence.algorithms.cpq_clone import EPISODE_COST
from ringfence.algorithms.interface import AddsColumns, Learner, Spec
from ringfence.training.device import aligned_empty, spec_of, to_device
from ringfence.training.population import compile_programs, zero_sums

HOPPER = (11, 3)  # observations, actions


@dataclass(frozen=True)
class OneKeptAction(PaperCPQ):
    """The printed step with one of the kept actions of each state, as other implementations do it."""

    choose_ood = CPQ.choose_ood


WIDTH = 256  # of both hidden layers, unless another is given: that of other implementations
VARIANTS: dict[str, Any] = {"cpq paper, all": CPQ.paper, "cpq paper, one": OneKeptAction}


def method_called(name: str, **settings: Any) -> Learner:
    """A method of ringfence, or one of the variants of CPQ above."""
    settings["hidden"] = tuple(settings.get("hidden", (WIDTH, WIDTH)))
    made: Learner = {**METHODS, **VARIANTS}[name](**settings)
    return made


def random_data(rows: int, observation_dim: int, action_dim: int) -> DeviceData:
    """Rows as `to_device` packs them. A block of random rows is repeated: drawing 10 million would take longer than
    the measurement, and a gather costs the same whatever it fetches."""
    width = 2 * observation_dim + action_dim + 3
    packed = aligned_empty((rows, width))
    block = np.random.default_rng(0).normal(size=(min(rows, 65536), width)).astype(np.float32)
    for start in range(0, rows, len(block)):
        packed[start : start + len(block)] = block[: rows - start]
    packed[:, -1] = 1.0
    obs, act = np.ones(observation_dim, np.float32), np.ones(action_dim, np.float32)
    return DeviceData(
        rows=jax.device_put(packed),
        episode_starts=jnp.arange(0, rows, 1000),
        observation_mean=jnp.zeros_like(obs),
        observation_scale=jnp.asarray(obs),
        action_centre=jnp.zeros_like(act),
        action_scale=jnp.asarray(act),
        extras={EPISODE_COST: jnp.zeros((rows, 1))},  # there is no log to compute a method's columns from
    )


def real_data(method: Learner, rows: int, log_rows: int) -> tuple[DeviceData, Spec]:
    """The standard log of `log_rows` with the method's own columns, repeated up to `rows`."""
    log = reallog.read(log_rows)
    data = to_device(log)
    columns = method.columns(log) if isinstance(method, AddsColumns) else {}
    extras = {name: jnp.asarray(np.resize(c, (rows, c.shape[1])), jnp.float32) for name, c in columns.items()}
    logged = np.asarray(data.rows)
    packed = aligned_empty((rows, logged.shape[1]))
    for start in range(0, rows, len(logged)):
        packed[start : start + len(logged)] = logged[: rows - start]
    starts = data.episode_starts[data.episode_starts < rows]
    return data._replace(rows=jax.device_put(packed), episode_starts=starts, extras=extras), spec_of(log)


@dataclass
class Workload:
    """The compiled training program of a method's last stage, ready to step."""

    method: Learner
    data: DeviceData
    spec: Spec
    members: int = 1
    limit: float = 30.0
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.seeds = jnp.arange(self.members, dtype=jnp.uint32)
        self.last = len(self.method.stages(1)) - 1
        self.state = self._programs(0).init(self.seeds, jnp.full(self.members, self.limit))
        self.restart()

    def _programs(self, stage: int) -> Any:
        return compile_programs(self.method, self.spec, stage, self.members)

    def _carry(self, stage: int) -> Any:
        return self.state, zero_sums(self.method, self.spec, stage, self.members, self.state, self.data)

    def restart(self) -> None:
        """Take up the last stage with the present state."""
        self.programs, self.carry = self._programs(self.last), self._carry(self.last)

    def train(self, earlier: int, steps: int) -> None:
        """Train from the start: `earlier` steps of each stage before the last (the detector), `steps` of the last."""
        constants = (self.data, self.seeds)
        for stage in range(self.last):
            programs = self._programs(stage)
            state, _ = programs.advance(constants, self._carry(stage), jnp.asarray(0), jnp.asarray(earlier))
            self.state, _ = programs.finish(state, self.seeds, self.data)
        self.restart()
        self.advance(steps)

    def save(self, path: Path) -> None:
        np.savez(path, *(np.asarray(leaf) for leaf in jax.tree.leaves(self.carry[0])))

    def load(self, path: Path, done: int) -> None:
        leaves, structure = jax.tree.flatten(self.state)
        saved = np.load(path)
        self.state = jax.tree.unflatten(structure, [jnp.asarray(saved[f"arr_{i}"]) for i in range(len(leaves))])
        self.done = done
        self.restart()

    def compiled(self) -> Any:
        """The executable behind `advance`, to count its work."""
        arguments = (self.data, self.seeds), self.carry, jnp.asarray(0), jnp.asarray(1)
        return self.programs.advance.lower(*arguments).compile().compiled

    def advance(self, steps: int) -> None:
        """Make this many updates and wait for them."""
        span = jnp.asarray(self.done), jnp.asarray(self.done + steps)
        self.carry = self.programs.advance((self.data, self.seeds), self.carry, *span)
        self.done += steps
        jax.block_until_ready(self.carry)

    def means(self, steps: int) -> dict[str, float]:
        """Metrics of the last `steps` updates, the only ones since the sums were set to 0."""
        return {name: float(np.mean(total)) / steps for name, total in self.carry[1].items()}

    def steps_per_second(self, windows: int, seconds: float, size: int = 2048) -> dict[str, float]:
        """The best and the median of several windows, the best per second of processor time, and the GFLOP/s of a large
        matrix product between the windows: what share of it a step reaches is a matter of the same seconds, because a
        machine may share its cores with others."""
        self.advance(2)
        steps = max(1, int(seconds / (timed(lambda: self.advance(3)).cpu / 3)))
        peak = quick_peak(size)
        peaks, taken = [peak()], []
        self.state = self.carry[0]
        self.restart()  # the sums of metrics begin again
        for _ in range(windows):
            taken.append(timed(lambda: self.advance(steps)))
            peaks.append(peak())
        rates = np.array([steps / t.wall for t in taken])
        beside = np.maximum(peaks[:-1], peaks[1:])  # the better of before and after
        metrics = self.means(windows * steps)
        return {
            "steps_per_second": float(rates.max()),
            "median": float(np.median(rates)),
            "steps_per_cpu_second": max(steps / t.cpu for t in taken),
            "peak_gflops": max(peaks),
            "steps_per_peak_gflop": float(np.median(rates / beside)),
            **{name: metrics[name] for name in ("indicator", "ood_rate") if name in metrics},
        }


def step_speed(
    name: str,
    settings: dict[str, Any] | None = None,
    members: int = 1,
    rows: int = reallog.ROWS,
    log_rows: int = reallog.ROWS,
    earlier: int = 2000,
    trained: int = 3000,
    states: str | None = None,
    windows: int = 5,
    seconds: float = 0.6,
    peak_size: int = 2048,
) -> dict[str, float]:
    """Steps per second of a method after `trained` steps on the standard log, and the work in one step. The trained state is
    kept in the folder `states`, so that a benchmark trains each method once."""
    from benchmarks.flops import program_work
    from ringfence.training.compilation import use_compilation_cache

    use_compilation_cache()
    method = method_called(name, **(settings or {}))
    workload = Workload(method, *real_data(method, rows, log_rows), members)
    described = f"{workload.method} {members} {rows} {log_rows} {earlier} {trained}"
    kept = Path(states or reallog.FOLDER, f"state-{hashlib.sha256(described.encode()).hexdigest()[:16]}.npz")
    if states and kept.exists():
        workload.load(kept, trained)
    elif trained:
        workload.train(earlier, trained)
        if states:
            workload.save(kept)
    work = program_work(workload.compiled())
    speed = workload.steps_per_second(windows, seconds, peak_size)
    share = speed.pop("steps_per_peak_gflop") * work["matrix_flops"] * 1e-9
    return {**speed, **work, "gflops": speed["steps_per_second"] * work["matrix_flops"] * 1e-9, "share_of_peak": share}
