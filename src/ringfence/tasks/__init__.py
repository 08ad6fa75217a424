"""Gymnasium environments with a cost and a limit.

Built in are three robots whose cost is torque, `hopper-torque`, `halfcheetah-torque` and `walker2d-torque`, and a
small chemical plant whose cost is excess temperature, `reactor`, which needs Gymnasium alone. Any other environment with
Gymnasium's interface works too, by its id or as "module:name", if its steps report `info["cost"]` or a cost function is
given: see docs/your-own-simulator.md.
"""

from ringfence.tasks.build import cost_function, find, make, with_horizon
from ringfence.tasks.catalogue import ROBOTS, TASKS, Task
from ringfence.tasks.costs import CostFunction

__all__ = ["ROBOTS", "TASKS", "CostFunction", "Task", "cost_function", "find", "make", "with_horizon"]
