"""proto29 with two models of the plant, and what each leaves unexplained of each column."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

import proto29
from proto29 import CloneState, Plant2, polyak
from ringfence.algorithms.cpq_imagined import AVERAGED, FITTED, OUTSIDE
from ringfence.networks import pairs


class Plant3(Plant2):
    errors: jax.Array  # of each column, running mean of squares, over the column's size

    @classmethod
    def create(cls, spec, hidden, key):
        return cls(**vars(Plant2.create(spec, hidden, key)), errors=jnp.ones(spec.observation_dim))

    def fit(self, batch):
        n = batch.observations.shape[-1]
        followed = (batch.next_observations - batch.observations) / self.size[:n]
        found = jnp.mean((self.averaged(pairs(batch.observations, batch.actions))[:, :n] - followed) ** 2, 0)
        after, loss = super().fit(batch)
        rate = jnp.maximum(0.005, 1.0 / (1.0 + self.fitted))
        return replace(after, errors=self.errors + rate * (found - self.errors)), loss


class State2(CloneState):
    second: Plant3


def imagine(plant, act, starts, horizon, discount, noise, key):
    """As in proto29, with noise of each column's own size."""
    margin = OUTSIDE * (plant.high - plant.low)
    scale = noise * jnp.sqrt(plant.errors) * plant.size[: starts.shape[-1]]

    def step(carry, t):
        s, alive, out = carry
        following, r, ended, c = plant.all(s, act(s))
        following = following + scale * jax.random.normal(jax.random.fold_in(key, t), s.shape)
        lost = jnp.any((following < plant.low - margin) | (following > plant.high + margin), -1)
        out = out + alive[:, None] * jnp.stack([r, discount**t * r, discount**t * c, c, jnp.ones_like(c)], -1)
        alive = alive * (1.0 - ((ended > 0.5) | lost))
        return (jnp.clip(following, plant.low, plant.high), alive, out), None

    n = starts.shape[0]
    (_, _, out), _ = jax.lax.scan(step, (starts, jnp.ones(n), jnp.zeros((n, 5))), jnp.arange(horizon))
    return out


@dataclass(frozen=True)
class Proto(proto29.Proto):
    def init(self, key, limit, spec):
        state = super().init(key, limit, spec)
        keys = jax.random.split(jax.random.fold_in(key, 43))
        hidden = tuple(self.plant_hidden)
        fields = {**vars(state), "plant": Plant3.create(spec, hidden, keys[0])}
        return State2(**fields, second=Plant3.create(spec, hidden, keys[1]))

    def _fit_plant(self, state, batch, metrics):
        state, metrics = super()._fit_plant(state, batch, metrics)
        second, _ = state.second.fit(batch)
        return replace(state, second=second), metrics
