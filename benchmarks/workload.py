"""The step that is timed: a method on random data of a standard size, through the programs that training runs."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import quick_peak, timed
from ringfence.algorithms import CPQ, METHODS
from ringfence.algorithms.batches import DeviceData
from ringfence.algorithms.interface import Learner, Spec
from ringfence.training.device import aligned_empty
from ringfence.training.population import compile_programs, zero_sums

HOPPER = (11, 3)  # observations, actions
VARIANTS: dict[str, Any] = {
    "cpq paper, all": CPQ.paper,
    "cpq paper, one": lambda **settings: CPQ.paper(ood_estimator="one", **settings),
}


def method_called(name: str, **settings: Any) -> Learner:
    """A method of ringfence, or one of the variants of CPQ above."""
    if "hidden" in settings:
        settings["hidden"] = tuple(settings["hidden"])
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
    )


@dataclass
class Workload:
    """A compiled training program of the last stage, ready to step."""

    method: Learner
    members: int = 1
    rows: int = 100_000
    sizes: tuple[int, int] = HOPPER

    def __post_init__(self) -> None:
        spec, last = Spec(*self.sizes), len(self.method.stages(1)) - 1
        self.data = random_data(self.rows, *self.sizes)
        self.seeds = jnp.arange(self.members, dtype=jnp.uint32)
        init = compile_programs(self.method, spec, 0, self.members).init
        state = init(self.seeds, jnp.full(self.members, 30.0))
        self.programs = compile_programs(self.method, spec, last, self.members)
        self.carry = state, zero_sums(self.method, spec, last, self.members, state, self.data)

    def compiled(self) -> Any:
        """The executable behind `advance`, to count its work."""
        arguments = (self.data, self.seeds), self.carry, jnp.asarray(0), jnp.asarray(1)
        return self.programs.advance.lower(*arguments).compile().compiled  # type: ignore[attr-defined]

    def advance(self, steps: int) -> None:
        """Make this many updates and wait for them."""
        self.carry = self.programs.advance((self.data, self.seeds), self.carry, jnp.asarray(0), jnp.asarray(steps))
        jax.block_until_ready(self.carry)

    def steps_per_second(self, windows: int, seconds: float, size: int = 2048) -> dict[str, float]:
        """The best and the median of several windows, the best per second of processor time, and the GFLOP/s of a large
        matrix product between the windows: what share of it a step reaches is a matter of the same seconds, because a
        machine may share its cores with others."""
        self.advance(2)
        steps = max(1, int(seconds / (timed(lambda: self.advance(3)).cpu / 3)))
        peak = quick_peak(size)
        peaks, taken = [peak()], []
        for _ in range(windows):
            taken.append(timed(lambda: self.advance(steps)))
            peaks.append(peak())
        rates = np.array([steps / t.wall for t in taken])
        beside = np.maximum(peaks[:-1], peaks[1:])  # the better of before and after
        return {
            "steps_per_second": float(rates.max()),
            "median": float(np.median(rates)),
            "steps_per_cpu_second": max(steps / t.cpu for t in taken),
            "peak_gflops": max(peaks),
            "steps_per_peak_gflop": float(np.median(rates / beside)),
        }


def step_speed(
    name: str,
    settings: dict[str, Any] | None = None,
    members: int = 1,
    rows: int = 100_000,
    sizes: tuple[int, int] = HOPPER,
    windows: int = 5,
    seconds: float = 0.6,
    peak_size: int = 2048,
) -> dict[str, float]:
    """Steps per second of a method, and the work in one step."""
    from benchmarks.flops import program_work
    from ringfence.training.compilation import use_compilation_cache

    use_compilation_cache()
    workload = Workload(method_called(name, **(settings or {})), members, rows, (sizes[0], sizes[1]))
    work = program_work(workload.compiled())
    speed = workload.steps_per_second(windows, seconds, peak_size)
    share = speed.pop("steps_per_peak_gflop") * work["matrix_flops"] * 1e-9
    return {**speed, **work, "gflops": speed["steps_per_second"] * work["matrix_flops"] * 1e-9, "share_of_peak": share}
