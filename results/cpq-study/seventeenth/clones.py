"""Clones of the safe episodes with gains: what they earn and cost in 10 episodes, and what their actions cost in logged states.

    PYTHONPATH=../../../src python clones.py LOGS TASK STEPS SEED [SEED ...]

By likelihood and by likelihood with one standard deviation for all states, from half of each batch, the mean of the last 500 iterates."""

import sys
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ringfence.algorithms.bc_safe import BCSafe, episodes_of_safe_sources
from ringfence.algorithms.interface import Export
from ringfence.data import load_file
from ringfence.data.episodes import episode_table
from ringfence.evaluation import Evaluator
from ringfence.networks import Gaussian, TanhGaussianActor, polyak, tanh_log_prob
from ringfence.training.configuration import Member
from ringfence.training.loop import Plan, run

LIMIT, HALF = 30.0, 128


class Averaged(eqx.Module):
    actor: TanhGaussianActor
    optimiser: object
    recent: TanhGaussianActor
    steps: jax.Array


@dataclass(frozen=True)
class Clone(BCSafe):
    one_std: bool = False

    def init(self, key, limit, spec):
        fresh = super().init(key, limit, spec)
        return Averaged(fresh.actor, fresh.optimiser, fresh.actor, jnp.zeros(()))

    def update(self, state, batch, key):
        def loss(actor):
            found = actor(batch.observations[:HALF])
            if self.one_std:
                found = Gaussian(found.mean, jnp.broadcast_to(found.log_std.mean(0, keepdims=True), found.mean.shape))
            return -jnp.mean(tanh_log_prob(found, batch.actions[:HALF]))

        value, gradient = jax.value_and_grad(loss)(state.actor)
        actor, optimiser = self._adam.step(gradient, state.optimiser, state.actor)
        steps = state.steps + 1
        recent = polyak(state.recent, actor, 1 / jnp.minimum(steps, 500.0))
        return Averaged(actor, optimiser, recent, steps), {"actor_loss": value}

    def export(self, state):
        return Export("tanh-gaussian", {"actor": state.actor, "recent": state.recent})


logs, task, steps, *seeds = sys.argv[1:]
log, evaluator = load_file(f"{logs}/{task}.h5"), Evaluator(f"{task}-torque", parallel=10)
safe = log.select_episodes(episodes_of_safe_sources(episode_table(log, 0.99), LIMIT))
states = safe.observations[np.random.default_rng(0).choice(len(safe), 20_000, replace=False)]
print(task, f"safe episodes cost {safe.costs.mean():.4f} a step")
for one_std in (False, True):
    members = tuple(Member(int(seed), LIMIT) for seed in seeds)
    done = run(log, Plan(Clone(hidden=(128, 128), one_std=one_std), members, steps=int(steps), log_every=10_000, checkpoint_every=10**9), progress=False)
    for member, policy in zip(members, done.policies, strict=True):
        for gain in (0.94, 0.97, 1.0, 1.03):
            act = lambda o, a=policy.artifact, g=gain: np.tanh(g * a.evaluate("recent", o).mean)  # noqa: E731
            found = evaluator(act, 10, seed=50_000, limit=LIMIT, discount=0.99)
            numbers = f"{found.returns.mean():.0f} +-{found.returns.std():.0f} disc {found.discounted_costs.mean():.2f} pace {found.costs.sum() / found.lengths.sum():.4f}"
            print(task, member.seed, "one std" if one_std else "likelihood", gain, numbers, f"| in logged states {np.abs(act(states)).mean():.4f}", flush=True)
