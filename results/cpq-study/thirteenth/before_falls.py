"""How likely the model calls an end in the last step before real falls of the averaged actor, and in its other steps:

    PYTHONPATH=../../../src:. python before_falls.py TASK LIMIT SEED LOGS STATES"""

import jax
import numpy as np
from rules import limit, log, seed, state, task

from ringfence.evaluation import Evaluator

mean, std = log.normaliser.mean, log.normaliser.std
act = jax.jit(lambda s: state.averaged_actor.mode(s))
ends = jax.jit(lambda s, a: state.plant(s, a).terminated)
ran = Evaluator(f"{task}-torque").episodes(lambda o: jax.device_get(act((o - mean) / std)), 20, seed=50000)
last, others = [], []
for episode in ran:
    said = np.asarray(ends((episode.observations[:-1] - mean) / std, episode.actions))
    others += said[:-5].tolist()
    if episode.terminated:
        last.append(said[-3:].max())
print(task, f"{limit:g}", seed, len(last), "of 20 fall; greatest of the last three steps before a fall:", np.round(np.quantile(last, [0, 0.5, 1]), 3) if last else "-",
      "of other steps, 0.5, 0.99 and 1 quantile:", np.round(np.quantile(others, [0.5, 0.99, 1]), 3))  # fmt: skip
