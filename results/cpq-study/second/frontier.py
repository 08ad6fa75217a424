"""python frontier.py: the unsafe controllers with their actions scaled down, 6 episodes each: what lies between the two gaits. For
understanding only: it uses the simulator, which no method may."""
import numpy as np
from ringfence.evaluation import Evaluator
from ringfence.behaviour.shipped import shipped_policy
for task in ("halfcheetah", "walker2d", "hopper"):
    ev = Evaluator(f"{task}-torque", parallel=6)
    p = shipped_policy(f"{task}-torque", "unsafe")
    for f in (1.0, 0.95, 0.9, 0.8, 0.7, 0.6):
        r = ev(lambda o: f * np.asarray(p(o)), 6, seed=900, limit=50, discount=0.99)
        print(task, f, round(r.returns.mean()), "@", round(r.discounted_costs.mean(), 1), round(r.costs.mean()), round(r.lengths.mean()), flush=True)
