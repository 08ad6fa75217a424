"""The one loop every method runs in: compiled chunks, populations, checkpoints, logs."""

from ringfence.training.loop import Plan, Result, run
from ringfence.training.population import Member
from ringfence.training.rundir import RunDirectory

__all__ = ["Member", "Plan", "Result", "RunDirectory", "run"]
