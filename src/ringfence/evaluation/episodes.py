"""Episodes of a policy in a task, the one stepping loop behind evaluation and data collection.

An episode depends on its seed alone: the environment is reset with it, and a sampled policy draws its noise from a
generator made from it. How many episodes run side by side only changes how long they take.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from ringfence.deploy import Guard, Pacer, Policy, RowNoise, Turns
from ringfence.errors import NonFiniteValue, SimulatorError, WrongShape

COST_AWARE = Guard | Pacer | Turns  # these are told what the step before cost
Controller = Policy | Guard | Pacer | Turns | Callable[[Float[np.ndarray, "batch obs"]], Any]
"""A `Policy`, what is told its costs, or any function from a batch of observations to a batch of actions. One that remembers
its episode has `reset()`, which is called before each; its batches have one row."""

LONGEST_EPISODE = 100_000  # steps; an environment that never ends would keep us for ever


@dataclass(frozen=True)
class Episode:
    """What happened, step by step; `observations` has one row more than the rest."""

    observations: Float[np.ndarray, "steps+1 obs"]
    actions: Float[np.ndarray, "steps act"]  # as executed: inside the bounds
    rewards: Float[np.ndarray, " steps"]
    costs: Float[np.ndarray, " steps"]
    terminated: bool
    truncated: bool

    def __len__(self) -> int:
        return len(self.rewards)


class _Slot:
    """An environment and the episode that is running in it."""

    def __init__(self, env: Any, reset: Callable[[], Any] | None = None):
        self.env, self.reset_policy = env, reset

    def start(self, number: int, seed: int) -> None:
        if self.reset_policy is not None:
            self.reset_policy()
        self.number = number
        # Copies: an environment may write all its observations into one array.
        self.observations = [np.array(self.env.reset(seed=seed)[0], np.float32)]
        self.noise = np.random.default_rng([seed, 1])  # apart from the environment's own stream, seeded with `seed`
        self.actions: list[np.ndarray] = []
        self.rewards: list[float] = []
        self.costs: list[float] = []

    def step(self, action: np.ndarray) -> Episode | None:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.observations.append(np.array(observation, np.float32))
        self.actions.append(action)
        self.rewards.append(float(reward))
        self.costs.append(float(info["cost"]))
        if not (terminated or truncated):
            if len(self.rewards) >= LONGEST_EPISODE:
                raise SimulatorError(
                    f"an episode has not ended after {LONGEST_EPISODE:,} steps; cut it off with a horizon "
                    "(--horizon, or horizon=...)"
                )
            return None
        return Episode(
            np.stack(self.observations),
            np.stack(self.actions),
            np.array(self.rewards, np.float64),
            np.array(self.costs, np.float64),
            bool(terminated),
            bool(truncated),
        )


def has_memory(controller: Controller) -> bool:
    """Whether it remembers its episode, so that it can follow only one at a time."""
    return not isinstance(controller, Policy) and callable(getattr(controller, "reset", None))


def run_episodes(
    controller: Controller, envs: Sequence[Any], seeds: Iterable[int], *, deterministic: bool = True
) -> Iterator[tuple[int, Episode]]:
    """Run one episode per seed, all environments in step with one batched call of the policy, and yield
    (position of the seed, episode) as they end. A policy that has `reset()` runs them one after the other."""
    reset = None
    if has_memory(controller):
        envs, reset = envs[:1], cast(Any, controller).reset
    waiting = iter(enumerate(seeds))
    running = [_Slot(env, reset) for env in envs]
    for slot, (number, seed) in zip(running, itertools.islice(waiting, len(running)), strict=False):
        slot.start(number, seed)
    running = [slot for slot in running if hasattr(slot, "number")]
    while running:
        actions = act(controller, running, deterministic)
        for slot, action in zip(list(running), actions, strict=True):
            if episode := slot.step(action):
                if isinstance(controller, Turns):
                    controller.reset(cost=slot.costs[-1])  # no call tells it what the last step cost
                yield slot.number, episode
                if following := next(waiting, None):
                    slot.start(*following)
                else:
                    running.remove(slot)


def act(controller: Controller, slots: Sequence[_Slot], deterministic: bool) -> Float[np.ndarray, "batch act"]:
    """The executed actions: the policy's, cut off at the environment's bounds."""
    observations = np.stack([slot.observations[-1] for slot in slots])
    if isinstance(controller, Policy):
        noise = None if deterministic else RowNoise([slot.noise for slot in slots])
        actions = controller(observations, deterministic=deterministic, rng=noise)
    elif isinstance(controller, COST_AWARE):
        [slot] = slots
        actions = controller(observations[0], slot.costs[-1] if slot.costs else None)[None]
    else:
        actions = np.asarray(controller(observations), np.float32)
    space = slots[0].env.action_space
    if actions.shape != (len(slots), *space.shape):
        raise WrongShape(
            f"the task takes actions of shape {(len(slots), *space.shape)}, the policy gave {actions.shape}"
        )
    if not np.isfinite(actions).all():
        raise NonFiniteValue("the policy gave an action that is not finite")
    clipped: np.ndarray = np.clip(actions, space.low, space.high)
    return clipped
