"""proto10, imagined episodes with the model's own error as noise, other bounds of the slack."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import jax, jax.numpy as jnp, equinox as eqx
import proto10
from ringfence.algorithms.cpq_departures import anchor_loss
import ringfence.algorithms.cpq_imagined as im


class NoisyPlant(im.Plant):
    noise: Any = None
    residual: Any = None   # running mean square of the residual, by column, over size

    def __call__(self, observations, actions):
        told = self.averaged(im.pairs(observations, actions)) * self.size
        told = told.at[:, :-1].add(self.noise * self.size[:-1] * jnp.sqrt(self.residual[:-1]) * jax.random.normal(jax.random.fold_in(jax.random.key(5), self.fitted), told[:, :-1].shape))
        return observations + told[:, :-1], jnp.maximum(told[:, -1], 0.0)

    def fit(self, batch):
        plant, loss = super().fit(batch)
        changes = batch.next_observations - batch.observations
        followed = jnp.concatenate([changes, batch.costs[:, None]], -1)
        res = jnp.mean((self.averaged(im.pairs(batch.observations, batch.actions)) - followed / plant.size) ** 2, 0)
        rate = jnp.maximum(0.01, 1.0 / (1.0 + self.fitted))
        return NoisyPlant(**{**vars(plant), "noise": self.noise, "residual": self.residual + rate * (res - self.residual)}), loss


@dataclass(frozen=True)
class Proto(proto10.Proto):
    name: ClassVar[str] = "proto11"
    clone_rate: float = 1e-3
    least: float = 0.8
    most: float = 1.5
    noise: float = 1.0
    target: str = "clone"

    def init(self, key, limit, spec):
        st = super().init(key, limit, spec)
        im.SLACK = (self.least, self.most)
        p = vars(st.plant)
        return replace(st, plant=NoisyPlant(**p, noise=jnp.asarray(self.noise), residual=jnp.ones(p["size"].shape)))

    def learn_clone(self, state, batch, weights):
        return state if self.target == "logged" else super().learn_clone(state, batch, weights)

    def actor_loss(self, actor, critics, batch, state, key):
        if self.target == "logged":
            return super(proto10.Proto, self).actor_loss(actor, critics, batch, state, key)
        return super().actor_loss(actor, critics, batch, state, key)
