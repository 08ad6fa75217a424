"""Two models with reward; clone target by Qc weights (p10) or logged. Table of gains by the models at the end (run.py)."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import jax, jax.numpy as jnp, numpy as np
import proto10, proto14
from proto14 import Groups, G
from ringfence.algorithms.cpq_departures import CPQ
from ringfence.networks import MLP, polyak
import ringfence.algorithms.cpq_imagined as im


class RPlant(im.Plant):
    """as Plant, with (s'-s, r, c)"""
    @classmethod
    def create(cls, spec, hidden, key):
        p = vars(im.Plant.create(spec, hidden, key)); n = spec.observation_dim
        network = MLP(n + spec.action_dim, n + 2, hidden, normalise=True, key=key)
        return cls(**{**p, "network": network, "averaged": network, "optimiser": im.FITTED.init(network), "size": jnp.ones(n + 2)})

    def full(self, o, a):
        told = self.averaged(im.pairs(o, a)) * self.size
        return o + told[:, :-2], told[:, -2], jnp.maximum(told[:, -1], 0.0)

    def __call__(self, o, a):
        s, r, c = self.full(o, a)
        return s, c

    def fit(self, batch):
        changes = batch.next_observations - batch.observations
        followed = jnp.concatenate([changes, batch.rewards[:, None], batch.costs[:, None]], -1)
        rate = jnp.maximum(0.01, 1.0 / (1.0 + self.fitted))
        size = jnp.sqrt((1.0 - rate) * self.size**2 + rate * jnp.mean(followed**2, 0)) + 1e-6
        loss, gradient = jax.value_and_grad(im.plant_loss)(self.network, batch, followed / size)
        network, optimiser = im.FITTED.step(gradient, self.optimiser, self.network)
        return RPlant(network=network, averaged=polyak(self.averaged, network, im.AVERAGED), optimiser=optimiser, fitted=self.fitted + 1,
            error=self.error + rate * (loss - self.error), size=size, low=jnp.minimum(self.low, batch.observations.min(0)), high=jnp.maximum(self.high, batch.observations.max(0))), loss


@dataclass(frozen=True)
class Proto(proto10.Proto):
    name: ClassVar[str] = "proto17"
    clone_rate: float = 1e-3
    least: float = 0.8
    most: float = 1.2
    predicted: float = 0.03
    target: str = "clone"

    def init(self, key, limit, spec):
        st = super().init(key, limit, spec)
        im.SLACK = (self.least, self.most); im.PREDICTED = self.predicted
        k = jax.random.split(jax.random.fold_in(key, 991))
        plants = (RPlant.create(spec, self.hidden, k[0]), RPlant.create(spec, self.hidden, k[1]))
        g = vars(st.imagined)
        g = {**g, "pace": jnp.full(G, (1 - self.discount) * limit, jnp.float32), "from_start": jnp.full(G, limit, jnp.float32)}
        return replace(st, plant=plants, imagined=Groups(**g))

    _fit_plant = proto14.Proto._fit_plant
    _imagine = proto14.Proto._imagine

    def learn_clone(self, state, batch, weights):
        return state if self.target == "logged" else super().learn_clone(state, batch, weights)

    def actor_loss(self, actor, critics, batch, state, key):
        if self.target == "logged":
            return CPQ.actor_loss(self, actor, critics, batch, state, key)
        return super().actor_loss(actor, critics, batch, state, key)


def imagine(plant, act, starts, horizon=1000, discount=0.99):
    """mean return, discounted cost, pace over the whole, share of steps that left the log's range (clipped)"""
    def step(carry, t):
        o, d, lost = carry
        s, r, c = plant.full(o, act(o))
        m = im.OUTSIDE * (plant.high - plant.low)
        out = jnp.any((s < plant.low - m) | (s > plant.high + m), -1)
        s = jnp.clip(s, plant.low, plant.high)
        return (s, d + discount**t * c, lost | out), (r, c)
    (o, d, lost), (r, c) = jax.lax.scan(step, (starts, jnp.zeros(len(starts)), jnp.zeros(len(starts), bool)), jnp.arange(horizon))
    return [round(float(r.sum(0).mean())), round(float(c.mean()), 3), round(float(d.mean()), 1), round(float(lost.mean()), 2)]
