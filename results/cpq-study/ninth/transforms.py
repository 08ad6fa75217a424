"""What a trained policy earns if its actions are changed afterwards (the simulator says; no method may do this).

    PYTHONPATH=../../../src python transforms.py LOGS TASK LIMIT SEED

CPQ and BC-Safe, networks of 128 x 128, 15,000 steps; 10 episodes. u is the policy's action before the squash."""

import sys

import numpy as np

from ringfence.algorithms import METHODS
from ringfence.data import load_file
from ringfence.evaluation import Evaluator
from ringfence.training.configuration import Member
from ringfence.training.loop import Plan, run

logs, task, limit, seed = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
log, evaluator = load_file(f"{logs}/{task}.h5"), Evaluator(f"{task}-torque", parallel=10)


def learn(name):
    plan = Plan(METHODS[name](hidden=(128, 128)), (Member(seed, limit),), steps=15_000, log_every=5_000, checkpoint_every=10**9)
    return run(log, plan, progress=False).policies[0]


ours, clone = learn("cpq"), learn("bc-safe")


def before(policy, observations):
    return np.arctanh(np.clip(policy(observations), -0.9999, 0.9999))


def beyond(u, edge):
    return np.sign(u) * np.maximum(np.abs(u) - edge, 0.0)


def test(name, policy):
    found = evaluator(policy, 10, seed=900, limit=limit, discount=0.99)
    print(
        f"{task} {limit:g} {name:28} {found.returns.mean():.0f}, discounted {found.discounted_returns.mean():.1f} @ {found.discounted_costs.mean():.1f}, "
        f"{found.costs.sum() / found.lengths.sum():.3f} a step, length {found.lengths.mean():.0f}",
        flush=True,
    )


test("CPQ", ours)
test("BC-Safe", clone)
for gain in (1.05, 1.1, 1.2):
    test(f"CPQ, {gain} u", lambda o, g=gain: np.tanh(g * before(ours, o)))
for gain in (0.95, 1.05, 1.1, 1.2):
    test(f"BC-Safe, {gain} u", lambda o, g=gain: np.tanh(g * before(clone, o)))
for share in (0.25, 0.5, 0.75):
    test(f"mean of u, {share} of BC-Safe", lambda o, w=share: np.tanh(w * before(clone, o) + (1 - w) * before(ours, o)))
for k in (0.1, 0.3, 1.0):
    test(f"CPQ, u + {k} u^3", lambda o, k=k: np.tanh(before(ours, o) + k * before(ours, o) ** 3))
for edge, k in ((0.7, 1.0), (0.7, 3.0), (1.0, 3.0)):
    test(f"CPQ, u + {k} beyond {edge}", lambda o, e=edge, k=k: np.tanh(before(ours, o) + k * beyond(before(ours, o), e)))
