"""Costs of a step, and the wrappers that report them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ringfence.errors import InvalidSetting

if TYPE_CHECKING:
    import gymnasium

    Wrapper = gymnasium.Wrapper[Any, Any, Any, Any]
else:
    try:
        from gymnasium import Wrapper
    except ImportError:  # `build.make` tells the person which extra to install
        Wrapper = object

CostFunction = Callable[[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]], float]
"""cost(observation, action, next_observation, info) of the step that was just made."""

Cost = Literal["mean", "sum"] | CostFunction | None


class ClipActions(Wrapper):
    """Cut actions off at the bounds, so that every layer below sees the action that is executed."""

    def step(self, action: np.ndarray) -> Any:
        space: Any = self.env.action_space
        return self.env.step(np.clip(action, space.low, space.high))


class ReportCost(Wrapper):
    """Add `info["cost"]`, computed by a cost function."""

    def __init__(self, env: Any, cost: CostFunction):
        super().__init__(env)
        self.cost = cost
        self._observation: Any = None

    def reset(self, **options: Any) -> Any:
        self._observation, info = self.env.reset(**options)
        return self._observation, info

    def step(self, action: np.ndarray) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        info["cost"] = float(self.cost(self._observation, action, observation, info))
        self._observation = observation
        return observation, reward, terminated, truncated, info


class RequireCost(Wrapper):
    """Say clearly when an environment does not report the cost it should."""

    def step(self, action: np.ndarray) -> Any:
        result = self.env.step(action)
        if "cost" not in result[4]:
            name = self.env.spec.id if self.env.spec else type(self.env.unwrapped).__name__
            raise InvalidSetting(
                f'{name} does not report info["cost"]; give a cost function, '
                "e.g. tasks.make(name, cost=lambda observation, action, next_observation, info: ...)"
            )
        return result


def torque_cost(env: Any, over_joints: Literal["mean", "sum"]) -> CostFunction:
    """c(s, a) = mean or sum over joints of |a|, a in [-1, 1] (other action ranges are scaled to it).

    The CPQ authors' code sums; with the mean, a discounted limit of 30 at discount 0.99 stands for 30 % of full torque
    sustained on every robot, however many joints it has.
    """
    low, high = env.action_space.low, env.action_space.high
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise InvalidSetting(f"cost={over_joints!r} needs finite action bounds; give a cost function instead")
    centre, scale = (high + low) / 2, 2 / (high - low)
    if over_joints == "mean":
        scale = scale / len(scale)

    def cost(_: np.ndarray, action: np.ndarray, __: np.ndarray, ___: dict[str, Any]) -> float:
        return float(np.abs((action - centre) * scale).sum())

    return cost
