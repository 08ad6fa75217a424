"""Networks fitted to rows of a log, several side by side."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ringfence.evaluation.ope.features import Rows
from ringfence.networks import MLP, polyak
from ringfence.optimise import Adam, falling

BATCH = 128
ADAM = Adam(4e-3)  # falls to 0 as a cosine
EARLY, MEMORY = 0.3, 33.0  # so much of a batch is drawn from early steps, with weights that fall by 1 / e in so many
MOST_OFTEN = 12.0  # a row is drawn at most so many times as often as it would be if all were drawn alike

Loss = Callable[[jax.Array, jax.Array], jax.Array]
"""(outputs, targets), a row each, to one number."""


def fit_networks(
    x: Rows, y: Rows, draws: Sequence[NDArray[np.float64]], hidden: Sequence[int], loss: Loss, steps: int, seed: int
) -> tuple[MLP, ...]:
    """A network from x to y for each of `draws`, which says how often each row is drawn for it, relative to others."""
    inputs, targets = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)

    def fit(member: int) -> MLP:
        up_to = np.cumsum(draws[member])
        key = jax.random.key(1000 * seed + member)
        network: MLP = _fit(
            inputs, targets, jnp.asarray(up_to / up_to[-1], jnp.float32), key, tuple(hidden), loss, steps
        )
        network.layers[0].weight.block_until_ready()
        return network

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # a network is too small for two cores, two networks are not
        return tuple(pool.map(fit, range(len(draws))))


@eqx.filter_jit
def _fit(
    x: jax.Array, y: jax.Array, up_to: jax.Array, key: jax.Array, hidden: tuple[int, ...], loss: Loss, steps: int
) -> MLP:
    """`up_to` is the probability that one of the rows up to each is drawn."""
    first, draw = jax.random.split(key)
    network = MLP(x.shape[1], y.shape[1], hidden, normalise=True, key=first)

    def one(i: jax.Array, carried: tuple[MLP, object]) -> tuple[MLP, object]:
        network, state = carried
        drawn = 1.0 - jax.random.uniform(
            jax.random.fold_in(draw, i), (BATCH,)
        )  # not 0: rows of no weight are not drawn
        some = jnp.searchsorted(up_to, drawn)
        gradient = jax.grad(lambda network: loss(network(x[some]), y[some]))(network)
        moved, state = ADAM.step(gradient, state, network)
        return polyak(network, moved, falling(i / steps)), state

    fitted: MLP = jax.lax.fori_loop(0, steps, one, (network, ADAM.init(network)))[0]
    return fitted


def draw_weights(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """How often each row of episodes of these lengths is drawn, relative to others: all alike, but for the share EARLY,
    whose weights fall with the steps since the episode began. In a log of few long episodes there are not enough early rows
    for that share, and MOST_OFTEN bounds it."""
    steps = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    early = np.exp(-steps / MEMORY)
    weights: NDArray[np.float64] = (1 - EARLY) / len(steps) + EARLY * early / early.sum()
    return np.minimum(weights, MOST_OFTEN / len(steps))


def scaling(columns: Rows) -> tuple[Rows, Rows]:
    """Centre and spread of each column; a column that does not change has a spread of 1."""
    centre, spread = columns.mean(0, np.float64), columns.std(0, np.float64)
    return centre.astype(np.float32), np.where(spread > 1e-9, spread, 1.0).astype(np.float32)
