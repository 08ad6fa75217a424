"""The behaviour policies that come with ringfence: an unsafe and a safe one for each built-in task."""

from importlib.resources import as_file, files
from typing import Literal

from ringfence import tasks
from ringfence.deploy import Policy
from ringfence.errors import UnknownName

Behaviour = Literal["unsafe", "safe"]
BEHAVIOURS: tuple[Behaviour, Behaviour] = ("unsafe", "safe")


def shipped_policy(task: str, behaviour: Behaviour) -> Policy:
    """The PPO policy ("unsafe": high return, over the limit) or the CPO policy ("safe": inside it) of a task.

    >>> shipped_policy("hopper-torque", "safe").metadata["method"]
    'cpo'
    """
    if task not in tasks.TASKS or behaviour not in BEHAVIOURS:
        there_are = f"{' and '.join(BEHAVIOURS)} for {', '.join(tasks.TASKS)}"
        raise UnknownName(f"no policy {behaviour!r} comes with ringfence for {task!r}; there are {there_are}")
    with as_file(files("ringfence.behaviour") / "policies" / f"{task}-{behaviour}.safetensors") as path:
        return Policy.load(path)
