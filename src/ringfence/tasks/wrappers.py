"""Wrappers around an environment. They need Gymnasium only where the environment is one of Gymnasium's."""

import math
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfence.errors import InvalidSetting, RingfenceError, SimulatorError
from ringfence.tasks.costs import CostFunction


class Delegating:
    """What `gymnasium.Wrapper` does for us, without Gymnasium: everything else is the environment's own."""

    def __init__(self, env: Any):
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **options: Any) -> Any:
        return self.env.reset(**options)

    def step(self, action: np.ndarray) -> Any:
        return self.env.step(action)

    def close(self) -> None:
        getattr(self.env, "close", lambda: None)()


if TYPE_CHECKING:
    import gymnasium

    Wrapper = gymnasium.Wrapper[Any, Any, Any, Any]
else:
    try:
        from gymnasium import Wrapper
    except ImportError:
        Wrapper = Delegating

WITHOUT_GYMNASIUM = Wrapper.__name__ == "Delegating"


def adapted(env: Any) -> Any:
    """An environment that Gymnasium's wrappers take, where Gymnasium is installed and it is none of its own."""
    for function in ("reset", "step"):
        if not callable(getattr(env, function, None)):
            raise TypeError(f"{type(env).__name__} has no {function}()")
    if WITHOUT_GYMNASIUM:
        return env
    import gymnasium

    if isinstance(env, gymnasium.Env):
        return env
    foreign: Any = type("Foreign", (Delegating, gymnasium.Env), {})(env)
    for name in ("observation_space", "action_space", "metadata", "spec", "render_mode", "render"):
        if hasattr(env, name):
            setattr(foreign, name, getattr(env, name))
    return foreign


class ClipActions(Wrapper):
    """Cut actions off at the bounds, so that every layer below sees the action that is executed."""

    def step(self, action: np.ndarray) -> Any:
        space: Any = self.env.action_space
        return self.env.step(np.clip(action, space.low, space.high))


class StopAfter(Wrapper):
    """Truncate an episode after so many steps."""

    def __init__(self, env: Any, steps: int):
        super().__init__(env)
        self.steps, self.done = steps, 0

    def reset(self, **options: Any) -> Any:
        self.done = 0
        return self.env.reset(**options)

    def step(self, action: np.ndarray) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.done += 1
        return observation, reward, terminated, truncated or self.done >= self.steps, info


class ReportCost(Wrapper):
    """Add `info["cost"]`, computed by a cost function."""

    def __init__(self, env: Any, cost: CostFunction):
        super().__init__(env)
        self.cost = cost
        self._observation: Any = None

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        self._observation = copy(observation)  # the environment may write the next one into the same array
        return observation, info

    def step(self, action: np.ndarray) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        try:
            cost = float(self.cost(self._observation, action, observation, info))
        except (Exception, SystemExit) as error:  # whatever the user's code does
            raise SimulatorError(
                f"the cost function failed ({type(error).__name__}: {error}); it is called with (observation, action, "
                "next_observation, info) and returns a number"
            ) from error
        info = {**info, "cost": cost}
        self._observation = copy(observation)
        return observation, reward, terminated, truncated, info


class Checked(Wrapper):
    """Say clearly what is wrong with an environment: a failure of its own, another interface, no cost, numbers that make
    no sense."""

    def __init__(self, env: Any, name: str):
        super().__init__(env)
        self.name = name

    def reset(self, **options: Any) -> Any:
        given = {name: value for name, value in options.items() if name == "seed" or value is not None}
        try:
            observation, info = self.env.reset(**given)  # Gymnasium's wrappers add options=None, which not all take
        except RingfenceError:
            raise
        except (Exception, SystemExit) as error:  # whatever the user's code does
            raise SimulatorError(
                f"reset of {self.name} failed ({type(error).__name__}: {error}); it must take seed=... and return "
                "(observation, info)"
            ) from error
        self._require_numbers(observation)
        return observation, info

    def step(self, action: np.ndarray) -> Any:
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            reward, terminated, truncated = float(reward), bool(terminated), bool(truncated)
        except RingfenceError:
            raise
        except (Exception, SystemExit) as error:  # whatever the user's code does
            raise SimulatorError(
                f"a step of {self.name} failed ({type(error).__name__}: {error}); it must return (observation, reward, "
                "terminated, truncated, info)"
            ) from error
        self._require_numbers(observation)
        if not isinstance(info, Mapping):
            raise SimulatorError(f"{self.name} gave {info!r} as info, which is no dictionary")
        if "cost" not in info:
            raise InvalidSetting(
                f'{self.name} does not report info["cost"]; give a cost function: --cost MODULE:FUNCTION, or in Python '
                "cost=lambda observation, action, next_observation, info: ..."
            )
        if not math.isfinite(reward):
            raise SimulatorError(f"{self.name} gave the reward {reward}")
        try:
            cost = float(info["cost"])
        except (TypeError, ValueError):
            cost = math.nan
        if not (math.isfinite(cost) and cost >= 0):
            raise SimulatorError(f"{self.name} gave the cost {info['cost']!r}; costs are finite and at least 0")
        return observation, reward, terminated, truncated, info

    def _require_numbers(self, observation: Any) -> None:
        """The observation as a policy takes it: finite numbers in the shape that the space promises."""
        try:
            with np.errstate(over="ignore"):
                numbers = np.asarray(observation, np.float32)
        except (TypeError, ValueError):
            raise SimulatorError(
                f"{self.name} gave an observation that is no array of numbers: {observation!r}"
            ) from None
        shape = tuple(self.env.observation_space.shape or ())
        if numbers.shape != shape:
            raise SimulatorError(f"{self.name} gave an observation of shape {numbers.shape}, its space has {shape}")
        if not np.isfinite(numbers).all():
            raise SimulatorError(f"{self.name} gave an observation that is not finite: {observation}")
