"""Two policies that take turns: one inside the limit, one over it, and the share of the episodes in which each acts.

The limit bounds an expectation over episodes. Where a plant has two gaits and nothing between, a cheap one and a costly one,
no single policy uses a limit between their costs, but taking turns does: with the costly one in a share w of the episodes,
return and cost are (1 - w) times those of the cheap one and w times those of the costly one. That is how the optimum of a
constrained MDP is made: it mixes two policies at most for one constraint (Altman, 1999, "Constrained Markov Decision
Processes"). `ringfence.Turns` runs them.

The cheap one is what is handed out, or the safe clone, whichever gives the better mixture. The costly one is the averaged
actor with the greatest gain, or, where logged episodes terminated, a clone of the episodes over the limit: there gains are
nearly 1, and the averaged actor holds to the safe gait.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Scalar = Float[Array, ""]

LEAST_SHARE = 0.02  # of the episodes: with less there is nothing to gain
LEAST_COMPLETED = 0.5  # of the costly policy's episodes: the model imagines more falls of it than there are


class Worth(NamedTuple):
    """What the model expects of a policy."""

    returned: Scalar
    cost: Scalar
    counts: Bool[Array, ""]  # whether it may take turns


class Mixed(NamedTuple):
    """Two policies that take turns, and what the model expects of them."""

    worth: Bool[Array, ""]  # more than the policy that is handed out
    cheap_is_clone: Bool[Array, ""]
    share: Scalar  # of the episodes in which the costly one acts
    returned: Scalar
    cheap_cost: Scalar
    costly_cost: Scalar


def best_turns(handed_out: Worth, clone: Worth, costly: Worth, limit: Scalar) -> Mixed:
    """The better of the two pairs (handed out, costly) and (clone, costly), each with a mean cost of l. There is no margin
    for the model's error: when they act, the share follows from what they have cost (`ringfence.Turns`)."""
    pairs = [(cheap, *_mix(cheap, costly, limit)) for cheap in (handed_out, clone)]
    value = jnp.stack([jnp.where(cheap.counts, returned, -jnp.inf) for cheap, _, returned in pairs])
    best = jnp.argmax(value)
    share = jnp.stack([share for _, share, _ in pairs])[best]
    over = costly.counts & (costly.cost > limit)
    worth = over & (share >= LEAST_SHARE) & (value[best] > handed_out.returned)
    cheap_cost = jnp.where(best == 1, clone.cost, handed_out.cost)
    return Mixed(worth, best == 1, share, value[best], cheap_cost, costly.cost)


def _mix(cheap: Worth, costly: Worth, limit: Scalar) -> tuple[Scalar, Scalar]:
    """The share of the costly one with which the mean cost is l (below 0 if the cheap one is over it), and the return."""
    share = (limit - cheap.cost) / jnp.maximum(costly.cost - cheap.cost, 1e-6)
    return share, cheap.returned + share * (costly.returned - cheap.returned)


def turns_in_words(mixed: Mixed) -> dict[str, Any]:
    """For the policy's file: what an episode of either is expected to cost, and what taking turns is expected to earn."""
    found = jax.tree.map(float, mixed)
    return {
        "cheap_cost": found.cheap_cost,
        "costly_cost": found.costly_cost,
        "share": found.share,
        "expected_return": found.returned,
    }
