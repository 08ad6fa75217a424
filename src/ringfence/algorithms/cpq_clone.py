"""Clones of a part of the log, learned beside CPQ from its own batches.

The safe clone makes the logged actions of the safe episodes as likely as possible: BC-Safe, and one of the policies that CPQ
may hand out (`cpq_handout.py`). The costly clone does the same with the other episodes. It is over the limit, and takes
turns with a policy that is inside (`cpq_turns.py`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from ringfence.algorithms.bc_safe import mean_costs
from ringfence.algorithms.interface import Batch
from ringfence.data.dataset import Dataset
from ringfence.data.episodes import episode_table
from ringfence.networks import TanhGaussianActor, polyak, tanh_log_prob
from ringfence.optimise import Adam

Scalar = Float[Array, ""]

EPISODE_COST = "episode_cost"  # the column that says of each row what its episode cost
CLONED = 10_000  # rows that a clone must have seen
CLONE_MEMORY = 500  # steps that a clone is averaged over: single iterates may fall on Hopper


def episode_costs(dataset: Dataset, discount: float) -> Float[np.ndarray, "rows 1"]:
    """For each row the discounted cost that decides whether BC-Safe learns from its episode: the mean of its source's
    episodes where the log names sources, else the episode's own."""
    table = episode_table(dataset, discount)
    costs = table.discounted_costs
    if table.source is not None:
        of_source = mean_costs(table)
        costs = np.array([of_source[int(code)] for code in table.source])
    return np.repeat(costs, table.length)[:, None].astype(np.float32)


class Clone(eqx.Module):
    """A policy that makes the logged actions of the safe episodes, or of the others, as likely as possible. The candidate is
    its average over the last steps."""

    actor: TanhGaussianActor
    averaged: TanhGaussianActor
    optimiser: optax.OptState
    steps: Scalar
    rows: Scalar  # of the episodes that it learns from, seen so far
    others: Scalar  # of other episodes
    costly: bool = eqx.field(static=True, default=False)  # learns from the episodes over the limit

    @classmethod
    def create(cls, actor: TanhGaussianActor, adam: Adam, *, costly: bool = False) -> "Clone":
        return cls(actor, actor, adam.init(actor), jnp.zeros(()), jnp.zeros(()), jnp.zeros(()), costly)

    def fit(self, batch: Batch, limit: Scalar, adam: Adam) -> "Clone":
        """One step of Adam on the rows whose episode is inside the limit, or over it."""
        inside = batch.extras[EPISODE_COST][:, 0] <= limit
        chosen = (inside != self.costly).astype(jnp.float32)
        gradient = jax.grad(cloning_loss_over)(self.actor, batch, chosen)
        actor, optimiser = adam.step(gradient, self.optimiser, self.actor)
        steps = self.steps + 1.0
        averaged = polyak(self.averaged, actor, 1.0 / jnp.minimum(steps, CLONE_MEMORY))
        rows, others = self.rows + chosen.sum(), self.others + (1.0 - chosen).sum()
        return Clone(actor, averaged, optimiser, steps, rows, others, self.costly)

    @property
    def counts(self) -> Bool[Array, ""]:
        """Whether it is a candidate: it has learned, and not from every episode. If all are inside the limit it would
        average over all controllers, and no controller took that mean action."""
        return (self.rows >= CLONED) & (self.others > 0.0)


def cloning_loss_over(actor: TanhGaussianActor, batch: Batch, chosen: Float[Array, " batch"]) -> Scalar:
    """- E log pi(a | s) over the chosen logged pairs; 0 in a batch without any."""
    likelihood = tanh_log_prob(actor(batch.observations), batch.actions)
    return -jnp.sum(jnp.where(chosen > 0.0, likelihood, 0.0)) / jnp.maximum(chosen.sum(), 1.0)
