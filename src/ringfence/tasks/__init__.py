"""Gymnasium environments with a cost and a limit.

Built in are three robots whose cost is torque, `hopper-torque`, `halfcheetah-torque` and `walker2d-torque`, and a
small chemical plant whose cost is excess temperature, `reactor`, which needs Gymnasium alone. Any registered
Gymnasium environment works too if its steps report `info["cost"]`, or if a cost function is given.
"""

from ringfence.tasks.build import find, make
from ringfence.tasks.catalogue import ROBOTS, TASKS, Task
from ringfence.tasks.costs import CostFunction

__all__ = ["ROBOTS", "TASKS", "CostFunction", "Task", "find", "make"]
