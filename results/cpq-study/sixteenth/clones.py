"""Clones of the episodes over the limit of 30, alone: what they earn and cost in 20 episodes.

    PYTHONPATH=../../../src python clones.py LOGS TASK STEPS SEED [SEED ...]

From half of each batch, as in a log of two equal halves. Of each seed the last iterate, the mean of the last 500 and the mean over all with weights
that grow with the step; LOSS=one in the environment: the likelihood with one standard deviation for all states, from whole batches, the last iterate."""

import os
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

ONE = os.environ.get("LOSS") == "one"


class Averages(eqx.Module):
    actor: TanhGaussianActor
    optimiser: object
    recent: TanhGaussianActor
    all: TanhGaussianActor
    steps: jax.Array


@dataclass(frozen=True)
class Costly(BCSafe):
    def restrict(self, dataset, limits):
        return dataset.select_episodes(~episodes_of_safe_sources(episode_table(dataset, self.discount), limits[0]))

    def init(self, key, limit, spec):
        fresh = super().init(key, limit, spec)
        return Averages(fresh.actor, fresh.optimiser, fresh.actor, fresh.actor, jnp.zeros(()))

    def update(self, state, batch, key):
        rows = slice(None if ONE else len(batch.costs) // 2)

        def loss(actor):
            found = actor(batch.observations[rows])
            if ONE:
                found = Gaussian(found.mean, jnp.broadcast_to(found.log_std.mean(0, keepdims=True), found.mean.shape))
            return -jnp.mean(tanh_log_prob(found, batch.actions[rows]))

        value, gradient = jax.value_and_grad(loss)(state.actor)
        actor, optimiser = self._adam.step(gradient, state.optimiser, state.actor)
        steps = state.steps + 1
        recent = polyak(state.recent, actor, 1 / jnp.minimum(steps, 500.0))
        return Averages(actor, optimiser, recent, polyak(state.all, actor, 2 / (2 + steps)), steps), {"actor_loss": value}

    def export(self, state):
        return Export("tanh-gaussian", {"actor": state.actor, "recent": state.recent, "all": state.all})


logs, task, steps, *seeds = sys.argv[1:]
log, evaluator = load_file(f"{logs}/{task}.h5"), Evaluator(f"{task}-torque", parallel=10)
members = tuple(Member(int(seed), 30.0) for seed in seeds)
done = run(log, Plan(Costly(hidden=(128, 128)), members, steps=int(steps), log_every=5_000, checkpoint_every=10**9), progress=False)
for member, policy in zip(members, done.policies, strict=True):
    for which in ("actor",) if ONE else ("actor", "recent", "all"):
        found = evaluator(lambda o, a=policy.artifact, which=which: np.tanh(a.evaluate(which, o).mean), 20, seed=50_000, limit=30.0, discount=0.99)
        numbers = f"{found.returns.mean():.0f} +-{found.returns.std():.0f} disc {found.discounted_costs.mean():.1f} pace {found.costs.sum() / found.lengths.sum():.3f}"
        print(task, member.seed, steps, "one std" if ONE else which, numbers, f"len {found.lengths.mean():.0f}", flush=True)
