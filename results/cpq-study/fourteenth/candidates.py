"""What policies near a trained one and near its clone earn, in the model of the plant and in truth, on a state that train.py kept:

    PYTHONPATH=../../../src python candidates.py TASK LIMIT SEED STEPS LOGS STATES [NAME ...]

u is the mean before the squash. Each line: what the model says with noise of 0, 0.35, 0.7 and 0.5 (the last with 128 episodes) as return, cost and
completed, and what 20 episodes say as return, its standard deviation, discounted return, discounted cost, cost per step, mean length."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from train import load

from ringfence.algorithms.cpq_handout import imagine
from ringfence.evaluation import Evaluator

task, limit, seed, steps, logs, states = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6]
log, session, state = load(task, limit, seed, logs, states, steps)
mean, std = log.normaliser.mean, log.normaliser.std
actor, clone = state.averaged_actor, state.clone.averaged


def of(weight=0.0, gain=1.0, cube=0.0):
    """weight of the clone, in the mixture of means before the squash"""

    def act(s):
        u = (1 - weight) * actor(s).mean + weight * clone(s).mean
        return jnp.tanh(gain * u + cube * u**3)

    return act


NAMES = {
    "actor": of(), "actor .97": of(gain=0.97), "actor 1.03": of(gain=1.03), "actor 1.06": of(gain=1.06), "actor 1.1": of(gain=1.1), "actor .94": of(gain=0.94), "actor 1.01": of(gain=1.01), "actor 1.02": of(gain=1.02), "actor 1.04": of(gain=1.04),
    "actor u+.1u3": of(cube=0.1), "actor u+.3u3": of(cube=0.3),
    "clone": of(1.0), "clone .94": of(1.0, 0.94), "clone .97": of(1.0, 0.97), "clone 1.03": of(1.0, 1.03), "clone 1.06": of(1.0, 1.06),
    "clone u+.05u3": of(1.0, cube=0.05), "clone u+.15u3": of(1.0, cube=0.15),
    "clone 1.09": of(1.0, 1.09), "clone 1.12": of(1.0, 1.12), "clone 1.15": of(1.0, 1.15), "clone 1.2": of(1.0, 1.2),
    "clone u+.3u3": of(1.0, cube=0.3), "clone u+.6u3": of(1.0, cube=0.6), "clone u+1u3": of(1.0, cube=1.0),
    "half": of(0.5), "half 1.03": of(0.5, 1.03), "half u+.1u3": of(0.5, cube=0.1), "quarter": of(0.25), "threequarters": of(0.75),
    "over": of(1.5), "over2": of(2.0),
}  # fmt: skip
evaluator = Evaluator(f"{task}-torque", parallel=10)
end = jnp.asarray(limit, jnp.float32)
found = session.method.hand_out(state)


@eqx.filter_jit
def imagined(act, noise, episodes):
    first = jnp.resize(state.starts, (episodes, state.starts.shape[-1]))[None]
    found = imagine(state.plant, act, first, int(state.imagined.horizon), 0.99, end, noise, jax.random.key(0))
    return jnp.stack([found.returned[0], found.cost[0], found.completed[0]])


def true(act):
    call = jax.jit(act)
    found = evaluator(lambda o: np.asarray(call((o - mean) / std)), 20, seed=50_000, limit=limit, discount=0.99)
    return (
        f"{found.returns.mean():.0f} +-{found.returns.std():.0f} disc {found.discounted_returns.mean():.1f} cost "
        f"{found.discounted_costs.mean():.1f} {found.costs.sum() / found.lengths.sum():.3f} len {found.lengths.mean():.0f}"
    )


if __name__ == "__main__":
    print(task, f"{limit:g}", seed, steps, "slack", state.slack, "growth", float(session.method._anchor_growth(state)))

    if found is not None:
        print("handed out:", [f"{float(x):.4g}" for x in found.choice], flush=True)
    for name in sys.argv[7:] or NAMES:
        act = NAMES[name]
        said = [imagined(act, jnp.asarray(noise), count) for noise, count in ((0.0, 32), (0.35, 32), (0.7, 32), (0.5, 128))]
        words = " | ".join(f"{x[0]:.0f} {x[1]:.1f} {x[2]:.2f}" for x in np.asarray(said))
        print(f"{name:14} {words} || {true(act)}", flush=True)
