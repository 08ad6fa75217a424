"""The default (or a clone as anchor), the immediate cost of the targets' noise taken out of the cost critic with the plant's own cost."""
from dataclasses import dataclass, replace
from typing import Any, ClassVar
import jax, jax.numpy as jnp
import proto10
from ringfence.algorithms.cpq_departures import CPQ, anchor_loss, safe_weights, cost_target_beyond_the_end, smoothed_actions
import ringfence.algorithms.cpq_imagined as im


@dataclass(frozen=True)
class Proto(proto10.Proto):
    name: ClassVar[str] = "proto12"
    clone_rate: float = 1e-3
    least: float = 0.8
    most: float = 1.2
    predicted: float = 0.03
    target: str = "logged"
    correct: bool = True

    def init(self, key, limit, spec):
        st = super().init(key, limit, spec)
        im.SLACK = (self.least, self.most); im.PREDICTED = self.predicted
        return st

    def cost_target(self, state, batch, next_actions):
        end = self.cost_of_end(state.limit)
        told = cost_target_beyond_the_end(state.targets.cost, batch, next_actions, self.discount, end)
        if not self.correct: return told
        greedy = state.actor.mode(batch.next_observations)
        cost = lambda a: state.plant.averaged(im.pairs(batch.next_observations, a))[:, -1] * state.plant.size[-1]
        extra = cost(next_actions) - cost(greedy)
        return told - self.discount * batch.continues * jax.lax.stop_gradient(extra)

    def learn_clone(self, state, batch, weights):
        return state if self.target == "logged" else super().learn_clone(state, batch, weights)

    def actor_loss(self, actor, critics, batch, state, key):
        if self.target == "logged":
            return CPQ.actor_loss(self, actor, critics, batch, state, key)
        return super().actor_loss(actor, critics, batch, state, key)
