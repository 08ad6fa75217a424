"""One trial: python run.py '{"module": "proto", "name": "s3", "task": "walker2d", "limit": 30, "steps": 15000, "set": {...}}' LOGS OUT.jsonl

LOGS has halfcheetah.h5, hopper.h5 and walker2d.h5 (`ringfence collect --task T-torque --size 500000 --seed 0`)."""
import sys, json, time
trial = json.loads(sys.argv[1]); logs = sys.argv[2]; out = sys.argv[3]
import numpy as np, jax, jax.numpy as jnp
from ringfence.training.compilation import use_compilation_cache
use_compilation_cache()
import importlib
proto = importlib.import_module(trial["module"]) if "module" in trial else None
from ringfence.algorithms import METHODS
from ringfence.algorithms.critics import smaller_value
from ringfence.data import load_file
from ringfence.evaluation import Evaluator
from ringfence.training.configuration import Member
from ringfence.training.loop import Plan, Session, Interrupt
from ringfence.progress import ProgressBar
t0 = time.time()
task, limit, seed, steps = trial["task"], float(trial["limit"]), trial.get("seed", 0), trial.get("steps", 12000)
log = load_file(f"{logs}/{task}.h5")
ev = Evaluator(f"{task}-torque", parallel=10)
cls = METHODS[trial["method"]] if "method" in trial else proto.Proto
st = dict(trial.get("set", {}))
if "hidden" in st: st["hidden"] = tuple(st["hidden"])
if "method" not in trial: st.setdefault("steps_planned", steps); 
if hasattr(cls,"limit_known"): st.setdefault("limit_known", limit)
if hasattr(cls,"share"): st.setdefault("share", float(log.terminations[log.episode_ends - 1].mean()))
method = cls(**st)
curve = []
def watch(policy, member):
    f = ev(policy, 3, seed=10000, limit=limit, discount=0.99)
    curve.append([round(float(f.returns.mean())), round(float(f.discounted_costs.mean()), 1), round(float(f.costs.mean())), round(float(f.lengths.mean()))])
    return {"return": float(f.returns.mean()), "discounted_cost": float(f.discounted_costs.mean())}
