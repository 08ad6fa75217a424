"""A small log's worth of numbers and a small CPQ, shared by the equation tests."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import CPQ, Batch, Spec
from ringfence.deploy import Policy
from ringfence.training.artifact import scaled_artifact

OBS, ACT, ROWS = 3, 2, 6
SMALL = {"hidden": (8, 8), "batch_size": ROWS, "ood_samples": 4, "cvae_steps": 1}


@pytest.fixture
def batch():
    rng = np.random.default_rng(1)
    return Batch(
        observations=jnp.asarray(rng.normal(size=(ROWS, OBS)), jnp.float32),
        actions=jnp.asarray(rng.uniform(-1, 1, size=(ROWS, ACT)), jnp.float32),
        rewards=jnp.asarray(rng.normal(size=ROWS), jnp.float32),
        costs=jnp.asarray(rng.uniform(size=ROWS), jnp.float32),
        next_observations=jnp.asarray(rng.normal(size=(ROWS, OBS)), jnp.float32),
        continues=jnp.asarray([1, 0, 1, 1, 0, 1], jnp.float32),
        starts=jnp.asarray(rng.normal(size=(ROWS, OBS)), jnp.float32),
    )


def small_state(method, limit=0.05, seed=0):
    """A fresh state whose targets differ from the live critics, so that a mix-up shows."""
    state = method.init(jax.random.key(seed), jnp.asarray(limit), Spec(OBS, ACT))
    other = method.init(jax.random.key(seed + 1), jnp.asarray(limit), Spec(OBS, ACT))
    return jax.tree.map(lambda x: x, state.__class__(**{**vars(state), "targets": other.critics}))


def policy_of(export):
    """What a method exports, as a policy for normalised observations and actions in [-1, 1]."""
    return Policy(scaled_artifact(export, [0] * OBS, [1] * OBS, [-1] * ACT, [1] * ACT))


@pytest.fixture
def printed():
    return CPQ.paper(**SMALL)


@pytest.fixture
def departed():
    return CPQ(**SMALL)
