"""Training a behaviour policy: `train_behaviour`, safe to kill at any moment."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ringfence import __version__, tasks
from ringfence.behaviour import cpo, ppo
from ringfence.behaviour.actor_critic import to_policy
from ringfence.behaviour.segments import Sampler
from ringfence.behaviour.settings import DEFAULT_STEPS, SETTINGS, STEPS, TRAINERS, Method
from ringfence.deploy import Policy
from ringfence.errors import InvalidSetting, NonFiniteLoss, WouldOverwrite
from ringfence.files import write_json
from ringfence.training.checkpoint import load_newest, save_checkpoint

Config = ppo.PPO | cpo.CPO
State = ppo.PPOState | cpo.CPOState
Progress = Callable[[int, int, dict[str, float]], None]
"""Called after each iteration with (steps done, steps in all, metrics)."""

CHECKPOINT_EVERY = 20  # iterations


def train_behaviour(
    task: str | tasks.Task,
    method: Method,
    *,
    out: str | Path,
    seed: int = 0,
    steps: int | None = None,
    limit: float | None = None,
    std: float | None = None,
    warm_start: str | Path | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    **changes: Any,
) -> Path:
    """Train with PPO (`limit` does not apply) or CPO and return the path of the policy file.

    The directory `out` receives `settings.json`, `curve.jsonl` (a line per iteration), checkpoints and at the end
    `policy.safetensors`, the last iterate. Called again after a kill with the same arguments, it goes on from the last
    checkpoint to the same numbers. `std` is the standard deviation of the final policy, and so the width of a log that
    it writes. `warm_start` is another `out` directory whose actor and normaliser to start from. `changes` are fields
    of `PPO` or `CPO`. `workers` processes share the environments, without changing the result.
    """
    found = tasks.find(task)
    config = configure(found, method, limit=limit, std=std, **changes)
    settings = {
        "task": found.name,
        "method": method,
        "seed": seed,
        "steps": STEPS.get((found.name, method), DEFAULT_STEPS) if steps is None else steps,
        "warm start": None if warm_start is None else Path(warm_start).name,
        "settings": asdict(config),
    }
    if steps is not None and steps < 1:
        raise InvalidSetting(f"steps must be at least 1, not {steps}")
    out, bounds = Path(out), action_bounds(found)
    _claim(out, settings)
    if (out / "policy.safetensors").exists():
        return out / "policy.safetensors"
    sampler = Sampler(found, workers)
    try:
        state = _train(out, config, sampler, settings, warm_start, progress)
    finally:
        sampler.close()
    policy = to_policy(state.actor, state.observations, config.std, bounds, policy_metadata(found, config, settings))
    return policy.save(out / "policy.safetensors")


def configure(task: tasks.Task, method: Method, *, limit: float | None, std: float | None, **changes: Any) -> Config:
    """The settings of a shipped policy, or the method's defaults for other tasks, with the changes asked for."""
    if method not in TRAINERS:
        raise InvalidSetting(f"method must be 'ppo' or 'cpo', not {method!r}")
    default: Config = SETTINGS.get((task.name, method), ppo.PPO() if method == "ppo" else cpo.CPO())
    changes = {"cost_discount": task.discount} | changes
    for name, given in (("std", std), ("limit", limit)):
        if given is not None and not (math.isfinite(given) and given > 0):
            raise InvalidSetting(f"{name} must be a finite number above 0, not {given}")
    if std is not None:
        changes["std"] = std
    if method == "cpo" and (limit is not None or task.limit is not None):
        changes["limit"] = task.limit if limit is None else limit
    try:
        return replace(default, **changes)
    except TypeError as error:
        raise InvalidSetting(f"{method} has no such setting: {error}") from error


def action_bounds(task: tasks.Task) -> tuple[np.ndarray, np.ndarray]:
    """The least and greatest actions of a task, to which the policy's range [-1, 1] is scaled."""
    env = tasks.make(task)
    space: Any = env.action_space
    env.close()
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise InvalidSetting(f"{task.name} has actions without bounds ({space}); PPO and CPO need finite ones")
    return space.low, space.high


def policy_metadata(task: tasks.Task, config: Config, settings: dict[str, Any]) -> dict[str, Any]:
    metadata = {"discount": task.discount, "std": config.std, "version": __version__, **settings}
    return metadata | {"limit": config.limit if isinstance(config, cpo.CPO) else task.limit}


