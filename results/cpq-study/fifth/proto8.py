"""The default with other anchors: absolute distance (median), likelihood, and an effective limit."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import jax, jax.numpy as jnp
from ringfence.algorithms.cpq_departures import CPQ, AveragedState, safe_weights, penalised_value
from ringfence.networks import tanh_log_prob


@dataclass(frozen=True)
class Proto(CPQ):
    name: ClassVar[str] = "proto8"
    hidden: tuple = (128, 128)
    steps_planned: int = 15000
    kind: str = "l1"
    power: float = 1.0
    ratio: float = 1.0   # effective limit / limit
    smooth: float = 0.0

    def actor_loss(self, actor, critics, batch, state, key):
        loss, actions, metrics = self.objective_loss(actor, critics, batch, self.ratio * state.limit, key)
        logged_cost = critics.cost(batch.observations, batch.actions)
        w = safe_weights(logged_cost, self.ratio * state.limit, self.unsafe_anchor)
        d = actions[0] - batch.actions
        if self.kind == "l1": a = jnp.mean(w[:, None] * jnp.sqrt(d**2 + self.smooth**2))
        elif self.kind == "mse": a = jnp.mean(w[:, None] * d**2)
        elif self.kind == "pre":
            u = jnp.arctanh(jnp.clip(batch.actions, -self.power, self.power))
            a = jnp.mean(w[:, None] * (actor(batch.observations).mean - u) ** 2)
        elif self.kind == "l2": a = jnp.mean(w * jnp.sqrt(jnp.sum(d**2, -1) + 1e-6))
        elif self.kind == "nll": a = -jnp.mean(w * tanh_log_prob(actor(batch.observations), batch.actions)) / d.shape[-1]
        loss += state.anchor * a
        return loss, {**metrics, "actor_loss": loss, "dist": jnp.sqrt(jnp.mean(d**2))}
