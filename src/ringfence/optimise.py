"""Adam (Kingma and Ba, 2015)."""

from typing import Any, NamedTuple, TypeVar, cast

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from ringfence.kernels import calls

Params = TypeVar("Params")
DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8  # the paper's


class Adam(NamedTuple):
    """Adam with this learning rate. Its state is that of `optax.adam`."""

    rate: float

    def init(self, params: Any) -> optax.OptState:
        return self._optax.init(params)

    def step(self, gradient: Params, state: optax.OptState, params: Params) -> tuple[Params, optax.OptState]:
        """The parameters and the state after one step down the gradient."""
        averages = cast(Any, state)[0]
        if calls.can_step(params, gradient, averages.mu, averages.nu):
            return self._in_one_pass(gradient, state, params)
        updates, state = self._optax.update(gradient, state, cast(Any, params))
        moved: Params = optax.apply_updates(cast(Any, params), updates)
        return moved, state

    def _in_one_pass(self, gradient: Params, state: Any, params: Params) -> tuple[Params, optax.OptState]:
        averages, *rest = state
        count = averages.count + 1
        corrections = 1.0 - jnp.array([DECAY, SQUARE_DECAY], jnp.float32) ** count
        moved, mean, square = calls.adam(
            gradient,
            params,
            averages.mu,
            averages.nu,
            corrections,
            rate=np.float32(self.rate),
            decay=np.float32(DECAY),
            square_decay=np.float32(SQUARE_DECAY),
            epsilon=np.float32(EPSILON),
        )
        return moved, (averages._replace(count=count, mu=mean, nu=square), *rest)

    @property
    def _optax(self) -> optax.GradientTransformation:
        return optax.adam(self.rate, DECAY, SQUARE_DECAY, EPSILON)


def falling(done: Any) -> Array:
    """The share of a full step when `done` of all steps are made: from 1 to 0 as a cosine."""
    return 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip(done, 0.0, 1.0)))
