"""How far policies are from the safe clone along the clone's own episodes, by time in the episode (Walker2d).

python results/cpq-study/third/displacement.py CLONE POLICY...
"""

import sys
from itertools import pairwise

import numpy as np

from ringfence.deploy import Policy
from ringfence.evaluation import Evaluator

BINS = (0, 10, 20, 40, 60, 80, 100, 120, 140, 200, 400, 1000)

clone = Policy.load(sys.argv[1])
played = Evaluator("walker2d-torque", parallel=10)(clone, 10, seed=50_000, limit=36.0, discount=0.99, record=True)
episodes = [episode for episode in played.episodes if len(episode) == 1000]
observations = np.stack([episode.observations[:1000] for episode in episodes])
actions = np.stack([episode.actions for episode in episodes])
for file in sys.argv[2:]:
    policy = Policy.load(file)
    differences = policy(observations.reshape(-1, observations.shape[-1])).reshape(actions.shape) - actions
    print(file)
    for first, end in pairwise(BINS):
        part = differences[:, first:end]
        mean = np.round(part.mean((0, 1)), 3)
        print(f"  steps {first:4d} to {end:4d}: size {np.sqrt((part**2).mean()):.3f}, mean of each action {mean}")
