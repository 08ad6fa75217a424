"""BC-Safe with a squared distance of actions in place of the likelihood: what does cloning itself earn by each?"""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp

from ringfence.algorithms.bc_safe import BCSafe


@dataclass(frozen=True)
class Proto(BCSafe):
    name: ClassVar[str] = "proto20"
    hidden: tuple = (128, 128)

    def update(self, state, batch, key):
        def loss(actor):
            return jnp.mean((actor.mode(batch.observations) - batch.actions) ** 2)

        value, gradient = jax.value_and_grad(loss)(state.actor)
        actor, optimiser = self._adam.step(gradient, state.optimiser, state.actor)
        return replace(state, actor=actor, optimiser=optimiser), {"actor_loss": value}
