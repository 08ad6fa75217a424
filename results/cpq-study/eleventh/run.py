"""One trial: PYTHONPATH=../../../src:. python run.py TRIAL LOGS OUT.jsonl

TRIAL is JSON with the keys module (a prototype beside this file) or method, name, task, limit, seed, steps, set. LOGS has halfcheetah.h5,
hopper.h5 and walker2d.h5 (`ringfence collect --task T-torque --size 500000 --seed 0 --out T.h5`)."""

import importlib
import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from ringfence.algorithms import METHODS
from ringfence.data import load_file
from ringfence.evaluation import Evaluator
from ringfence.progress import ProgressBar
from ringfence.training.compilation import use_compilation_cache
from ringfence.training.configuration import Member
from ringfence.training.loop import Interrupt, Plan, Session

trial, logs, out = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
use_compilation_cache()
task, limit, seed, steps = trial["task"], float(trial["limit"]), trial.get("seed", 0), trial.get("steps", 15000)
log = load_file(f"{logs}/{task}.h5")
evaluator = Evaluator(f"{task}-torque", parallel=10)
settings = {k: tuple(v) if isinstance(v, list) else v for k, v in trial.get("set", {}).items()}
module = importlib.import_module(trial["module"]) if "module" in trial else None
method = (module.Proto if module else METHODS[trial["method"]])(**settings)
curve, metrics = [], []


def numbers(found):
    per_step = float(found.costs.sum() / found.lengths.sum())
    return [round(float(found.returns.mean())), round(float(found.discounted_costs.mean()), 1), round(per_step, 3), round(float(found.lengths.mean()))]


def watch(policy, member):
    found = evaluator(policy, 5, seed=10000, limit=limit, discount=0.99)
    curve.append(numbers(found))
    return {"return": float(found.returns.mean()), "discounted_cost": float(found.discounted_costs.mean())}


began = time.time()
plan = Plan(method, (Member(seed, limit),), steps=steps, log_every=1000, evaluate_every=trial.get("every", steps // 6), checkpoint_every=10**9)
with ProgressBar(False) as shown, Interrupt() as interrupt:
    session = Session(log, plan, plan.configuration(log), watch, None, {}, shown, interrupt, metrics.append)
    result = session.run(False)
trained = time.time() - began
policy = result.policy if hasattr(result, "policy") else next(iter(result.policies.values()))
found = evaluator(policy, 20, seed=50000, limit=limit, discount=0.99)
row = {
    **trial,
    "return": round(float(found.returns.mean()), 1),
    "return_std": round(float(found.returns.std()), 1),
    "discounted_return": round(float(found.discounted_returns.mean()), 2),
    "discounted_cost": round(float(found.discounted_costs.mean()), 2),
    "cost_per_step": round(float(found.costs.sum() / found.lengths.sum()), 4),
    "length": round(float(found.lengths.mean()), 1),
    "share_over_limit": float((found.discounted_costs > limit).mean()),
    "curve": curve,
    "training_seconds": round(trained, 1),
}
row["handed_out"] = policy.artifact.metadata.get("handed_out")
state = jax.tree.map(lambda x: x[0], session.state)
mean, std = log.normaliser.mean, log.normaliser.std
if (cloned := getattr(state, "clone", None)) is not None and trial.get("clone", True):
    cloned = getattr(cloned, "actor", cloned)
    clone = jax.jit(lambda o: cloned.mode(o))
    row["clone"] = numbers(evaluator(lambda o: jax.device_get(clone((o - mean) / std)), 20, seed=50000, limit=limit, discount=0.99))
if hasattr(module, "imagine"):
    first = log.observations[log.episode_starts]
    starts = jnp.asarray((first[np.arange(128) % len(first)] - mean) / std, jnp.float32)
    horizon = int(np.diff(np.append(log.episode_starts, len(log.rewards))).max())
    row["imagined"] = {}
    for name, actor in (("average", state.averaged_actor), ("clone", state.clone)):
        for noise in (0.0, 0.5):
            episodes = jax.jit(lambda n=noise, x=actor: module.imagine(state.plant, x, starts, horizon, 0.99, n, jax.random.key(0)))()
            m = np.asarray(episodes).mean(0)
            row["imagined"][f"{name} noise {noise}"] = [round(float(m[0])), round(float(m[1]), 1), round(float(m[2]), 1), round(float(m[3] / m[4]), 3), round(float(m[4]))]
last = [x for x in metrics if "indicator" in x][-1:]
row["metrics"] = {k: float(f"{v:.5g}") for k, v in (last[0] if last else {}).items() if isinstance(v, (int, float))}
with open(out, "a") as file:
    file.write(json.dumps(row) + "\n")
keys = ("slack", "imagined_cost", "plant_loss", "indicator", "qc_policy", *getattr(method, "watched", ()))
print(
    f"{trial['name']:14} {task:11} l={limit:g} s{seed} {row['return']:6.0f} [{row['discounted_return']:.0f}] @ {row['discounted_cost']:5.1f} {row['cost_per_step']:.3f} ({row['length']:4.0f}) "
    f"{trained:4.0f}s | {' '.join(str(c[0]) + '/' + str(c[2]) for c in curve)} | clone {row.get('clone')} | {row.get('imagined')} | {row['handed_out']} | { {k: row['metrics'][k] for k in keys if k in row['metrics']} }",
    flush=True,
)
