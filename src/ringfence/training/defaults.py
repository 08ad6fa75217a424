"""The defaults of a run and of what is said about its policies, for the library, the command line and its help."""

STEPS = 50_000  # updates of the policy
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