plan = Plan(method, (Member(seed, limit),), steps=steps, log_every=1000, evaluate_every=trial.get("every", steps // 6), checkpoint_every=10**9)
metrics = []
with ProgressBar(False) as shown, Interrupt() as interrupt:
    session = Session(log, plan, plan.configuration(log), watch, None, {}, shown, interrupt, lambda row: metrics.append(row))
    result = session.run(False)
train_s = time.time() - t0
from ringfence.training.artifact import *  # noqa
policy = result.policy if hasattr(result, "policy") else list(result.policies.values())[0]
f = ev(policy, 20, seed=50000, limit=limit, discount=0.99, record=True)
row = {**trial, "return": round(float(f.returns.mean()), 1), "return_std": round(float(f.returns.std()), 1), "discounted_cost": round(float(f.discounted_costs.mean()), 2),
  "episode_cost": round(float(f.costs.mean()), 1), "length": round(float(f.lengths.mean()), 1), "cost_per_step": round(float(f.costs.sum() / f.lengths.sum()), 4),
  "share_over_limit": float((f.discounted_costs > limit).mean()), "share_over_pace": float((f.costs / f.lengths > limit * 0.01).mean()), "curve": curve, "seconds": round(time.time() - t0, 1)}
note = ""
state = jax.tree.map(lambda x: x[0], session.state)
if hasattr(state, "values") or hasattr(state, "critics"):
    nm = log.normaliser
    sc, rc, sr, rr = [], [], [], []
    for e in f.episodes[:10]:
        s = jnp.asarray((e.observations[:-1] - nm.mean) / nm.std, jnp.float32)
        tg = np.zeros((len(e) + 1, 2))
        for t in range(len(e) - 1, -1, -1): tg[t] = [e.costs[t], e.rewards[t]] + 0.99 * tg[t + 1]
        up = max(len(e) - 400, 1)
        vr, vc = method.values_of(state.values, state.scale, s) if hasattr(state, "values") else (jnp.minimum(*[c(s, state.averaged_actor.mode(s)) for c in state.critics.reward]), state.critics.cost(s, state.averaged_actor.mode(s)))
        sc.append(np.asarray(vc)[150:up]); rc.append(tg[150:up, 0]); sr.append(np.asarray(vr)[150:up]); rr.append(tg[150:up, 1])
        s0 = s[:1]
    cat = lambda x: float(np.concatenate(x).mean()) if sum(map(len, x)) else float("nan")
    row |= {"qc": [cat(sc), cat(rc)], "qr": [cat(sr), cat(rr)]}
    note = f"Vc {cat(sc):.1f}/{cat(rc):.1f} Vr {cat(sr):.0f}/{cat(rr):.0f}"
m = metrics[-1] if metrics else {}
last = [x for x in metrics if "indicator" in str(x)][-1:] 
row["metrics"] = {k: float(v) for k, v in (last[0] if last else {}).items() if isinstance(v, (int, float))}
try:
    A = state.averaged_actor; nm = log.normaliser
    rows = np.random.default_rng(0).choice(len(log), 20000, replace=False)
    from ringfence.data.episodes import episode_table
    et = episode_table(log, 0.99); L = np.diff(np.append(log.episode_starts, len(log)))
    ec = np.repeat(et.discounted_costs, L)[rows]
    S = jnp.asarray((log.observations[rows] - nm.mean) / nm.std, jnp.float32)
    mode = jnp.clip(A.mode(S), -0.999, 0.999)
    sel = ec <= limit
    gains = []
    for g in (0.9, 1.0, 1.1, 1.2):
        a = jnp.tanh(g * jnp.arctanh(mode)); 
        qrs = [np.asarray(c(S, a))[sel].mean() for c in state.critics.reward]; qc_ = np.asarray(state.critics.cost(S, a))[sel].mean()
        f2 = ev((lambda o, g=g: np.tanh(g * np.arctanh(np.clip(np.asarray(policy(o)), -0.999, 0.999)))), 5, seed=60000, limit=limit, discount=0.99)
        gains.append([g, round(float(qrs[0]),2), round(float(qrs[1]),2), round(float(qc_),2), round(float(f2.returns.mean())), round(float(f2.costs.sum()/f2.lengths.sum()),3), round(float(f2.discounted_costs.mean()),1), round(float(f2.lengths.mean()))])
    st0 = jnp.asarray((log.observations[log.episode_starts[:64]] - nm.mean) / nm.std, jnp.float32)
    acts = jnp.asarray(np.clip(log.actions[rows], -1, 1), jnp.float32); nxt = jnp.asarray((log.next_observations[rows] - nm.mean) / nm.std, jnp.float32)
    from ringfence.algorithms.cpq_imagined import with_gain
    P = method.policy_actor(state)
    def imagine(plant, noise, key):
        sd = jnp.sqrt(jnp.mean((plant(S, acts)[0] - nxt) ** 2, 0))
        def step(o, k):
            s, r, c = plant(o, P.mode(o)); s = jnp.clip(s + noise * sd * jax.random.normal(k, s.shape), plant.low, plant.high)
            return s, (r, c)
        _, (r, c) = jax.lax.scan(step, st0, jax.random.split(key, 1000))
        return round(float(r.sum(0).mean())), round(float(c.mean()), 3)
    row["noise"] = [[n, [imagine(p, n, jax.random.key(0)) for p in state.plants]] for n in (0.0, 0.25, 0.5, 1.0)]
    print("   noise", row["noise"])
    row["gains"] = gains; print("   gains", gains)
except Exception as e: print("gains", repr(e))
with open(out, "a") as fh: fh.write(json.dumps(row) + "\n")
mm = row["metrics"]
print(f"{trial['name']:22} {task[:6]:6} l={limit:<3g} s{seed} {row['return']:6.0f} @ {row['discounted_cost']:5.1f} ({row['episode_cost']:4.0f}, {row['length']:4.0f}) {row['seconds']:4.0f}s | "
  + " ".join(f"{c[0]}" for c in curve) + f" | {note} | ind {mm.get('indicator', 0):.2f} qc {mm.get('qc_policy', 0):.1f} dist {mm.get('dist', 0):.3f} adv {mm.get('adv_abs', 0):.3f} w<.5 {mm.get('w_min', 0):.2f} " + " ".join(f"{k} {mm[k]:.3g}" for k in ("imagined_cost","slack","gain","u0","u1","u2","u3","plant_loss","u","u_pool","over","pool_r","pool_c","ended","ar","ac","verr_r","verr_c","dvar_r","aerr_r","dvar_c","aerr_c","scale") if k in mm), flush=True)
