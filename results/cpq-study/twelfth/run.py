"""One trial: PYTHONPATH=../../../src python run.py TRIAL LOGS OUT.jsonl [STATES]

TRIAL is JSON with the keys name, task, limit, seed and, if wanted, steps and set. LOGS has halfcheetah.h5, hopper.h5 and walker2d.h5
(`ringfence collect --task T-torque --size 500000 --seed 0 --out T.h5`). A row has the handed-out policy, the averaged actor and the
clone: return, discounted cost, cost per step, length of 20 episodes, and what the model expected. STATES: a directory for the actors."""

import json
import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp

from ringfence.algorithms import METHODS
from ringfence.algorithms.cpq_handout import GAINS, HandOut, expected_of, gains_around_one
from ringfence.data import load_file
from ringfence.deploy import Pacer
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
method = METHODS["cpq"](**trial.get("set", {}))
metrics = []


def numbers(policy):
    found = evaluator(policy, 20, seed=50000, limit=limit, discount=0.99)
    per_step = float(found.costs.sum() / found.lengths.sum())
    return [round(float(found.returns.mean())), round(float(found.discounted_costs.mean()), 1), round(per_step, 3), round(float(found.lengths.mean()))]


def over(policy):
    """The share of episodes over the pace, and the greatest cost per step of one."""
    found = evaluator(policy, 20, seed=50000, limit=limit, discount=0.99)
    pace = found.costs / found.lengths
    return [float((pace > 0.01 * limit).mean()), round(float(pace.max()), 3), round(float(found.discounted_costs.max()), 1), round(float(found.returns.std()))]


began = time.time()
plan = Plan(method, (Member(seed, limit),), steps=steps, log_every=1000, checkpoint_every=10**9)
with ProgressBar(False) as shown, Interrupt() as interrupt:
    session = Session(log, plan, plan.configuration(log), None, None, {}, shown, interrupt, metrics.append)
    result = session.run(False)
row = {**trial, "seconds": round(time.time() - began, 1)}
policy = result.policies[0] if isinstance(result.policies, (list, tuple)) else next(iter(result.policies.values()))
row["handed_out"] = {"facts": policy.artifact.metadata.get("handed_out"), "true": numbers(policy)}
if "pacing" in policy.artifact.metadata:
    row["paced"] = {"facts": policy.artifact.metadata["pacing"], "true": numbers(Pacer(policy)), "over_pace": over(Pacer(policy))}
state = jax.tree.map(lambda x: x[0], session.state)
mean, std = log.normaliser.mean, log.normaliser.std
for name, actor in (("averaged", state.averaged_actor), ("clone", state.clone.actor)):
    act = jax.jit(lambda s, actor=actor: actor.mode(s))
    row[name] = {"true": numbers(lambda o: jax.device_get(act((o - mean) / std)))}
growth = state.anchor / method.anchor
gains = gains_around_one(growth)
end = jnp.asarray(method.cost_of_end(limit), jnp.float32)
given = HandOut(state.plant, state.averaged_actor, state.clone, state.starts, state.limit, end, growth)
found = eqx.filter_jit(expected_of)(given, gains, int(state.imagined.horizon), 0.99)
row["error"] = round(float(state.plant.error), 4)
row["gains"] = [round(float(x), 3) for x in gains]
row["imagined"] = {k: [round(float(x), 2) for x in getattr(found, k)] for k in found._fields}
last = [x for x in metrics if "indicator" in x][-1:]
row["metrics"] = {k: float(f"{v:.5g}") for k, v in (last[0] if last else {}).items() if isinstance(v, (int, float))}
with open(out, "a") as file:
    file.write(json.dumps(row) + "\n")
if len(sys.argv) > 4:
    eqx.tree_serialise_leaves(f"{sys.argv[4]}/{task}-{limit:g}-{seed}-{trial['name']}.eqx", (state.averaged_actor, state.clone.actor))
m = row["metrics"]
print(
    trial["name"], task, limit, seed, f"{row['seconds']:.0f}s", "HANDED", row["handed_out"], "PACED", row.get("paced"), "AVG", row["averaged"]["true"], "imagined", row["imagined"]["returned"][GAINS // 2], row["imagined"]["cost"][GAINS // 2],
    "CLONE", row["clone"]["true"], "imagined", row["imagined"]["returned"][-1], row["imagined"]["cost"][-1], "error", row["error"], {k: m.get(k) for k in ("slack", "imagined_cost", "indicator")}, flush=True,
)
