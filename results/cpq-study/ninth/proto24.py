"""The anchor in units of the log's own noise: squared distance before the squash to the most likely action of a clone, over the
clone's variance in that state. The clone maximises the likelihood of logged actions with the anchor's own weights.

    L = anchor x mean_i w(s, a) n ((u_pi,i(s) - u_c,i(s)) / std_c,i(s))^2,     n = mean (std_c (1 - tanh(u_c)^2))^2

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
    blend: float = 0.0  # share of the clone in what is handed out (average of parameters makes no sense: not used)

    def init(self, key, limit, spec):
        state = super().init(key, limit, spec)
        clone = self.fresh_actor(spec, jax.random.fold_in(key, CLONE_KEY))
        return ClonedState(**vars(state), clone=clone, clone_optimiser=self._critic_adam.init(clone))

    def _fit_clone(self, state, batch, weights):
        def loss(clone):
            return -jnp.mean(weights * tanh_log_prob(clone(batch.observations), batch.actions))

        gradient = jax.grad(loss)(state.clone)
        clone, optimiser = self._critic_adam.step(gradient, state.clone_optimiser, state.clone)
        return replace(state, clone=clone, clone_optimiser=optimiser)

    def update_detector(self, state, batch, key):
        after, metrics = super().update_detector(state, batch, key)
        return self._fit_clone(cast(ClonedState, after), batch, jnp.ones(batch.rewards.shape)), metrics

    def update(self, state, batch, key):
        after, metrics = super().update(state, batch, key)
        limit = slack_at(state.slack, state.limit, self.limits) * state.limit
        weights = safe_weights(state.critics.cost(batch.observations, batch.actions), limit, self.unsafe_anchor)
        return self._fit_clone(after, batch, weights), metrics

    def actor_loss(self, actor, critics, batch, state, key):
        limit = slack_at(state.slack, state.limit, self.limits) * state.limit
        loss, actions, metrics = self.objective_loss(actor, critics, batch, limit, key)
        logged_cost = critics.cost(batch.observations, batch.actions)
        weights = safe_weights(logged_cost, limit, self.unsafe_anchor)
        clone = jax.lax.stop_gradient(state.clone(batch.observations))
        std = jnp.maximum(clone.std, self.least_std)
        size = jnp.mean((std * (1.0 - jnp.tanh(clone.mean) ** 2)) ** 2)
        distance = ((actor(batch.observations).mean - clone.mean) / std) ** 2
        anchor = jnp.mean(weights[:, None] * size * distance)
        metrics |= {"clone_std": std.mean(), "noise_size": size, "distance": jnp.mean(distance)}
        loss += state.anchor * anchor
        return loss, {**metrics, "actor_loss": loss}
