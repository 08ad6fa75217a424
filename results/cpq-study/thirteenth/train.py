"""Trains one cell and keeps its state, so that rules of the choice and of the pacer can be tried on it afterwards:

    PYTHONPATH=../../../src:. python train.py TASK LIMIT SEED LOGS STATES

LOGS has halfcheetah.h5, hopper.h5 and walker2d.h5 (`ringfence collect --task T-torque --size 500000 --seed 0 --out T.h5`). Beside the clone
of the safe episodes a clone of the others is learned."""

import sys
import time
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp

from ringfence.algorithms import METHODS
from ringfence.algorithms.cpq_departures import CPQ, AveragedState
from ringfence.algorithms.cpq_handout import EPISODE_COST, SafeClone
from ringfence.data import load_file
from ringfence.progress import ProgressBar
from ringfence.training.compilation import use_compilation_cache
from ringfence.training.configuration import Member
from ringfence.training.loop import Interrupt, Plan, Session


class WithCostly(AveragedState):
    costly: SafeClone


@dataclass(frozen=True)
class Both(CPQ):
    name = "cpq-both"

    def init(self, key, limit, spec):
        state = super().init(key, limit, spec)
        fresh = self.fresh_actor(spec, jax.random.fold_in(key, 77))
        return WithCostly(**vars(state), costly=SafeClone.create(fresh, self._actor_adam))

    def _fit_clone(self, state, batch):
        state = super()._fit_clone(state, batch)
        turned = batch._replace(extras={**batch.extras, EPISODE_COST: -batch.extras[EPISODE_COST]})
        costly = state.costly.fit(turned, -state.limit - 1e-6, self._actor_adam)  # the rows of episodes over the limit
        return replace(state, costly=costly)


METHODS[Both.name] = Both


def session_of(task, limit, seed, logs, steps=15000, metrics=None):
    log = load_file(f"{logs}/{task}.h5")
    plan = Plan(Both(), (Member(seed, float(limit)),), steps=steps, log_every=1000, checkpoint_every=10**9)
    shown, interrupt = ProgressBar(False), Interrupt()
    return log, plan, shown, interrupt


if __name__ == "__main__":
    task, limit, seed, logs, out = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    use_compilation_cache()
    log, plan, shown, interrupt = session_of(task, limit, seed, logs)
    began = time.time()
    with shown, interrupt:
        session = Session(log, plan, plan.configuration(log), None, None, {}, shown, interrupt, [].append)
        session.run(False)
    state = jax.tree.map(lambda x: x[0], session.state)
    eqx.tree_serialise_leaves(f"{out}/{task}-{limit:g}-{seed}.eqx", state)
    print(task, limit, seed, f"{time.time() - began:.0f}s error {float(state.plant.error):.4f} slack {state.slack}", flush=True)
