"""A common displacement (gain and offset of each action before the squash) beside the anchored network."""
from dataclasses import dataclass, replace
from typing import Any
import jax, jax.numpy as jnp, equinox as eqx
import ringfence.algorithms.cpq as cpq
from ringfence.algorithms.cpq_departures import CPQ, AveragedState, safe_weights, anchor_loss, penalised_value, averaging_rate
from ringfence.algorithms.critics import smaller_value
from ringfence.algorithms.optimise import Adam
from ringfence.networks import polyak, Critic, TanhGaussianActor, Linear

class CommonState(AveragedState):
    gain: Any
    offset: Any
    common_optimiser: Any

def moved(actor, gain, offset):
    n = gain.shape[0]
    last = actor.mlp.layers[-1]
    g = jnp.concatenate([gain, jnp.ones(n)]); b = jnp.concatenate([offset, jnp.zeros(n)])
    new = Linear(last.weight * g, last.bias * g + b)
    return eqx.tree_at(lambda a: a.mlp.layers, actor, (*actor.mlp.layers[:-1], new))

def back(actor, gain, offset):
    return moved(moved(actor, jnp.ones_like(gain), -offset), 1.0 / gain, jnp.zeros_like(offset))

@dataclass(frozen=True)
class Proto(CPQ):
    common_anchor: float = 0.3
    common_rate: float = 3e-4
    common_states: str = "safe"   # safe | imagined | all
    with_offset: bool = True
    gain_most: float = 1.3
    common_min: str = "min"
    common_from: int = 2500
    base_q: float = 1.0  # unused

    def init(self, key, limit, spec):
        s = super().init(key, limit, spec)
        gain, offset = jnp.ones(spec.action_dim), jnp.zeros(spec.action_dim)
        return CommonState(**vars(s), gain=gain, offset=offset, common_optimiser=Adam(self.common_rate)._optax.init((gain, offset)))

    def actor_loss(self, actor, critics, batch, state, key):
        limit = state.slack * state.limit
        loss, actions, metrics = self.objective_loss(actor, critics, batch, limit, key)
        logged_cost = critics.cost(batch.observations, batch.actions)
        weights = safe_weights(logged_cost, limit, self.unsafe_anchor)
        u = jnp.arctanh(jnp.clip(actions[0], -0.999999, 0.999999))
        base = jnp.tanh((u - state.offset) / state.gain)
        loss += state.anchor * anchor_loss(base, batch.actions, weights)
        return loss, {**metrics, "actor_loss": loss}

    def common_loss(self, common, mean, observations, weights, critics, limit):
        gain, offset = common
        a = jnp.tanh(gain * mean + offset)
        base = jnp.tanh(mean)
        r = [c(observations, a) for c in critics.reward]
        qr = jnp.minimum(*r) if self.common_min == "min" else 0.5 * (r[0] + r[1])
        qc = critics.cost(observations, a)
        scale = jax.lax.stop_gradient(jnp.sum(weights * jnp.abs(qr)) / jnp.sum(weights)) + 1e-6
        v = qr / scale - self.recovery_weight * jnp.maximum(qc - limit, 0.0) / jnp.maximum(limit, 1e-3)
        w = weights / jnp.mean(weights)
        return -jnp.mean(w * v) + self.common_anchor * jnp.mean(w[:, None] * (a - base) ** 2)

    def update(self, state, batch, key):
        after, metrics = super().update(state, batch, key)
        base = back(after.actor, state.gain, state.offset)
        limit = state.slack * state.limit
        if self.common_states == "imagined":
            obs = after.imagined.observations; w = jnp.ones(obs.shape[0])
        else:
            obs = batch.observations
            w = safe_weights(after.critics.cost(obs, batch.actions), limit, 0.0 if self.common_states == "safe" else 1.0)
        mean = base(obs).mean
        opt = Adam(self.common_rate)._optax
        grad = jax.grad(self.common_loss)((state.gain, state.offset), mean, obs, w, after.critics, limit)
        if not self.with_offset: grad = (grad[0], jnp.zeros_like(grad[1]))
        up, common_optimiser = opt.update(grad, state.common_optimiser, (state.gain, state.offset))
        on = (state.step >= self.common_from) * 1.0
        gain = jnp.clip(state.gain + on * up[0], 1 / self.gain_most, self.gain_most)
        offset = jnp.clip(state.offset + on * up[1], -0.3, 0.3)
        actor = moved(base, gain, offset)
        # the average was made of the actor before the common step: of no matter, it follows
        after = replace(after, actor=actor, gain=gain, offset=offset, common_optimiser=common_optimiser)
        return after, {**metrics, "gain": gain.mean(), "gain_lo": gain.min(), "gain_hi": gain.max(), "offset": jnp.abs(offset).mean()}
