"""Feedback that goes on where the slack is at its bound: what is beyond 1.2 goes to the anchor's weight on unsafe logged actions.

    slack = min(x, 1.2),   unsafe weight = 0.1 + share x max(x - 1.2, 0)

x is moved by imagined costs as the slack is. Only where no logged episode terminated."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

import ringfence.algorithms.cpq_imagined as im
from ringfence.algorithms.cpq_departures import CPQ, anchor_loss, safe_weights
from ringfence.algorithms.cpq_imagined import feedback_rate
from ringfence.algorithms.cpq_limits import band_limits


@dataclass(frozen=True)
class Proto(CPQ):
    most: float = 1.6
    share: float = 0.75
    aim: float = 0.97
    most_slack: float = 1.2

    def _imagine(self, state, metrics, batch):
        if state.plant is None or state.imagined is None:
            return state, metrics
        actors = self._controller(state.actor), self._controller(state.averaged_actor)
        imagined = state.imagined.advance(state.plant, *actors, batch.starts, self.discount)
        cost = imagined.cost(self.discount)
        rate = feedback_rate(state.step, state.plant.error, self.feedback)
        limit = band_limits(self.limits, state.limit)
        most = jnp.where(state.anchor > self.anchor * 1.001, self.most_slack, self.most)  # some episodes terminated
        slack = jnp.clip(state.slack + rate * (self.aim - cost / jnp.maximum(limit, 1e-3)), 0.8, most)
        return replace(state, imagined=imagined, slack=slack), {**metrics, "imagined_cost": cost.mean(), "slack": slack.mean()}

    def actor_loss(self, actor, critics, batch, state, key):
        x = state.slack[0]
        limit = jnp.minimum(x, self.most_slack) * state.limit
        loss, actions, metrics = self.objective_loss(actor, critics, batch, limit, key)
        logged_cost = critics.cost(batch.observations, batch.actions)
        weights = safe_weights(logged_cost, limit, self.unsafe_anchor + self.share * jnp.maximum(x - self.most_slack, 0.0))
        loss += state.anchor * anchor_loss(actions[0], batch.actions, weights)
        return loss, {**metrics, "actor_loss": loss}
