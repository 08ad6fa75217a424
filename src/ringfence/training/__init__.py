"""The one loop every method runs in: compiled chunks, populations, checkpoints, logs.

Names are imported when they are first used: reading a run (`Run.load`) needs no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Configuration": "configuration",
    "Member": "configuration",
    "Plan": "plan",
    "Run": "record",
    "RunDirectory": "rundir",
    "Schedule": "configuration",
    "Verdict": "verdict",
    "run": "loop",
}

__all__ = ["Configuration", "Member", "Plan", "Run", "RunDirectory", "Schedule", "Verdict", "run"]

if TYPE_CHECKING:
    from ringfence.training.configuration import Configuration, Member, Schedule
    from ringfence.training.loop import run
    from ringfence.training.plan import Plan
    from ringfence.training.record import Run
    from ringfence.training.rundir import RunDirectory
    from ringfence.training.verdict import Verdict


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ringfence.training' has no attribute {name!r}")
    return getattr(import_module(f"ringfence.training.{_HOME[name]}"), name)
