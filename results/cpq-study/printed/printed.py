"""CPQ as printed, with what the paper leaves open as options."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ringfence.algorithms.cpq import PaperCPQ, State, safe_value
from ringfence.algorithms.critics import smaller_value
from ringfence.optimise import Adam
from ringfence.networks import sample_tanh, tanh_log_prob


def score_function_loss(objective, log_prob):
    """- E objective(s, a) log pi(a | s), both of shape (n, batch): its gradient is the score-function policy gradient, which
    sees where the indicator changes. The mean of a state's other n - 1 actions is the baseline; it does not change the
    expectation."""
    n = objective.shape[0]
    baseline = (objective.sum(0) - objective) / max(n - 1, 1)
    return -jnp.mean(jax.lax.stop_gradient(objective - baseline) * log_prob)


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
    actor_gradient: str = "reparametrised"  # or "score": which "policy gradient" line 14 means

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

    def actor_loss(self, actor, critics, batch, state, key):
        if self.actor_gradient != "score":
            return super().actor_loss(actor, critics, batch, state, key)
        gaussian = actor(batch.observations)
        actions = jax.lax.stop_gradient(sample_tanh(gaussian, key, (self.ood_samples,))[0])
        qr = smaller_value(critics.reward, batch.observations, actions)
        qc = critics.cost(batch.observations, actions)
        loss = score_function_loss(safe_value(qr, qc, state.limit), tanh_log_prob(gaussian, actions))
        means = {"indicator": jnp.mean(qc <= state.limit), "qr_policy": qr.mean(), "qc_policy": qc.mean()}
        return loss, {"actor_loss": loss, **means}
