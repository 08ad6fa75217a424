"""Rows of episodes inside the limit: the anchor is the mode of their clone (likelihood). Other rows: the logged action, weight by Qc."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import jax, jax.numpy as jnp, numpy as np
import proto10
from ringfence.algorithms.cpq_departures import CPQ, anchor_loss, safe_weights, cost_target_beyond_the_end
from ringfence.data.episodes import episode_table
from ringfence.networks import polyak
import ringfence.algorithms.cpq_imagined as im


@dataclass(frozen=True)
class Proto(proto10.Proto):
    name: ClassVar[str] = "proto13"
    clone_rate: float = 3e-4
    clone_smooth: float = 0.001
    least: float = 0.8
    most: float = 1.2
    predicted: float = 0.03
    hinge_all: bool = True
    pre: bool = True

    def init(self, key, limit, spec):
        st = super().init(key, limit, spec)
        im.SLACK = (self.least, self.most); im.PREDICTED = self.predicted
        return st

    def columns(self, dataset):
        t = episode_table(dataset, self.discount)
        lengths = np.diff(np.append(dataset.episode_starts, len(dataset)))
        return {"episode_cost": np.repeat(np.asarray(t.discounted_costs, np.float32), lengths)[:, None]}

    def inside(self, state, batch):
        return (batch.extras["episode_cost"][:, 0] <= state.limit).astype(jnp.float32)

    def update_detector(self, state, batch, key):
        state, metrics = CPQ.update_detector(self, state, batch, key)
        return self.learn_clone(state, batch, self.inside(state, batch)), metrics

    def update(self, state, batch, key):
        after, metrics = CPQ.update(self, state, batch, key)
        return self.learn_clone(after, batch, self.inside(state, batch)), metrics

    def actor_loss(self, actor, critics, batch, state, key):
        limit = state.slack * state.limit
        loss, actions, metrics = self.objective_loss(actor, critics, batch, limit, key)
        logged_cost = critics.cost(batch.observations, batch.actions)
        weights = safe_weights(logged_cost, limit, self.unsafe_anchor)
        inside = self.inside(state, batch)
        clone = state.clone_avg.mode(batch.observations)
        target = jax.lax.stop_gradient(jnp.where(inside[:, None] > 0, clone, batch.actions))
        # rows inside count as safe whatever Qc says
        w = jnp.where((inside > 0) | (weights >= weights.max() - 1e-6), 1.0, self.unsafe_anchor)
        w = w / w.mean()
        loss += state.anchor * anchor_loss(actions[0], target, w)
        return loss, {**metrics, "actor_loss": loss}
