"""Which policies a pacer saves and spends with, on states that train.py kept, 20 episodes each:

    PYTHONPATH=../../../src:. python rules.py TASK LIMIT SEED LOGS STATES

Each line: return with its standard deviation, mean and greatest discounted cost, cost per step, share of the episodes over the pace,
greatest cost per step of an episode, mean length."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from train import session_of

from ringfence import tasks
from ringfence.training.loop import Session

task, limit, seed, logs, states = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
N, H, pace, FIRST = 20, 1000, 0.01 * limit, 50000


def load():
    log, plan, shown, interrupt = session_of(task, limit, seed, logs)
    session = Session(log, plan, plan.configuration(log), None, None, {}, shown, interrupt, [].append)
    blank = session._programs(0).init(session.seeds, jnp.asarray([limit], jnp.float32))
    state = eqx.tree_deserialise_leaves(f"{states}/{task}-{limit:g}-{seed}.eqx", jax.tree.map(lambda x: x[0], blank))
    return log, session, state


log, session, state = load()
mean, std = log.normaliser.mean, log.normaliser.std
envs = [tasks.make(tasks.find(f"{task}-torque"), None) for _ in range(N)]
NAMES = {"actor": state.averaged_actor, "clone": state.clone.averaged, "clone1": state.clone.actor, "costly": state.costly.averaged}
means = {name: jax.jit(lambda s, actor=actor: actor(s).mean) for name, actor in NAMES.items()}


def run(rule):
    """rule(t, budget in steps at the pace, memory) gives for each episode (network name, gain)."""
    obs = np.stack([env.reset(seed=FIRST + i)[0] for i, env in enumerate(envs)]).astype(np.float32)
    spent, earned, discounted, memory, alive, length = np.zeros(N), np.zeros(N), np.zeros(N), {}, np.ones(N, bool), np.zeros(N)
    for t in range(H):
        names, gains = rule(t, (pace * t - spent) / pace, memory)
        given, actions = (obs - mean) / std, None
        for name in set(names):
            here = np.asarray(means[name](given))
            actions = here.copy() if actions is None else np.where((np.array(names) == name)[:, None], here, actions)
        actions = np.tanh(gains[:, None] * actions)
        for i, env in enumerate(envs):
            if not alive[i]:
                continue
            obs[i], reward, ended, _, info = env.step(actions[i])
            earned[i] += reward
            spent[i] += info["cost"]
            discounted[i] += 0.99**t * info["cost"]
            length[i] += 1
            alive[i] = not ended
        if not alive.any():
            break
    per_step = spent / length
    return f"ret {earned.mean():.0f} std {earned.std():.0f} disc {discounted.mean():.1f} max {discounted.max():.1f} pace {per_step.mean():.3f} over {np.mean(per_step > pace):.2f} maxpace {per_step.max():.3f} len {length.mean():.0f}"


def always(name, gain=1.0):
    return lambda t, budget, memory: ([name] * N, np.full(N, gain))


def save_then_spend(saver, spender, high, spending, low=0.7, margin=0.0, off=4):
    def rule(t, budget, memory):
        needed = np.maximum((H - t) * (spending - pace) / pace + margin, 10)
        fast = memory.setdefault("fast", np.zeros(N, bool))
        little = budget < off
        had = memory.setdefault("had", np.zeros(N, bool))
        had |= ~((budget >= 0) & (budget < off))
        fast |= budget > needed
        fast &= ~little
        slow = little & had & ~fast
        names = [spender if f else "actor" if s else saver for f, s in zip(fast, slow)]
        return names, np.where(fast, high, np.where(slow, low, 1.0))

    return rule


if __name__ == "__main__":
    def show(name, rule):
        print(task, f"{limit:g}", seed, f"{name:32}", run(rule), flush=True)

    for name in NAMES:
        show(name, always(name))
    if task == "halfcheetah":
        show("actor, actor x 1.15", save_then_spend("actor", "actor", 1.15, 0.64))
        show("clone, actor x 1.15", save_then_spend("clone", "actor", 1.15, 0.64))
        show("clone, costly 0.70", save_then_spend("clone", "costly", 1.0, 0.70))
        show("clone, costly 0.68", save_then_spend("clone", "costly", 1.0, 0.68))
        show("actor, costly 0.70", save_then_spend("actor", "costly", 1.0, 0.70))
