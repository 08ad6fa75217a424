"""The actions of any policy in many states at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ringfence.deploy import KINDS, Policy
from ringfence.errors import NonFiniteValue, WrongShape
from ringfence.evaluation.episodes import Controller
from ringfence.evaluation.ope.features import Rows

CHUNK = 20_000


def actions_of(controller: Controller, observations: Rows, low: Rows, high: Rows) -> Rows:
    """The deterministic actions, cut off at the bounds. A `Policy` runs in JAX: in NumPy a row's action is the same in any
    batch bit for bit, which takes a product per row."""
    act = many(controller)
    parts = [np.asarray(act(observations[i : i + CHUNK]), np.float32) for i in range(0, len(observations), CHUNK)]
    actions = np.concatenate(parts)
    wanted = (len(observations), len(low))
    if actions.shape != wanted:
        raise WrongShape(f"the log has actions of shape {wanted}, the policy gave {actions.shape}")
    if not np.isfinite(actions).all():
        raise NonFiniteValue("the policy gave an action that is not finite in a state of the log")
    return np.clip(actions, low, high)


def many(controller: Controller) -> Any:
    """The same controller, fast for many rows."""
    return batched(controller) if isinstance(controller, Policy) else controller


def batched(policy: Policy) -> Any:
    """A function from observations to deterministic actions, compiled: for many rows at once."""
    artifact = policy.artifact
    actor, model = KINDS[artifact.kind].act, artifact.model(jnp)
    assert actor is not None
    run = jax.jit(lambda x: artifact.unscale_actions(actor(model, artifact.normalise(x), None), jnp))

    def act(observations: Rows) -> Rows:
        if observations.shape[1] != artifact.observation_dim:
            raise WrongShape(
                f"the policy takes {artifact.observation_dim} observations, the log has {observations.shape[1]}"
            )
        return np.asarray(run(observations))

    return act
