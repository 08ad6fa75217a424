"""The default with a gain: the policy is tanh(gain x mean), gain set by imagined episodes in two models with reward."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import jax, jax.numpy as jnp, numpy as np, equinox as eqx
import proto10, proto14
from proto17 import RPlant
from ringfence.algorithms.cpq_departures import CPQ
import ringfence.algorithms.cpq_imagined as im

G = 4
towards = proto14.towards


def gained(actor, gain):
    last = actor.mlp.layers[-1]
    n = last.bias.shape[0] // 2
    f = jnp.concatenate([jnp.full(n, 1.0) * gain, jnp.ones(n)])
    axis_w = last.weight * (f[:, None] if last.weight.shape[0] == 2 * n else f[None, :])
    return eqx.tree_at(lambda a: (a.mlp.layers[-1].weight, a.mlp.layers[-1].bias), actor, (axis_w, last.bias * f))


class Groups(im.Imagined):
    rewards: Any = None    # pace of reward, by group

    def advance(self, plants, now, probe, starts, discount):
        n = im.EPISODES // G
        a, b, c, d = jnp.split(self.observations, G)
        one, two = plants
        f1, r1, c1 = one.full(jnp.concatenate([a, b]), jnp.concatenate([now.mode(a), probe.mode(b)]))
        f2, r2, c2 = two.full(jnp.concatenate([c, d]), jnp.concatenate([now.mode(c), probe.mode(d)]))
        following, rewards, costs = jnp.concatenate([f1, f2]), jnp.concatenate([r1, r2]), jnp.concatenate([c1, c2])
        discounted = self.discounted + discount**self.times * costs
        late = self.times >= self.horizon // 2
        pace = towards(self.pace, costs, late, 0.005)
        rpace = towards(self.rewards, rewards, late, 0.002)
        complete = self.times + 1 >= self.horizon
        beyond = discount**self.horizon * jnp.repeat(pace, n) / (1.0 - discount)
        told = complete & (self.steps >= self.horizon)
        from_start = towards(self.from_start, discounted + beyond, told, 0.05)
        margin = im.OUTSIDE * (one.high - one.low)
        lost = jnp.any((following < one.low - margin) | (following > one.high + margin), -1)
        anew = complete | lost
        fresh = starts[jnp.arange(im.EPISODES) % starts.shape[0]]
        return replace(self, observations=jnp.where(anew[:, None], fresh, jnp.clip(following, one.low, one.high)), times=jnp.where(anew, 0, self.times + 1),
                       discounted=jnp.where(anew, 0.0, discounted), steps=self.steps + 1, pace=pace, from_start=from_start, rewards=rpace)


class GState(proto10.CloneState):
    gain: Any


@dataclass(frozen=True)
class Proto(proto10.Proto):
    name: ClassVar[str] = "proto18"
    clone_rate: float = 1e-3
    least: float = 0.8
    most: float = 1.2
    predicted: float = 0.03
    target: str = "logged"
    gain_rate: float = 1e-4
    gains: tuple = (0.9, 1.15)
    probe: float = 1.04
    use_reward: bool = True

    def init(self, key, limit, spec):
        st = super().init(key, limit, spec)
        im.SLACK = (self.least, self.most); im.PREDICTED = self.predicted
        k = jax.random.split(jax.random.fold_in(key, 991))
        plants = (RPlant.create(spec, self.hidden, k[0]), RPlant.create(spec, self.hidden, k[1]))
        g = vars(st.imagined)
        g = {**g, "pace": jnp.full(G, (1 - self.discount) * limit, jnp.float32), "from_start": jnp.full(G, limit, jnp.float32), "rewards": jnp.zeros(G)}
        return GState(**{**vars(st), "plant": plants, "imagined": Groups(**g)}, gain=jnp.ones(()))

    _fit_plant = proto14.Proto._fit_plant

    def _imagine(self, state, metrics, batch):
        now, probe = gained(state.averaged_actor, state.gain), gained(state.averaged_actor, self.probe * state.gain)
        imagined = state.imagined.advance(state.plant, now, probe, batch.starts, self.discount)
        costs = jnp.maximum(imagined.from_start, imagined.pace / (1 - self.discount))
        cost_now, cost_probe = jnp.maximum(costs[0], costs[2]), jnp.maximum(costs[1], costs[3])
        better = jnp.minimum(imagined.rewards[1] - imagined.rewards[0], imagined.rewards[3] - imagined.rewards[2])
        rate = im.feedback_rate(state.step, state.plant[0].error, self.feedback)
        slack = im.next_slack(state.slack, cost_now, state.limit, rate)
        room = jnp.clip(im.AIM - cost_probe / state.limit, -0.2, 0.2)
        room = jnp.where((room > 0) & (better < 0), 0.0, room) if self.use_reward else room
        gain = jnp.clip(state.gain + rate / self.feedback * self.gain_rate * room, *self.gains)
        more = {"imagined_cost": cost_now, "slack": slack, "u": gain, "pool_r": better, "pool_c": cost_probe, "u0": imagined.rewards[0], "u1": imagined.rewards[1], "u2": imagined.rewards[2], "u3": imagined.rewards[3]}
        return replace(state, imagined=imagined, slack=slack, gain=gain), {**metrics, **more}

    def policy_actor(self, state):
        return gained(state.averaged_actor, state.gain)

    def learn_clone(self, state, batch, weights):
        return state if self.target == "logged" else super().learn_clone(state, batch, weights)

    def actor_loss(self, actor, critics, batch, state, key):
        if self.target == "logged":
            return CPQ.actor_loss(self, actor, critics, batch, state, key)
        return super().actor_loss(actor, critics, batch, state, key)
