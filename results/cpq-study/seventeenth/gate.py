"""What CPQ's model of the plant leaves unexplained of a part of a log: of what it learned from, of what was held out, the greater of both.

    PYTHONPATH=../../../src python gate.py LOGS TASK SHARE [SHARE ...]      # shares of the episodes"""

import sys

import jax
import numpy as np

from ringfence import CPQ
from ringfence.data import load_file
from ringfence.progress import ProgressBar
from ringfence.training.compilation import use_compilation_cache
from ringfence.training.configuration import Member
from ringfence.training.loop import Interrupt, Plan, Session

logs, task, *shares = sys.argv[1:]
use_compilation_cache()
log = load_file(f"{logs}/{task}.h5")
for share in map(float, shares):
    part = log.select_episodes(np.random.default_rng(0).uniform(size=len(log.episode_ends)) < share)
    plan = Plan(CPQ(), (Member(0, 30.0),), steps=10, log_every=5_000, checkpoint_every=10**9)
    session = Session(part, plan, plan.configuration(part), None, None, {}, ProgressBar(False), Interrupt(), [].append)
    with session.progress, session.interrupt:
        session.run(False)
    plant = jax.tree.map(lambda x: x[0], session.state).plant
    print(task, len(part), *(f"{float(x.mean()):.4f}" for x in (plant.of_learned, plant.of_held, plant.errors)), flush=True)
