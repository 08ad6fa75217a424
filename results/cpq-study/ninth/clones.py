"""What makes a clone of the safe episodes earn more than the controller: losses other than the likelihood.

    PYTHONPATH=../../../src python clones.py LOGS TASK SEED [LOSS ...]

Networks of 128 x 128, 15,000 steps, 20 episodes, the last iterate."""

import json
import sys
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from ringfence.algorithms.bc_safe import BCSafe
from ringfence.data import load_file
from ringfence.evaluation import Evaluator
from ringfence.networks import Gaussian, polyak, tanh_log_prob
from ringfence.training.configuration import Member
from ringfence.training.loop import Plan, run


def before(actions, edge=1e-6):
    return jnp.arctanh(jnp.clip(actions, -1.0 + edge, 1.0 - edge))


def fixed(g, std):
    return Gaussian(g.mean, jnp.full_like(g.mean, jnp.log(std)))


LOSSES = {
    "likelihood": lambda g, a: -tanh_log_prob(g, a),
    "squared action": lambda g, a: jnp.sum((jnp.tanh(g.mean) - a) ** 2, -1),
    "absolute action": lambda g, a: jnp.sum(jnp.abs(jnp.tanh(g.mean) - a), -1),
    "squared before": lambda g, a: jnp.sum((g.mean - before(a)) ** 2, -1),
    "squared before, edge 0.05": lambda g, a: jnp.sum((g.mean - before(a, 0.05)) ** 2, -1),
    "huber before": lambda g, a: jnp.sum(jnp.where(jnp.abs(g.mean - before(a)) < 0.3, (g.mean - before(a)) ** 2, 0.6 * jnp.abs(g.mean - before(a)) - 0.09), -1),
    "likelihood, one std": lambda g, a: -tanh_log_prob(Gaussian(g.mean, jnp.broadcast_to(g.log_std.mean(0, keepdims=True), g.mean.shape)), a),
    "gaussian of actions": lambda g, a: -Gaussian(jnp.tanh(g.mean), g.log_std).log_prob(a),
    "squared action, twice": lambda g, a: jnp.sum((jnp.tanh(g.mean) - jnp.clip(1.1 * a, -1, 1)) ** 2, -1),
    # the clipped action of a Gaussian: its censored likelihood
    "censored": lambda g, a: -jnp.sum(jnp.where(a > 0.999, jax.scipy.stats.norm.logsf((1.0 - g.mean) / g.std), jnp.where(a < -0.999, jax.scipy.stats.norm.logcdf((-1.0 - g.mean) / g.std), jax.scipy.stats.norm.logpdf(a, g.mean, g.std))), -1),
}


@dataclass(frozen=True)
class Cloned(BCSafe):
    loss: str = "likelihood"

    def update(self, state, batch, key):
        def loss(actor):
            return jnp.mean(LOSSES[self.loss](actor(batch.observations), batch.actions))

        value, gradient = jax.value_and_grad(loss)(state.actor)
        actor, optimiser = self._adam.step(gradient, state.optimiser, state.actor)
        return replace(state, actor=actor, optimiser=optimiser), {"actor_loss": value}


logs, task, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
log, evaluator, limit = load_file(f"{logs}/{task}.h5"), Evaluator(f"{task}-torque", parallel=10), 30.0
for name in sys.argv[4:] or LOSSES:
    width = 256 if name.endswith("@256") else 128
    method = Cloned(hidden=(width, width), loss=name.removesuffix("@256"))
    done = run(log, Plan(method, (Member(seed, limit),), steps=15_000, log_every=5_000, checkpoint_every=10**9), progress=False)
    policy = done.policies[0]
    act = policy
    if name.startswith("censored"):  # its mean is the action, without a squash
        import numpy as np

        act = lambda o: np.clip(np.arctanh(np.clip(policy(o), -0.99999, 0.99999)), -1, 1)  # noqa: E731
    found = evaluator(act, 20, seed=50_000, limit=limit, discount=0.99)
    row = {"loss": name, "task": task, "seed": seed, "return": round(float(found.returns.mean()), 1), "discounted_return": round(float(found.discounted_returns.mean()), 1),
           "discounted_cost": round(float(found.discounted_costs.mean()), 2), "cost_per_step": round(float(found.costs.sum() / found.lengths.sum()), 4), "length": round(float(found.lengths.mean()))}
    print(json.dumps(row), flush=True)
