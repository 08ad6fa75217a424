"""The defaults of a run and of what is said about its policies, for the library, the command line and its help."""

from typing import Any

from ringfence.steps import STEPS as STEPS
from ringfence.steps import critic_steps as critic_steps

LOG_EVERY = 1_000  # steps between lines of metrics
EVALUATE_EVERY = 5_000
CHECKPOINT_EVERY = 5_000
EPISODES = 10  # of each evaluation
TEST_EPISODES = 50  # of the last iterate of an experiment's cell
SEEDS = (0,)
CONFIDENCE = 0.95  # of each one-sided bound on what a policy earns and costs
HOLDOUT = 0.2  # of the episodes: set aside by the command line to judge the policy by
LEAST_EPISODES_TO_HOLD_OUT = 25  # a smaller log is learned from whole: a fifth of it could not judge
EVALUATION_SEED = 10_000  # the same episodes at every evaluation, so that curves can be compared


def steps_of(method: Any) -> int:
    """The number of steps of a run that gives none: what the method says (`default_steps`), else STEPS."""
    steps: int = getattr(method, "default_steps", STEPS)
    return steps
