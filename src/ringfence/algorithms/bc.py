"""Behaviour cloning: the policy that makes the logged actions most likely.

    maximise  E_(s,a)~log  log pi(a | s),      pi(. | s) = tanh of a Gaussian

It learns from the whole log and knows nothing of cost. It measures whether a method does more than copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.checks import check_settings
from ringfence.algorithms.interface import Batch, Export, Metrics, Sample, Spec, Stage
from ringfence.limits import DISCOUNT
from ringfence.networks import TanhGaussianActor, tanh_log_prob
from ringfence.optimise import Adam

Scalar = Float[Array, ""]


class State(eqx.Module):
    actor: TanhGaussianActor
    optimiser: optax.OptState


def cloning_loss(actor: TanhGaussianActor, batch: Batch) -> Scalar:
    """- E log pi(a | s) over the logged pairs: the executed action's density, tanh included."""
    return -jnp.mean(tanh_log_prob(actor(batch.observations), batch.actions))


@dataclass(frozen=True)
class BC:
    """Behaviour cloning on the whole log. Its limit changes nothing but what evaluations compare with."""

    name: ClassVar[str] = "bc"
    shown: ClassVar[tuple[str, ...]] = ("log_likelihood", "actor_loss")
    small: ClassVar[Mapping[str, Any]] = {}

    limit: float | None = None
    discount: float = DISCOUNT  # only of the diagnostics, and of BC-Safe's choice of episodes
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self, key: PRNGKeyArray, limit: Scalar, spec: Spec) -> State:
        actor = TanhGaussianActor(spec.observation_dim, spec.action_dim, self.hidden, key=key)
        return State(actor, self._adam.init(actor))

    def stages(self, steps: int) -> tuple[Stage, ...]:
        return (Stage("policy", steps, self.update),)

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        loss, gradient = jax.value_and_grad(cloning_loss)(state.actor, batch)
        actor, optimiser = self._adam.step(gradient, state.optimiser, state.actor)
        return replace(state, actor=actor, optimiser=optimiser), {"actor_loss": loss}

    def diagnose(self, state: State, sample: Sample, key: PRNGKeyArray) -> Metrics:
        batch = sample.batch
        return {
            "log_likelihood": -cloning_loss(state.actor, batch),
            "policy_std": state.actor(batch.observations).std.mean(),
            "policy_distance": jnp.sqrt(jnp.mean((state.actor.mode(batch.observations) - batch.actions) ** 2)),
        }

    def export(self, state: State) -> Export:
        return Export("tanh-gaussian", {"actor": state.actor})

    def warnings(self, stage: str, history: list[Mapping[str, float]]) -> list[str]:
        return []

    @property
    def _adam(self) -> Adam:
        return Adam(self.learning_rate)
