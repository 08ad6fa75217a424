"""The defaults of a run and of what is said about its policies, for the library, the command line and its help."""

from typing import Any

STEPS = 50_000  # updates of the policy, in an experiment
LEAST_STEPS = 15_000  # of a run that is not told how many: see `steps_of`
LOG_EVERY = 1_000  # steps between lines of metrics
EVALUATE_EVERY = 5_000
CHECKPOINT_EVERY = 5_000
EPISODES = 10  # of each evaluation
TEST_EPISODES = 50  # of the last iterate of an experiment's cell
SEEDS = (0,)
CONFIDENCE = 0.95  # of each one-sided bound on what a policy earns and costs
HOLDOUT = 0.2  # of the episodes: set aside by the command line to judge the policy by
LEAST_EPISODES_TO_HOLD_OUT = 20  # a smaller log is learned from whole
EVALUATION_SEED = 10_000  # the same episodes at every evaluation, so that curves can be compared


def critic_steps(tau: float, discount: float) -> int:
    """How many steps critics need to reach their scale: targets follow at the rate tau, and each backup covers the
    share 1 - discount of the way, so that after 3 / (tau (1 - discount)) steps 5 % of the way is left."""
    return round(3.0 / (tau * (1.0 - discount)))


def steps_of(method: Any) -> int:
    """How long a run trains that is not told how many steps: as long as the method's critics need, at least LEAST_STEPS. A
    method without critics, or one that fits new ones in each of several rounds (CBPL), trains for STEPS."""
    if not hasattr(method, "tau") or hasattr(method, "rounds"):
        return STEPS
    return max(critic_steps(method.tau, method.discount), LEAST_STEPS)
