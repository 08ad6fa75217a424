"""One step of an optimiser."""

from typing import TypeVar

import optax

Params = TypeVar("Params")


def adam_step(
    optimiser: optax.GradientTransformation, gradient: Params, state: optax.OptState, params: Params
) -> tuple[Params, optax.OptState]:
    """The parameters and the optimiser's state after one step down the gradient."""
    updates, state = optimiser.update(gradient, state, params)
    moved: Params = optax.apply_updates(params, updates)
    return moved, state
