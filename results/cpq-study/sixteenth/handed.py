"""What is handed out of a state that `fourteenth/train.py` kept, and the two policies that take turns, in the model and in 20 episodes:

    PYTHONPATH=../../../src:../fourteenth python handed.py TASK LIMIT SEED STEPS LOGS STATES"""

import sys

import equinox as eqx
import numpy as np
from train import load

from ringfence.evaluation import Evaluator

task, limit, seed, steps, logs, states = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:7]
log, session, state = load(task, limit, seed, logs, states, steps)
found = session.method.hand_out(state)
print(task, f"{limit:g}", seed, steps, [float(x) for x in found.choice], {name: float(value) for name, value in found.turns._asdict().items()}, flush=True)
evaluator, mean, std = Evaluator(f"{task}-torque", parallel=10), log.normaliser.mean, log.normaliser.std
for name, actor in (("handed out", found.actor), ("averaged", state.averaged_actor), ("clone", state.clone.averaged), ("cheap", found.cheap), ("costly", found.costly)):
    act = eqx.filter_jit(actor.mode)
    r = evaluator(lambda o, act=act: np.asarray(act((o - mean) / std)), 20, seed=50_000, limit=limit, discount=0.99)
    print(f"  {name:10} {r.returns.mean():.0f} +-{r.returns.std():.0f} disc {r.discounted_costs.mean():.1f} pace {r.costs.sum() / r.lengths.sum():.3f} len {r.lengths.mean():.0f}", flush=True)
