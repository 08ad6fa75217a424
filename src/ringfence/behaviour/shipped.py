"""The behaviour policies that come with ringfence: an unsafe and a safe one for each built-in task. Those of the
robots were learned and are files; those of the reactor are PI controllers."""

from importlib.resources import as_file, files
from typing import Literal

from ringfence import tasks
from ringfence.behaviour.controllers import SETPOINTS, pi_controller
from ringfence.deploy import Policy
from ringfence.errors import UnknownName

Behaviour = Literal["unsafe", "safe"]
BEHAVIOURS: tuple[Behaviour, Behaviour] = ("unsafe", "safe")


def shipped_policy(task: str, behaviour: Behaviour) -> Policy:
    """The unsafe policy (high return, over the limit) or the safe one (inside it) of a task.

    >>> shipped_policy("hopper-torque", "safe").metadata["method"]
    'cpo'
    """
    if task not in tasks.TASKS or behaviour not in BEHAVIOURS:
        there_are = f"{' and '.join(BEHAVIOURS)} for {', '.join(tasks.TASKS)}"
        raise UnknownName(f"no policy {behaviour!r} comes with ringfence for {task!r}; there are {there_are}")
    if task == "reactor":
        return pi_controller(SETPOINTS[behaviour])
    with as_file(files("ringfence.behaviour") / "policies" / f"{task}-{behaviour}.safetensors") as path:
        return Policy.load(path)
