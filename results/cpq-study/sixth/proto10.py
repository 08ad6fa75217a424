"""The default anchored to the most likely action of a clone instead of to the logged action itself."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import jax, jax.numpy as jnp
from ringfence.algorithms.cpq_departures import CPQ, AveragedState, safe_weights, anchor_loss
import ringfence.algorithms.cpq_imagined as im
from ringfence.algorithms.optimise import Adam
from ringfence.networks import TanhGaussianActor, tanh_log_prob, polyak


class CloneState(AveragedState):
    clone: Any
    clone_opt: Any
    clone_avg: Any


@dataclass(frozen=True)
class Proto(CPQ):
    name: ClassVar[str] = "proto10"
    hidden: tuple = (128, 128)
    steps_planned: int = 15000
    clone_rate: float = 3e-4
    clone_smooth: float = 0.001
    pre: bool = True
    most: float = 1.2
    unsafe_clone: float = -1.0   # weight of unsafe rows in the clone; -1: as the anchor's

    def init(self, key, limit, spec):
        im.SLACK = (0.8, self.most)
        st = super().init(key, limit, spec)
        clone = self.fresh_actor(spec, jax.random.fold_in(key, 31))
        return CloneState(**vars(st), clone=clone, clone_opt=Adam(self.clone_rate).init(clone), clone_avg=clone)

    def learn_clone(self, state, batch, weights):
        def loss(clone):
            return -jnp.mean(weights * tanh_log_prob(clone(batch.observations), batch.actions))
        g = jax.grad(loss)(state.clone)
        clone, opt = Adam(self.clone_rate).step(g, state.clone_opt, state.clone)
        return replace(state, clone=clone, clone_opt=opt, clone_avg=polyak(state.clone_avg, clone, self.clone_smooth))

    def update_detector(self, state, batch, key):
        state, metrics = super().update_detector(state, batch, key)
        if self.pre:
            state = self.learn_clone(state, batch, jnp.ones(batch.costs.shape))
        return state, metrics

    def update(self, state, batch, key):
        after, metrics = super().update(state, batch, key)
        limit = state.slack * state.limit
        logged = after.critics.cost(batch.observations, batch.actions)
        u = self.unsafe_anchor if self.unsafe_clone < 0 else self.unsafe_clone
        return self.learn_clone(after, batch, safe_weights(logged, limit, u)), metrics

    def actor_loss(self, actor, critics, batch, state, key):
        limit = state.slack * state.limit
        loss, actions, metrics = self.objective_loss(actor, critics, batch, limit, key)
        logged_cost = critics.cost(batch.observations, batch.actions)
        weights = safe_weights(logged_cost, limit, self.unsafe_anchor)
        target = jax.lax.stop_gradient(state.clone_avg.mode(batch.observations))
        loss += state.anchor * anchor_loss(actions[0], target, weights)
        return loss, {**metrics, "actor_loss": loss}
