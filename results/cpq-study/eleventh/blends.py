"""Between the clone of the safe episodes and CPQ: their means before the squash, mixed. What the model says, and what is true.

PYTHONPATH=../../../src:. python blends.py TASK LIMIT SEED LOGS OUT.jsonl"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import proto29
from ringfence.data import load_file
from ringfence.evaluation import Evaluator
from ringfence.progress import ProgressBar
from ringfence.training.compilation import use_compilation_cache
from ringfence.training.configuration import Member
from ringfence.training.loop import Interrupt, Plan, Session

task, limit, seed, logs, out = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
use_compilation_cache()
log = load_file(f"{logs}/{task}.h5")
evaluator = Evaluator(f"{task}-torque", parallel=10)
plan = Plan(proto29.Proto(), (Member(seed, limit),), steps=15000, log_every=5000, checkpoint_every=10**9)
with ProgressBar(False) as shown, Interrupt() as interrupt:
    session = Session(log, plan, plan.configuration(log), None, None, {}, shown, interrupt, lambda row: None)
    session.run(False)
state = jax.tree.map(lambda x: x[0], session.state)
mean, std = log.normaliser.mean, log.normaliser.std
first = log.observations[log.episode_starts]
starts = jnp.asarray((first[np.arange(128) % len(first)] - mean) / std, jnp.float32)


class Blend:
    def __init__(self, share):
        self.share = share

    def mode(self, s):
        return jnp.tanh(self.share * state.averaged_actor(s).mean + (1 - self.share) * state.clone(s).mean)


for share in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
    act = jax.jit(Blend(share).mode)
    found = evaluator(lambda o: jax.device_get(act((o - mean) / std)), 20, seed=50000, limit=limit, discount=0.99)
    row = {"task": task, "limit": limit, "seed": seed, "share": share, "return": round(float(found.returns.mean())), "std": round(float(found.returns.std())),
           "discounted_cost": round(float(found.discounted_costs.mean()), 1), "cost_per_step": round(float(found.costs.sum() / found.lengths.sum()), 3), "length": round(float(found.lengths.mean()))}
    for noise in (0.0, 0.5, 0.75, 1.0):
        m = np.asarray(jax.jit(lambda: proto29.imagine(state.plant, Blend(share), starts, 1000, 0.99, noise, jax.random.key(0)))()).mean(0)
        row[f"imagined, noise {noise}"] = [round(float(m[0])), round(float(m[2]), 1), round(float(m[3] / m[4]), 3), round(float(m[4]))]
    with open(out, "a") as file:
        file.write(json.dumps(row) + "\n")
    print(row, flush=True)
