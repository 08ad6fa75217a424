"""Costs of a step."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ringfence.errors import InvalidSetting

CostFunction = Callable[[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]], float]
"""cost(observation, action, next_observation, info) of the step that was just made."""

Cost = Literal["mean", "sum"] | CostFunction | None


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
