"""A trained policy with its mean before the squash times a gain, and mixed with the clone's: what two models say with half of their
residuals as noise, and what is true.

PYTHONPATH=../../../src:. python dial.py TASK LIMIT SEED LOGS OUT.jsonl [GAIN ...]"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import proto30
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
plan = Plan(proto30.Proto(), (Member(seed, limit),), steps=15000, log_every=5000, checkpoint_every=10**9)
metrics = []
with ProgressBar(False) as shown, Interrupt() as interrupt:
    session = Session(log, plan, plan.configuration(log), None, None, {}, shown, interrupt, metrics.append)
    session.run(False)
state = jax.tree.map(lambda x: x[0], session.state)
mean, std = log.normaliser.mean, log.normaliser.std
first = log.observations[log.episode_starts]
starts = jnp.asarray((first[np.arange(128) % len(first)] - mean) / std, jnp.float32)
print({k: v for k, v in metrics[-1].items() if k in ("slack", "imagined_cost", "plant_loss", "indicator", "qc_policy")}, flush=True)


def act(gain, share, s):
    return jnp.tanh(gain * (share * state.averaged_actor(s).mean + (1 - share) * state.clone(s).mean))


@jax.jit
def imagined(plant, gain, share, noise):
    return proto30.imagine(plant, lambda s: act(gain, share, s), starts, 1000, 0.99, noise, jax.random.key(0)).mean(0)


dials = [(1.0, 0.0), *((g, 1.0) for g in (0.94, 0.97, 1.0, 1.03, 1.06, 1.1)), (1.0, 0.95), (1.0, 1.1), (1.0, 1.25)]
for gain, share in dials:
    run = jax.jit(lambda s: act(gain, share, s))
    found = evaluator(lambda o: jax.device_get(run((o - mean) / std)), 20, seed=50000, limit=limit, discount=0.99)
    row = {"task": task, "limit": limit, "seed": seed, "gain": gain, "share": share, "return": round(float(found.returns.mean())), "std": round(float(found.returns.std())),
           "discounted_cost": round(float(found.discounted_costs.mean()), 1), "cost_per_step": round(float(found.costs.sum() / found.lengths.sum()), 3), "length": round(float(found.lengths.mean()))}
    for noise in (0.0, 0.5, 0.7):
        for name, plant in (("a", state.plant), ("b", state.second)):
            m = np.asarray(imagined(plant, gain, share, noise))
            row[f"{name} {noise}"] = [round(float(m[0])), round(float(m[2]), 1), round(float(m[3] / m[4]), 3), round(float(m[4]))]
    with open(out, "a") as file:
        file.write(json.dumps(row) + "\n")
    print(row, flush=True)
