"""The default from a clone: a clone of the safe rows is learned before the policy, the actor starts as it and is anchored to its
most likely action. Optional: two models with a part of their own error as noise for the feedback."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import ringfence.algorithms.cpq_imagined as im
from ringfence.algorithms.cpq_departures import CPQ, AveragedState, anchor_loss, averaging_rate, safe_weights
from ringfence.algorithms.optimise import Adam
from ringfence.networks import polyak, tanh_log_prob


class NoisyPlant(im.Plant):
    residual: Any  # mean square of what is left unexplained, of each column, in units of size

    @classmethod
    def create(cls, spec, hidden, key):
        p = vars(im.Plant.create(spec, hidden, key))
        return cls(**p, residual=jnp.ones(spec.observation_dim + 1))

    def fit(self, batch):
        plant, loss = im.Plant.fit(self, batch)
        followed = jnp.concatenate([batch.next_observations - batch.observations, batch.costs[:, None]], -1) / plant.size
        left = jnp.mean((self.averaged(im.pairs(batch.observations, batch.actions)) - followed) ** 2, 0)
        return NoisyPlant(**vars(plant), residual=self.residual + 0.01 * (left - self.residual)), loss


class Groups(eqx.Module):
    """Episodes in groups: (model, policy)."""

    observations: Any  # (models, policies, episodes, obs)
    times: Any
    discounted: Any
    horizon: Any
    steps: Any
    pace: Any  # (models, policies)
    from_start: Any

    @classmethod
    def create(cls, spec, limit, discount, key, models, policies, episodes):
        horizon = min(spec.horizon or im.LONGEST, im.LONGEST)
        shape = models, policies, episodes
        return cls(
            observations=jnp.zeros((*shape, spec.observation_dim)),
            times=jax.random.randint(key, shape, 0, horizon),
            discounted=jnp.zeros(shape),
            horizon=jnp.asarray(horizon, jnp.int32),
            steps=jnp.zeros((), jnp.int32),
            pace=jnp.full(shape[:2], (1.0 - discount) * limit, jnp.float32),
            from_start=jnp.full(shape[:2], limit, jnp.float32),
        )

    def advance(self, plants, actors, starts, discount, key, noise):
        m, p, e, n = self.observations.shape
        actions = jnp.stack([a.mode(self.observations[:, i].reshape(m * e, n)).reshape(m, e, -1) for i, a in enumerate(actors)], 1)
        told = [plant(self.observations[i].reshape(p * e, n), actions[i].reshape(p * e, -1)) for i, plant in enumerate(plants)]
        following = jnp.stack([s.reshape(p, e, n) for s, _ in told])
        costs = jnp.stack([c.reshape(p, e) for _, c in told])
        spread = jnp.stack([noise * jnp.sqrt(plant.residual) * plant.size for plant in plants])[:, None, None, :-1]
        following = following + spread * jax.random.normal(key, following.shape)
        discounted = self.discounted + discount**self.times * costs
        pace = towards(self.pace, costs, self.times >= self.horizon // 2, 0.005)
        complete = self.times + 1 >= self.horizon
        beyond = discount**self.horizon * pace[..., None] / (1.0 - discount)
        from_start = towards(self.from_start, discounted + beyond, complete & (self.steps >= self.horizon), 0.05)
        plant = plants[0]
        margin = im.OUTSIDE * (plant.high - plant.low)
        lost = jnp.any((following < plant.low - margin) | (following > plant.high + margin), -1)
        anew = complete | lost
        fresh = starts[jnp.arange(m * p * e) % starts.shape[0]].reshape(m, p, e, n)
        return replace(
            self,
            observations=jnp.where(anew[..., None], fresh, jnp.clip(following, plant.low, plant.high)),
            times=jnp.where(anew, 0, self.times + 1),
            discounted=jnp.where(anew, 0.0, discounted),
            steps=self.steps + 1,
            pace=pace,
            from_start=from_start,
        )

    def costs(self, discount):
        return jnp.maximum(self.from_start, self.pace / (1.0 - discount))


def towards(mean, values, counted, rate):
    now = jnp.sum(jnp.where(counted, values, 0.0), -1) / jnp.maximum(counted.sum(-1), 1)
    return jnp.where(counted.any(-1), mean + rate * (now - mean), mean)


class CloneState(AveragedState):
    clone: Any
    clone_opt: Any
    clone_avg: Any
    clone_step: Any


@dataclass(frozen=True)
class Proto(CPQ):
    name: ClassVar[str] = "proto19"
    hidden: tuple = (128, 128)
    steps_planned: int = 15000
    clone: bool = True  # start from the clone and anchor to it
    start: bool = True
    target: str = "clone"  # "logged", "presquash"
    edge: float = 0.98
    clone_rate: float = 1e-3
    clone_unsafe: float = 0.1
    warm: int = 1500
    models: int = 2
    noise: float = 0.5
    aim: float = 0.97
    least: float = 0.8
    most: float = 1.3
    predicted: float = 0.03
    counts: str = "costlier"  # of actor and average; their "mean", the "average" alone, or "lagging": the average, their mean if that is more
    fast: float = 1.0

    def columns(self, dataset):
        """Of each row: what its episode went on to cost (a truncated one at its own pace), and how much of the cost of an end."""
        ends, starts = dataset.episode_ends, dataset.episode_starts
        lengths = ends - starts
        to_go = dataset.cost_to_go(self.discount)
        left = np.repeat(ends, lengths) - np.arange(len(to_go))
        tail = self.discount**left
        ended = np.repeat(dataset.terminations[ends - 1], lengths)
        pace = np.repeat(np.add.reduceat(dataset.costs, starts, dtype=np.float64) / lengths, lengths) / (1 - self.discount)
        return {"followed": np.stack([to_go + np.where(ended, 0.0, tail * pace), np.where(ended, tail, 0.0)], 1).astype(np.float32)}

    def behaviour_cost(self, batch, limit):
        f = batch.extras["followed"]
        return f[:, 0] + f[:, 1] * self.cost_of_end(limit)

    def init(self, key, limit, spec):
        im.SLACK, im.PREDICTED, im.AIM = (self.least, self.most), self.predicted, self.aim
        st = super().init(key, limit, spec)
        keys = jax.random.split(jax.random.fold_in(key, 991), self.models + 1)
        plants = tuple(NoisyPlant.create(spec, self.hidden, k) for k in keys[1:])
        imagined = Groups.create(spec, jnp.asarray(limit, jnp.float32), self.discount, keys[0], self.models, 2, 128 // self.models // 1)
        clone = self.fresh_actor(spec, jax.random.fold_in(key, 31))
        return CloneState(**{**vars(st), "plant": plants, "imagined": imagined}, clone=clone, clone_opt=Adam(self.clone_rate).init(clone),
            clone_avg=clone, clone_step=jnp.zeros((), jnp.int32))

    def learn_clone(self, state, batch):
        weights = safe_weights(self.behaviour_cost(batch, state.limit), state.limit, self.clone_unsafe)
        def loss(clone):
            return -jnp.mean(weights * tanh_log_prob(clone(batch.observations), batch.actions))
        g = jax.grad(loss)(state.clone)
        clone, opt = Adam(self.clone_rate).step(g, state.clone_opt, state.clone)
        rate = averaging_rate(state.clone_step)
        return replace(state, clone=clone, clone_opt=opt, clone_avg=polyak(state.clone_avg, clone, rate), clone_step=state.clone_step + 1)

    def update_detector(self, state, batch, key):
        state, metrics = super().update_detector(state, batch, key)
        return self.learn_clone(state, batch), metrics

    def calibrate_detector(self, state, batch, key):
        state, report = super().calibrate_detector(state, batch, key)
        if self.start:
            state = replace(state, actor=state.clone_avg, averaged_actor=state.clone_avg)
        return state, report

    def update(self, state, batch, key):
        after, metrics = super().update(state, batch, key)
        if self.warm:
            hold = state.step < self.warm
            pick = lambda a, b: jax.tree.map(lambda x, y: jnp.where(hold, x, y), a, b)
            after = replace(after, actor=pick(state.actor, after.actor), actor_optimiser=pick(state.actor_optimiser, after.actor_optimiser),
                averaged_actor=pick(state.averaged_actor, after.averaged_actor))
        return after, metrics

    def _fit_plant(self, state, batch, metrics):
        fitted = [plant.fit(batch) for plant in state.plant]
        return replace(state, plant=tuple(p for p, _ in fitted)), {**metrics, "plant_loss": fitted[0][1]}

    def _imagine(self, state, metrics, batch):
        key = jax.random.fold_in(jax.random.key(7), state.step)
        actors = state.actor, state.averaged_actor
        imagined = state.imagined.advance(state.plant, actors, batch.starts, self.discount, key, self.noise)
        costs = imagined.costs(self.discount)
        cost = jnp.max({"costlier": costs, "mean": costs.mean(1), "average": costs[:, 1], "lagging": jnp.maximum(costs[:, 1], costs.mean(1))}[self.counts])
        error = jnp.max(jnp.stack([p.error for p in state.plant]))
        rate = im.feedback_rate(state.step, error, self.feedback)
        slack = im.next_slack(state.slack, cost, state.limit, rate)
        return replace(state, imagined=imagined, slack=slack), {**metrics, "imagined_cost": cost, "slack": slack,
            **{f"u{i}": c for i, c in enumerate(costs.ravel())}}

    def actor_loss(self, actor, critics, batch, state, key):
        limit = state.slack * state.limit
        loss, actions, metrics = self.objective_loss(actor, critics, batch, limit, key)
        logged_cost = critics.cost(batch.observations, batch.actions)
        weights = safe_weights(logged_cost, limit, self.unsafe_anchor)
        if self.target == "presquash":
            # squared distance before the squash, scaled to the size of that after it; logged actions at the bound count as `edge`
            u = jnp.arctanh(jnp.clip(actions[0], -1 + 1e-6, 1 - 1e-6))
            before = anchor_loss(u, jnp.arctanh(jnp.clip(batch.actions, -self.edge, self.edge)), weights)
            scale = anchor_loss(actions[0], batch.actions, weights) / (before + 1e-6)
            loss += state.anchor * jax.lax.stop_gradient(scale) * before
            return loss, {**metrics, "actor_loss": loss}
        target = jax.lax.stop_gradient(state.clone_avg.mode(batch.observations)) if self.target == "clone" else batch.actions
        loss += state.anchor * anchor_loss(actions[0], target, weights)
        return loss, {**metrics, "actor_loss": loss}
