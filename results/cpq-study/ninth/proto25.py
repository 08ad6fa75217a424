"""The anchor in units of the log's own noise: squared distance before the squash to the logged action, over the variance that a clone of
all logged actions found in that state. The clone learns beside the detector, by likelihood, and is fixed after that.

    L = anchor x mean_i w(s, a) n ((u_pi,i(s) - artanh(a_i)) / std_i(s))^2,     n = mean (std (1 - tanh(u_c)^2))^2

n makes it a squared distance of actions on average, so that weights mean what they did."""

from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import jax.numpy as jnp

from ringfence.algorithms.cpq_departures import CPQ, AveragedState, safe_weights
from ringfence.algorithms.cpq_limits import slack_at
from ringfence.networks import TanhGaussianActor, tanh_log_prob

CLONE_KEY = 31


class ClonedState(AveragedState):
    clone: TanhGaussianActor
    clone_optimiser: Any


@dataclass(frozen=True)
class Proto(CPQ):
    least_std: float = 0.05
    most_std: float = 10.0
    edge: float = 1e-6
    target: str = "logged"  # or "clone"
    clone_rate: float = 1e-3

    def init(self, key, limit, spec):
        state = super().init(key, limit, spec)
        clone = self.fresh_actor(spec, jax.random.fold_in(key, CLONE_KEY))
        return ClonedState(**vars(state), clone=clone, clone_optimiser=self._clone_adam.init(clone))

    @property
    def _clone_adam(self):
        return replace(self._critic_adam, learning_rate=self.clone_rate) if hasattr(self._critic_adam, "learning_rate") else type(self._critic_adam)(self.clone_rate)

    def update_detector(self, state, batch, key):
        after, metrics = super().update_detector(state, batch, key)

        def loss(clone):
            return -jnp.mean(tanh_log_prob(clone(batch.observations), batch.actions))

        gradient = jax.grad(loss)(after.clone)
        clone, optimiser = self._clone_adam.step(gradient, after.clone_optimiser, after.clone)
        return replace(after, clone=clone, clone_optimiser=optimiser), metrics

    def actor_loss(self, actor, critics, batch, state, key):
        limit = slack_at(state.slack, state.limit, self.limits) * state.limit
        loss, actions, metrics = self.objective_loss(actor, critics, batch, limit, key)
        logged_cost = critics.cost(batch.observations, batch.actions)
        weights = safe_weights(logged_cost, limit, self.unsafe_anchor)
        clone = jax.lax.stop_gradient(state.clone(batch.observations))
        std = jnp.clip(clone.std, self.least_std, self.most_std)
        size = jnp.mean((std * (1.0 - jnp.tanh(clone.mean) ** 2)) ** 2)
        target = clone.mean if self.target == "clone" else jnp.arctanh(jnp.clip(batch.actions, -1.0 + self.edge, 1.0 - self.edge))
        distance = ((actor(batch.observations).mean - target) / std) ** 2
        anchor = jnp.mean(weights[:, None] * size * distance)
        metrics |= {"clone_std": std.mean(), "noise_size": size, "distance": jnp.mean(((actor(batch.observations).mean - clone.mean) / std) ** 2)}
        loss += state.anchor * anchor
        return loss, {**metrics, "actor_loss": loss}
