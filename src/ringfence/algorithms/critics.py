"""The critics that CPQ, BCQ-Lagrangian and BEAR-Lagrangian share."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.interface import Spec
from ringfence.networks import Critic

Actions = Float[Array, "*batch act"]


class Critics(NamedTuple):
    """Two reward critics, for the double-Q minimum, and one cost critic: a minimum there would underestimate cost."""

    reward: tuple[Critic, Critic]
    cost: Critic


def fresh_critics(
    spec: Spec, hidden: Sequence[int], keys: PRNGKeyArray, *, normalise: bool = False, horizon: float | None = None
) -> Critics:
    """Critics before training. With a horizon, 1 / (1 - discount), they have the size of the log's values and start
    around their mean; without one they are plain networks."""
    reward: dict[str, Any] = {"normalise": normalise}
    cost: dict[str, Any] = {"normalise": normalise}
    if horizon is not None:
        reward |= {"scale": value_size(spec.mean_reward_size * horizon), "start": spec.mean_reward * horizon}
        cost |= {"scale": value_size(spec.mean_cost * horizon), "start": spec.mean_cost * horizon}
    sizes = (spec.observation_dim, spec.action_dim, hidden)
    first, second = (Critic(*sizes, **reward, key=key) for key in keys[:2])
    return Critics((first, second), Critic(*sizes, **cost, key=keys[2]))


def describe_critics(critics: Critics) -> dict[str, Critic]:
    """The names that an exported artifact has for them."""
    return {"reward_1": critics.reward[0], "reward_2": critics.reward[1], "cost": critics.cost}


def value_size(value: float) -> float:
    """The nearest power of two, so that dividing by it rounds nothing and logs alike share a program; 1 for 0."""
    return 2.0 ** round(math.log2(value)) if value > 0.0 else 1.0


def smaller_value(
    critics: tuple[Critic, Critic], observations: Float[Array, "*states obs"], actions: Actions
) -> Float[Array, "*batch"]:
    """min_i Qr_i(s, a), for one action of each state or for n."""
    return jnp.minimum(critics[0](observations, actions), critics[1](observations, actions))
