"""Trains a cell for 50,000 steps and keeps its state after 15,000, 25,000, 35,000 and 50,000, so that choices of what is handed out can be
tried on it:

    PYTHONPATH=../../../src python train.py TASK LIMIT SEED LOGS STATES

LOGS has halfcheetah.h5, hopper.h5 and walker2d.h5 (`ringfence collect --task T-torque --size 500000 --seed 0 --out T.h5`)."""

import sys
import time

import equinox as eqx
import jax
import jax.numpy as jnp

from ringfence import CPQ
from ringfence.data import load_file
from ringfence.progress import ProgressBar
from ringfence.training.compilation import use_compilation_cache
from ringfence.training.configuration import Member
from ringfence.training.loop import Interrupt, Plan, Session

KEPT = (15_000, 25_000, 35_000, 50_000)


def session_of(task, limit, seed, logs, keep=None):
    log = load_file(f"{logs}/{task}.h5")
    plan = Plan(CPQ(), (Member(seed, float(limit)),), steps=KEPT[-1], log_every=5_000, checkpoint_every=10**9)

    class Keeping(Session):
        def _log(self, index, done, programs):
            super()._log(index, done, programs)
            if keep and self._is_last(index) and done in KEPT:
                state = jax.tree.map(lambda x: x[0], self.state)
                eqx.tree_serialise_leaves(f"{keep}/{task}-{limit:g}-{seed}-{done}.eqx", state)

    return log, Keeping(log, plan, plan.configuration(log), None, None, {}, ProgressBar(False), Interrupt(), [].append)


def load(task, limit, seed, logs, states, steps):
    log, session = session_of(task, limit, seed, logs)
    blank = session._programs(0).init(session.seeds, jnp.asarray([limit], jnp.float32))
    return log, session, eqx.tree_deserialise_leaves(
        f"{states}/{task}-{limit:g}-{seed}-{steps}.eqx", jax.tree.map(lambda x: x[0], blank)
    )


if __name__ == "__main__":
    task, limit, seed, logs, out = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
    use_compilation_cache()
    log, session = session_of(task, limit, seed, logs, out)
    began = time.time()
    with session.progress, session.interrupt:
        session.run(False)
    print(task, limit, seed, f"{time.time() - began:.0f}s", flush=True)
