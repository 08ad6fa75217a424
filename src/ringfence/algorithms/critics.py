"""The critics that CPQ, BCQ-Lagrangian and BEAR-Lagrangian share, and what is said of them in the same words."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from ringfence.algorithms.interface import Batch
from ringfence.networks import Critic

Actions = Float[Array, "*batch act"]


class Critics(NamedTuple):
    """Two reward critics, for the double-Q minimum, and one cost critic: a minimum there would underestimate cost."""

    reward: tuple[Critic, Critic]
    cost: Critic


def smaller_value(
    critics: tuple[Critic, Critic], observations: Float[Array, "*states obs"], actions: Actions
) -> Float[Array, "*batch"]:
    """min_i Qr_i(s, a), for one action of each state or for n."""
    return jnp.minimum(critics[0](observations, actions), critics[1](observations, actions))


def cost_bellman_target(
    target_cost_critic: Critic, batch: Batch, next_actions: Actions, discount: float
) -> Float[Array, " batch"]:
    """T^pi Qc(s, a) = c + discount Qc(s', a'), a' ~ pi (CPQ paper, Section 3.2). Termination ends the sum, truncation
    does not."""
    following = target_cost_critic(batch.next_observations, next_actions)
    return batch.costs + discount * batch.continues * following
