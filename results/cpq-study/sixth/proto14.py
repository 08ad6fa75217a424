"""proto13 (or the default) with two models of the plant: groups of imagined episodes by actor / average and by model, the costliest counts."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import jax, jax.numpy as jnp, numpy as np, equinox as eqx
import proto13
from ringfence.algorithms.cpq_departures import CPQ, cast
import ringfence.algorithms.cpq_imagined as im
from ringfence.algorithms.interface import Spec

G = 4


class Groups(im.Imagined):
    def advance(self, plants, actor, average, starts, discount):
        n = im.EPISODES // G
        a, b, c, d = jnp.split(self.observations, G)
        first, second = jnp.concatenate([a, b]), jnp.concatenate([c, d])
        one, two = plants
        f1, c1 = one(first, jnp.concatenate([actor.mode(a), average.mode(b)]))
        f2, c2 = two(second, jnp.concatenate([actor.mode(c), average.mode(d)]))
        following, costs = jnp.concatenate([f1, f2]), jnp.concatenate([c1, c2])
        discounted = self.discounted + discount**self.times * costs
        late = self.times >= self.horizon // 2
        pace = towards(self.pace, costs, late, 0.005)
        complete = self.times + 1 >= self.horizon
        beyond = discount**self.horizon * jnp.repeat(pace, n) / (1.0 - discount)
        told = complete & (self.steps >= self.horizon)
        from_start = towards(self.from_start, discounted + beyond, told, 0.05)
        margin = im.OUTSIDE * (one.high - one.low)
        lost = jnp.any((following < one.low - margin) | (following > one.high + margin), -1)
        anew = complete | lost
        fresh = starts[jnp.arange(im.EPISODES) % starts.shape[0]]
        return replace(self, observations=jnp.where(anew[:, None], fresh, jnp.clip(following, one.low, one.high)), times=jnp.where(anew, 0, self.times + 1),
                       discounted=jnp.where(anew, 0.0, discounted), steps=self.steps + 1, pace=pace, from_start=from_start)


def towards(mean, values, counted, rate):
    v, m = (x.reshape(G, im.EPISODES // G) for x in (values, counted))
    now = jnp.sum(jnp.where(m, v, 0.0), 1) / jnp.maximum(m.sum(1), 1)
    return jnp.where(m.any(1), mean + rate * (now - mean), mean)


@dataclass(frozen=True)
class Proto(proto13.Proto):
    name: ClassVar[str] = "proto14"
    most: float = 1.3
    target: str = "clone"

    def init(self, key, limit, spec):
        st = super().init(key, limit, spec)
        k = jax.random.fold_in(key, 991)
        plants = (st.plant, im.Plant.create(spec, self.hidden, k))
        g = vars(st.imagined)
        g = {**g, "pace": jnp.full(G, (1 - self.discount) * limit, jnp.float32), "from_start": jnp.full(G, limit, jnp.float32)}
        return replace(st, plant=plants, imagined=Groups(**g))

    def _fit_plant(self, state, batch, metrics):
        (a, la), (b, lb) = (p.fit(batch) for p in state.plant)
        return replace(state, plant=(a, b)), {**metrics, "plant_loss": la}

    def _imagine(self, state, metrics, batch):
        imagined = state.imagined.advance(state.plant, state.actor, state.averaged_actor, batch.starts, self.discount)
        cost = imagined.cost(self.discount)
        rate = im.feedback_rate(state.step, state.plant[0].error, self.feedback)
        slack = im.next_slack(state.slack, cost, state.limit, rate)
        more = {f"u{i}": 100 * imagined.pace[i] for i in range(G)}
        return replace(state, imagined=imagined, slack=slack), {**metrics, "imagined_cost": cost, "slack": slack, "pool_r": imagined.from_start.max(), **more}

    def actor_loss(self, actor, critics, batch, state, key):
        if self.target == "logged": return CPQ.actor_loss(self, actor, critics, batch, state, key)
        return super().actor_loss(actor, critics, batch, state, key)
