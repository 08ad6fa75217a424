"""What a policy's critics say on rows of the log, beside what followed there.

python results/cpq-study/third/promises.py LOG POLICY...
"""

import sys

import numpy as np

from ringfence.data import load_file
from ringfence.deploy import Policy

log = load_file(sys.argv[1])
starts, ends = log.episode_starts, log.episode_ends
costs, returns = log.cost_to_go(0.99), log.return_to_go(0.99)
episode = np.repeat(np.arange(len(starts)), ends - starts)
time = np.arange(len(log)) - starts[episode]
known = ((ends - starts)[episode] - time > 300) | log.terminations[ends - 1][episode]
for file in sys.argv[2:]:
    policy, rng = Policy.load(file), np.random.default_rng(0)
    safe = (costs[starts] <= policy.artifact.limit)[episode]
    print(file)
    parts = {"first 100 steps": safe & (time < 100), "safe": safe & (time >= 100), "unsafe": ~safe & (time >= 100)}
    for name, chosen in parts.items():
        rows = rng.choice(np.flatnonzero(chosen & known), 4000)
        pair = log.observations[rows], policy(log.observations[rows])
        said = policy.artifact.return_to_go(*pair).mean(), policy.artifact.cost_to_go(*pair).mean()
        print(
            f"  {name}: return {said[0]:.0f} for {returns[rows].mean():.0f}, cost {said[1]:.1f} for {costs[rows].mean():.1f}"
        )
