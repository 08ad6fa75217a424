"""The built-in tasks: which environment, which cost, which limit."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ringfence.limits import DISCOUNT
from ringfence.tasks.costs import Cost


@dataclass(frozen=True)
class Task:
    """An environment with a cost and a limit.

    `limit` bounds the discounted cost; `horizon` is the number of steps after which an episode is cut off (None: as
    the environment is registered); `cost` is "mean" or "sum" (torque over joints), a function, or None when the
    environment reports `info["cost"]` itself. `maker` is the class or function that makes it, where it has no id.
    """

    name: str
    env_id: str
    limit: float | None = 30.0
    discount: float = DISCOUNT
    horizon: int | None = 1000
    cost: Cost = "mean"
    maker: Callable[..., Any] | None = None


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("hopper-torque", "Hopper-v5"),
        Task("halfcheetah-torque", "HalfCheetah-v5"),
        Task("walker2d-torque", "Walker2d-v5"),
        Task("reactor", "ringfence.tasks.plant:Reactor-v1", limit=20.0, horizon=120, cost=None),
    )
}

ROBOTS = tuple(task.name for task in TASKS.values() if task.cost == "mean")
"""The paper's three robots, whose behaviours were learned online."""
