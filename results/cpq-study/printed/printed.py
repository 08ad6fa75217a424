"""CPQ as printed, with what the paper leaves open as options."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ringfence.algorithms.cpq import PaperCPQ, State
from ringfence.algorithms.optimise import Adam
from ringfence.networks import tanh_log_prob


class ClonedState(State):
    clone: Any
    clone_optimiser: Any


@dataclass(frozen=True)
class Printed(PaperCPQ):
    name: ClassVar[str] = "cpq-printed"

    cloned_start: bool = False  # the actor starts as a clone of the log
    reward_offset: float = 0.0  # added to every reward, so that none is negative
    alpha_cap: float = 1e6
    alpha_start: float = 0.0  # of the tuned alpha

    def init(self, key, limit, spec):
        printed = super().init(key, limit, spec)
        if self.alpha is None:
            printed = replace(printed, alpha=jnp.asarray(self.alpha_start, jnp.float32))
        if not self.cloned_start:
            return printed
        return ClonedState(**vars(printed), clone=printed.actor, clone_optimiser=Adam(1e-3).init(printed.actor))

    def update_detector(self, state, batch, key):
        after, metrics = super().update_detector(state, batch, key)
        if not self.cloned_start:
            return after, metrics
        gradient = jax.grad(lambda actor: -jnp.mean(tanh_log_prob(actor(batch.observations), batch.actions)))(state.clone)
        clone, optimiser = Adam(1e-3).step(gradient, state.clone_optimiser, state.clone)
        return replace(after, clone=clone, clone_optimiser=optimiser), metrics

    def calibrate_detector(self, state, batch, key):
        after, report = super().calibrate_detector(state, batch, key)
        return (replace(after, actor=after.clone) if self.cloned_start else after), report

    def reward_target(self, state, batch, next_actions):
        return super().reward_target(state, batch._replace(rewards=batch.rewards + self.reward_offset), next_actions)

    def next_alpha(self, alpha, ood_values, ood, ood_limit):
        return jnp.minimum(super().next_alpha(alpha, ood_values, ood, ood_limit), self.alpha_cap)
