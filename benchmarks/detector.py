"""`python -m benchmarks.detector`: how well CPQ's detector tells actions apart after fewer or more steps of its stage.

Scores of logged pairs (of another log by the same policies, which the detector has not seen) against those of the same
states with uniform actions and with the logged ones plus noise. AUROC 1 is perfect, 1/2 is blind.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from benchmarks import machine, report
from benchmarks.child import ROOT
from benchmarks.reallog import FOLDER, log_path
from ringfence.algorithms import CPQ
from ringfence.algorithms.ood import auroc, is_ood
from ringfence.data import load_file
from ringfence.training.compilation import use_compilation_cache
from ringfence.training.device import spec_of, to_device
from ringfence.training.population import compile_programs, zero_sums

RESULTS = ROOT / "results" / "detector_steps.json"
NOISE = (0.1, 0.3)


def held_out(task: str, rows: int) -> Path:
    path = FOLDER / f"{task}-{rows}-held-out.h5"
    if not path.exists():
        from ringfence.behaviour.collect import collect

        collect(task, rows, path, seed=1)
    return path


def quality(detector: Any, observations: jax.Array, actions: jax.Array) -> dict[str, float]:
    rng = np.random.default_rng(0)
    logged = detector.score(observations, actions)
    others = {"uniform": rng.uniform(-1, 1, actions.shape)}
    others |= {f"noise {std}": np.clip(actions + std * rng.normal(size=actions.shape), -1, 1) for std in NOISE}
    scores = {name: detector.score(observations, jnp.asarray(other, jnp.float32)) for name, other in others.items()}
    return {
        "kl_logged": float(logged.mean()),
        "flagged logged": float(is_ood(detector, logged).mean()),
        **{f"flagged {name}": float(is_ood(detector, score).mean()) for name, score in scores.items()},
        **{f"auroc {name}": float(auroc(logged, score)) for name, score in scores.items()},
    }


def train(task: str, rows: int, marks: list[int], seeds: list[int], width: int) -> dict[str, Any]:
    """The quality after each number of steps, for every seed."""
    use_compilation_cache()
    log, other = load_file(log_path(task, rows)), load_file(held_out(task, 20_000))
    data, spec = to_device(log), spec_of(log)
    unseen = to_device(other)._replace(
        observation_mean=data.observation_mean,
        observation_scale=data.observation_scale,
        action_centre=data.action_centre,
        action_scale=data.action_scale,
    )
    batch = unseen.batch(jnp.arange(len(other)))
    method = CPQ(hidden=(width, width))
    programs = compile_programs(method, spec, 0, len(seeds))
    members = jnp.asarray(seeds, jnp.uint32)
    state = programs.init(members, jnp.full(len(seeds), 30.0))
    found: dict[str, Any] = {}
    done, began, cpu = 0, time.perf_counter(), time.process_time()
    for mark in marks:
        sums = zero_sums(method, spec, 0, len(seeds), state, data)
        state, _ = programs.advance((data, members), (state, sums), jnp.asarray(done), jnp.asarray(mark))
        jax.block_until_ready(state)
        done, seconds, cpu_seconds = mark, time.perf_counter() - began, time.process_time() - cpu
        finished, _ = programs.finish(state, members, data)
        each = [
            quality(jax.tree.map(lambda leaf, i=i: leaf[i], finished).detector, batch.observations, batch.actions)
            for i in range(len(seeds))
        ]
        found[str(mark)] = {
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            **{name: [one[name] for one in each] for name in each[0]},
        }
    return found


def table(numbers: dict[str, Any]) -> report.Table:
    names = [name for name in next(iter(numbers["steps"].values())) if name.startswith(("auroc", "flagged"))]
    rows = [
        (steps, *(f"{np.mean(value[name]):.3f} ± {np.std(value[name]):.3f}" for name in names))
        for steps, value in numbers["steps"].items()
    ]
    return report.table(f"CPQ's detector on {numbers['task']}: mean and spread over seeds", ("steps", *names), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="What fewer steps of the detector's stage cost.")
    parser.add_argument("--task", default="hopper-torque")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--steps", type=int, nargs="+", default=[1_000, 2_000, 5_000, 10_000, 20_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    numbers = {
        "task": options.task,
        "rows": options.rows,
        "width": options.width,
        "seeds": options.seeds,
        "machine": machine.describe(),
        "steps": train(options.task, options.rows, sorted(options.steps), options.seeds, options.width),
    }
    report.write(options.out, numbers)
    Console(width=160).print(table(numbers).for_terminal())


if __name__ == "__main__":
    main()