def _claim(out: Path, settings: dict[str, Any]) -> None:
    """Take `out` for these settings; a directory that was begun with others is left alone."""
    path = out / "settings.json"
    wanted = json.loads(json.dumps(settings))
    if not path.exists():
        if out.exists() and any(out.iterdir()):
            raise WouldOverwrite(f"{out} is not empty and no behaviour training; choose another directory")
        write_json(path, wanted)
    elif json.loads(path.read_text()) != wanted:
        raise WouldOverwrite(f"{out} holds a training with other settings ({path}); choose another directory")


def _train(
    out: Path,
    config: Config,
    sampler: Sampler,
    settings: dict[str, Any],
    warm_start: str | Path | None,
    progress: Progress | None,
) -> State:
    seed, total = settings["seed"], max(1, settings["steps"] // config.steps_per_iteration)
    fresh = _initial(config, sampler.task, seed)
    resumed = load_newest(out, lambda _: at_least_vectors(fresh))
    if resumed is None:
        state = fresh if warm_start is None else warmed(fresh, Path(warm_start))
        start = 0
    else:
        state, start = jax.tree.map(lambda x, like: x.reshape(like.shape), resumed[0], fresh), resumed[1]["iteration"]
    _keep_lines(out / "curve.jsonl", start)
    lines: list[str] = []
    for iteration in range(start, total):
        state, metrics = _iterate(config, state, sampler, iteration, total, seed)
        done = iteration + 1
        line = {"steps": done * config.steps_per_iteration, **{k: round(v, 4) for k, v in metrics.items()}}
        lines.append(json.dumps(line))
        if done % CHECKPOINT_EVERY == 0 or done == total:
            # Curve first: lines beyond the checkpoint are dropped on resuming, missing ones could not be made again.
            with open(out / "curve.jsonl", "a") as file:
                file.write("".join(f"{line}\n" for line in lines))
            lines = []
            save_checkpoint(out, done, at_least_vectors(state), {"iteration": done})
        if progress:
            progress(done * config.steps_per_iteration, total * config.steps_per_iteration, metrics)
    return state


def at_least_vectors(state: State) -> State:
    """Checkpoints hold no single numbers; they become vectors of one."""
    vectors: State = jax.tree.map(jax.numpy.atleast_1d, state)
    return vectors


def _iterate(
    config: Config, state: Any, sampler: Sampler, iteration: int, total: int, seed: int
) -> tuple[State, dict[str, float]]:
    following: State
    if isinstance(config, ppo.PPO):
        following, metrics = ppo.iterate(config, state, sampler, iteration, total, seed)
    else:
        following, metrics = cpo.iterate(config, state, sampler, iteration, total, seed)
    if not all(bool(jax.numpy.isfinite(leaf).all()) for leaf in jax.tree.leaves(following)):
        raise NonFiniteLoss(f"iteration {iteration} gave NaN or infinity; the last checkpoint is kept")
    return following, metrics


def _initial(config: Config, task: str | tasks.Task, seed: int) -> State:
    env = tasks.make(task)
    dims = env.observation_space.shape[0], env.action_space.shape[0]  # type: ignore[index]
    env.close()
    key = jax.random.key(seed)
    return ppo.init(config, *dims, key) if isinstance(config, ppo.PPO) else cpo.init(config, *dims, key)


def warmed(state: State, other: Path) -> State:
    """`state` with the actor and the observation moments of another training's policy."""
    policy = Policy.load(other / "policy.safetensors")
    layers = state.actor.layers
    weights = [policy.tensors[f"actor.{i}.{part}"] for i in range(len(layers)) for part in ("weight", "bias")]
    where = [getattr(layer, part) for layer in layers for part in ("weight", "bias")]
    if [w.shape for w in weights] != [w.shape for w in where]:
        raise InvalidSetting(f"the policy in {other} has another network or belongs to another task")
    # As if the normaliser had already seen a million rows: it should move slowly from where the actor knows it.
    moments = (policy.artifact.observation_mean, (policy.artifact.observation_std - 1e-4) ** 2, 1e6)
    warmed: State = eqx.tree_at(
        lambda s: [
            *(getattr(layer, part) for layer in s.actor.layers for part in ("weight", "bias")),
            *(s.observations.mean, s.observations.var, s.observations.count),
        ],
        state,
        [jax.numpy.asarray(x, jax.numpy.float32) for x in (*weights, *moments)],
    )
    return warmed


def _keep_lines(path: Path, count: int) -> None:
    if path.exists():
        kept = path.read_text().splitlines()[:count]
        path.write_text("".join(f"{line}\n" for line in kept))
