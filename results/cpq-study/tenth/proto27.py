"""The default with a harder anchor at the actions' bounds: a logged action at its bound counts as `beyond` more than the bound. A
squared distance to clipped actions stays inside the bounds wherever the controller's noise did; the likelihood of BC-Safe does not."""

from dataclasses import dataclass

import jax.numpy as jnp

from ringfence.algorithms.cpq_departures import CPQ, anchor_loss, safe_weights
from ringfence.algorithms.cpq_limits import slack_at


@dataclass(frozen=True)
class Proto(CPQ):
    beyond: float = 1.0

    def actor_loss(self, actor, critics, batch, state, key):
        limit = slack_at(state.slack, state.limit, self.limits) * state.limit
        loss, actions, metrics = self.objective_loss(actor, critics, batch, limit, key)
        weights = safe_weights(critics.cost(batch.observations, batch.actions), limit, self.unsafe_anchor)
        at_bound = jnp.abs(batch.actions) > 1.0 - 1e-4
        targets = batch.actions + self.beyond * at_bound * jnp.sign(batch.actions)
        loss += state.anchor * anchor_loss(actions[0], targets, weights)
        return loss, {**metrics, "actor_loss": loss, "at_bound": at_bound.mean()}
