"""What each network of the model alone, and both together, expect of the averaged actor and of the safe clone, without noise and with 0.35 of what a
network leaves unexplained, on a state that `fourteenth/train.py` kept: return, cost, share of episodes that reach the horizon.

    PYTHONPATH=../../../src:../fourteenth python networks.py TASK LIMIT SEED STEPS LOGS STATES"""

import sys
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from train import load

from ringfence.algorithms.cpq_expected import imagine

task, limit, seed, steps, logs, states = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:7]
_, session, state = load(task, limit, seed, logs, states, steps)
first = jnp.resize(state.starts, (32, state.starts.shape[-1]))[None]


@eqx.filter_jit
def expected(networks, actor, noise):
    plant = replace(state.plant, networks=networks)
    return imagine(plant, actor.mode, first, int(state.imagined.horizon), 0.99, jnp.asarray(limit), noise, jax.random.key(0))


one, other = state.plant.networks
for name, actor in (("actor", state.averaged_actor), ("clone", state.clone.averaged)):
    for noise in (0.0, 0.35):
        found = [expected(networks, actor, jnp.asarray(noise)) for networks in ((one, other), (one,), (other,))]
        print(task, f"{limit:g}", seed, steps, name, noise, *(f"| {x.returned[0]:.0f} {x.cost[0]:.1f} {x.completed[0]:.2f}" for x in found), flush=True)
