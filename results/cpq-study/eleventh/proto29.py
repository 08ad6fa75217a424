"""The default with a clone of the safe episodes beside it, and a model of the plant that predicts reward and termination too. At the end
both policies are imagined for whole episodes: is the log enough to tell which one earns more?"""

from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ringfence.algorithms.bc import cloning_loss
from ringfence.algorithms.cpq_departures import CPQ, AveragedState, averaging_rate
from ringfence.algorithms.cpq_imagined import AVERAGED, FITTED, OUTSIDE, Imagined, Plant
from ringfence.algorithms.cpq import PaperCPQ
from ringfence.data.episodes import episode_table
from ringfence.networks import MLP, TanhGaussianActor, pairs, polyak, tanh_log_prob


class Plant2(Plant):
    """s' - s, r, ended, c."""

    @classmethod
    def create(cls, spec, hidden, key):
        columns = spec.observation_dim
        network = MLP(columns + spec.action_dim, columns + 3, hidden, normalise=True, key=key)
        return cls(network=network, averaged=network, optimiser=FITTED.init(network), fitted=jnp.zeros((), jnp.int32), error=jnp.ones(()),
                   size=jnp.ones(columns + 3), low=jnp.zeros(columns), high=jnp.zeros(columns))

    def all(self, observations, actions):
        predicted = self.averaged(pairs(observations, actions)) * self.size
        n = observations.shape[-1]
        return observations + predicted[:, :n], predicted[:, n], predicted[:, n + 1], jnp.maximum(predicted[:, -1], 0.0)

    def __call__(self, observations, actions):
        following, _, _, costs = self.all(observations, actions)
        return following, costs

    def fit(self, batch):
        changes = batch.next_observations - batch.observations
        followed = jnp.concatenate([changes, batch.rewards[:, None], (1 - batch.continues)[:, None], batch.costs[:, None]], -1)
        rate = jnp.maximum(0.01, 1.0 / (1.0 + self.fitted))
        size = jnp.sqrt((1.0 - rate) * self.size**2 + rate * jnp.mean(followed**2, 0)) + 1e-6
        n = batch.observations.shape[-1]
        size = size.at[n + 1].set(0.3)

        def plant_loss(network):
            error = (network(pairs(batch.observations, batch.actions)) - followed / size) ** 2
            explained = jnp.concatenate([error[:, :n], error[:, -1:]], -1)
            return jnp.mean(error), jnp.mean(explained)

        (_, loss), gradient = jax.value_and_grad(plant_loss, has_aux=True)(self.network)
        network, optimiser = FITTED.step(gradient, self.optimiser, self.network)
        return replace(self, network=network, averaged=polyak(self.averaged, network, AVERAGED), optimiser=optimiser, fitted=self.fitted + 1,
                       error=self.error + rate * (loss - self.error), size=size, low=jnp.minimum(self.low, batch.observations.min(0)), high=jnp.maximum(self.high, batch.observations.max(0))), loss


class CloneState(AveragedState):
    clone: TanhGaussianActor
    clone_optimiser: object


def imagine(plant, actor, starts, horizon, discount, noise=0.0, key=None):
    """Return, discounted return, discounted cost, cost per step, length of each imagined episode."""
    margin = OUTSIDE * (plant.high - plant.low)

    def step(carry, t):
        s, alive, out = carry
        a = actor.mode(s)
        following, r, ended, c = plant.all(s, a)
        if noise:
            following = following + noise * jnp.sqrt(plant.error) * plant.size[: s.shape[-1]] * jax.random.normal(jax.random.fold_in(key, t), s.shape)
        lost = jnp.any((following < plant.low - margin) | (following > plant.high + margin), -1)
        out = out + alive[:, None] * jnp.stack([r, discount**t * r, discount**t * c, c, jnp.ones_like(c)], -1)
        alive = alive * (1.0 - ((ended > 0.5) | lost))
        return (jnp.clip(following, plant.low, plant.high), alive, out), None

    n = starts.shape[0]
    (s, alive, out), _ = jax.lax.scan(step, (starts, jnp.ones(n), jnp.zeros((n, 5))), jnp.arange(horizon))
    return out


@dataclass(frozen=True)
class Proto(CPQ):
    plant_hidden: tuple = (128, 128)

    def columns(self, dataset):
        table = episode_table(dataset, self.discount)
        if dataset.source is not None:
            costs = np.array([table.discounted_costs[table.source == s].mean() for s in table.source])
        else:
            costs = table.discounted_costs
        return {"episode_cost": np.repeat(costs, table.length)[:, None].astype(np.float32)}

    def init(self, key, limit, spec):
        state = super().init(key, limit, spec)
        keys = jax.random.split(jax.random.fold_in(key, 41))
        clone = TanhGaussianActor(spec.observation_dim, spec.action_dim, self.hidden, key=keys[0])
        fields = {**vars(state), "plant": Plant2.create(spec, tuple(self.plant_hidden), keys[1])}
        return CloneState(**fields, clone=clone, clone_optimiser=self._actor_adam.init(clone))

    def _fit_plant(self, state, batch, metrics):
        state, metrics = super()._fit_plant(state, batch, metrics)
        safe = (batch.extras["episode_cost"][:, 0] <= state.limit).astype(jnp.float32)

        def loss(clone):
            return -jnp.mean(safe * tanh_log_prob(clone(batch.observations), batch.actions))

        value, gradient = jax.value_and_grad(loss)(state.clone)
        clone, optimiser = self._actor_adam.step(gradient, state.clone_optimiser, state.clone)
        return replace(state, clone=clone, clone_optimiser=optimiser), {**metrics, "clone_loss": value}
