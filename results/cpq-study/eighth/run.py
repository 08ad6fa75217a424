"""One trial: PYTHONPATH=../../../src:. python run.py TRIAL LOGS OUT.jsonl

TRIAL is JSON with the keys module (a prototype beside this file) or method, name, task, limit, seed, steps, set. LOGS has halfcheetah.h5,
hopper.h5 and walker2d.h5 (`ringfence collect --task T-torque --size 500000 --seed 0 --out T.h5`)."""

import importlib
import json
import sys
import time

import jax

from ringfence.algorithms import METHODS
from ringfence.data import load_file
from ringfence.evaluation import Evaluator
from ringfence.progress import ProgressBar
from ringfence.training.compilation import use_compilation_cache
from ringfence.training.configuration import Member
from ringfence.training.loop import Interrupt, Plan, Session

trial, logs, out = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
use_compilation_cache()
began = time.time()
task, limit, seed, steps = trial["task"], float(trial["limit"]), trial.get("seed", 0), trial.get("steps", 15000)
log = load_file(f"{logs}/{task}.h5")
evaluator = Evaluator(f"{task}-torque", parallel=10)
settings = dict(trial.get("set", {}))
if "hidden" in settings:
    settings["hidden"] = tuple(settings["hidden"])
method = (importlib.import_module(trial["module"]).Proto if "module" in trial else METHODS[trial["method"]])(**settings)
curve, metrics = [], []


def numbers(found):
    per_step = float(found.costs.sum() / found.lengths.sum())
    return [round(float(found.returns.mean())), round(float(found.discounted_costs.mean()), 1), round(per_step, 3), round(float(found.lengths.mean()))]


def watch(policy, member):
    found = evaluator(policy, 3, seed=10000, limit=limit, discount=0.99)
    curve.append(numbers(found))
    return {"return": float(found.returns.mean()), "discounted_cost": float(found.discounted_costs.mean())}


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
    "discounted_cost": round(float(found.discounted_costs.mean()), 2),
    "cost_per_step": round(float(found.costs.sum() / found.lengths.sum()), 4),
    "length": round(float(found.lengths.mean()), 1),
    "share_over_limit": float((found.discounted_costs > limit).mean()),
    "curve": curve,
    "training_seconds": round(trained, 1),
}
state = jax.tree.map(lambda x: x[0], session.state)
if (cloned := getattr(state, "clone_avg", getattr(state, "clone", None))) is not None:
    mean, std = log.normaliser.mean, log.normaliser.std
    clone = jax.jit(lambda o: cloned.mode(o))
    row["clone"] = numbers(evaluator(lambda o: jax.device_get(clone((o - mean) / std)), 10, seed=70000, limit=limit, discount=0.99))
if hasattr(state, "slow") and trial.get("diag"):
    import numpy as np, jax.numpy as jnp
    nm = log.normaliser
    found2 = evaluator(policy, 5, seed=90000, limit=limit, discount=0.99, record=True)
    S = jnp.asarray(np.concatenate([(e.observations[:-1:5] - nm.mean) / nm.std for e in found2.episodes]), jnp.float32)
    A = state.averaged_actor.mode(S)
    def g(c): return np.asarray(jax.grad(lambda a: c(S, a).sum())(A))
    def cos(a, b): return round(float(np.mean((a*b).sum(1)/np.sqrt((a*a).sum(1)*(b*b).sum(1)+1e-12))), 3)
    cur = [g(c) for c in state.critics.reward]; slow = [g(c) for c in state.slow.reward]; h = len(cur)//2
    d = {"cur01": cos(cur[0],cur[1]), "slow01": cos(slow[0],slow[1]), "cur-slow": cos(cur[0],slow[0]), "size cur": float(np.sqrt((cur[0]**2).sum(1)).mean()), "size slow": float(np.sqrt((slow[0]**2).sum(1)).mean()),
         "means cur": cos(sum(cur[:h]), sum(cur[h:])), "means slow": cos(sum(slow[:h]), sum(slow[h:]))}
    u = np.arctanh(np.clip(np.asarray(A), -.999,.999)) * (1-np.asarray(A)**2)
    d["gain01 slow"] = [float((x*u).sum(1).mean()) for x in slow]; d["gain cur"] = [float((x*u).sum(1).mean()) for x in cur]
    row["diag"] = d; print("   diag", d, flush=True)
last = [x for x in metrics if "indicator" in x][-1:]
row["metrics"] = {k: float(f"{v:.5g}") for k, v in (last[0] if last else {}).items() if isinstance(v, (int, float))}
with open(out, "a") as file:
    file.write(json.dumps(row) + "\n")
shown_metrics = {k: row["metrics"][k] for k in ("price","gain","gain_lo","gain_hi","offset","slack", "imagined_cost", "u0", "u1", "u2", "u3", "plant_loss", "indicator", "qc_policy") if k in row["metrics"]}
print(
    f"{trial['name']:14} {task:11} l={limit:g} s{seed} {row['return']:6.0f} @ {row['discounted_cost']:5.1f} {row['cost_per_step']:.3f} ({row['length']:4.0f}) "
    f"{trained:4.0f}s | {' '.join(str(c[0]) + '/' + str(c[2]) for c in curve)} | clone {row.get('clone')} | {shown_metrics}",
    flush=True,
)
