"""Rules for a pacer on a trained actor of HalfCheetah, 20 episodes each: PYTHONPATH=../../../src python rules.py LIMIT SEED NAME LOGS STATES

STATES is what run.py wrote. rules.txt has what these rules, and those that were tried before them, printed: the return with its standard
deviation, mean and greatest discounted cost, cost per step, share of the episodes over the pace, greatest cost per step of an episode."""

import sys

import equinox as eqx
import jax
import numpy as np

from ringfence import tasks
from ringfence.data import load_file
from ringfence.networks import TanhGaussianActor

limit, seed, name, logs, states = float(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
log = load_file(f"{logs}/halfcheetah.h5")
mean, std = log.normaliser.mean, log.normaliser.std
blank = TanhGaussianActor(17, 6, (128, 128), key=jax.random.key(0))
averaged, _ = eqx.tree_deserialise_leaves(f"{states}/halfcheetah-{limit:g}-{seed}-{name}.eqx", (blank, blank))
means = jax.jit(lambda s: averaged(s).mean)
N, H, pace = 20, 1000, 0.01 * limit
envs = [tasks.make(tasks.find("halfcheetah-torque"), None) for _ in range(N)]


def run(gain):
    obs = np.stack([env.reset(seed=50000 + i)[0] for i, env in enumerate(envs)]).astype(np.float32)
    spent, earned, discounted, memory = np.zeros(N), np.zeros(N), np.zeros(N), {}
    for t in range(H):
        actions = np.tanh(gain(t, (pace * t - spent) / pace, memory)[:, None] * np.asarray(means((obs - mean) / std)))
        for i, env in enumerate(envs):
            obs[i], reward, _, _, info = env.step(actions[i])
            earned[i] += reward
            spent[i] += info["cost"]
            discounted[i] += 0.99**t * info["cost"]
    per_step = spent / H
    return f"ret {earned.mean():.0f} std {earned.std():.0f} disc {discounted.mean():.1f} max {discounted.max():.1f} pace {per_step.mean():.3f} over {np.mean(per_step > pace):.2f} maxpace {per_step.max():.3f}"


def save_then_spend(kind, high=1.15, spending=0.64, low=0.7, off=2):
    """Budgets are in steps at the pace."""

    def gain(t, budget, memory):
        needed = np.maximum((H - t) * (spending - pace) / pace, 10)
        fast = memory.setdefault("fast", np.zeros(N, bool))
        fast[budget > needed] = True
        fast[budget < off] = False
        had = memory.setdefault("had", np.zeros(N, bool))
        had |= budget >= off
        slow = {"A": (budget < off) & (t > 50), "B1": budget < 0, "B2": (budget < 0) | ((budget < off) & had), "B3": budget < off}[kind]
        return np.where(fast, high, np.where(slow, low, 1.0))

    return gain


for kind in ("A", "B1", "B2", "B3"):
    print(limit, seed, kind, run(save_then_spend(kind)), flush=True)
