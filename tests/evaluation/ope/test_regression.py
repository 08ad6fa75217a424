"""Networks that are fitted to rows of a log."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.evaluation.ope.regression import ADAM, EARLY, MEMORY, MOST_OFTEN, draw_weights, fit_networks, scaling
from ringfence.networks import MLP


def squares(outputs, targets):
    return jnp.mean((outputs - targets) ** 2)


def test_early_rows_are_drawn_more_often():
    lengths = np.array([3, 2])
    weights = draw_weights(lengths)
    early = np.exp(-np.array([0, 1, 2, 0, 1]) / MEMORY)
    assert weights == pytest.approx((1 - EARLY) / 5 + EARLY * early / early.sum())
    assert weights.sum() == pytest.approx(1)
    one_long = draw_weights(np.array([100_000]))
    assert one_long.max() == pytest.approx(MOST_OFTEN / 100_000)
    assert one_long[-1] == pytest.approx((1 - EARLY) / 100_000)


def test_each_network_learns_from_the_rows_that_are_drawn_for_it():
    """Rows 0 to 99 say 2, the others -1. No input tells them apart, so that a network says the mean of what it draws."""
    x, y = np.zeros((200, 1)), np.where(np.arange(200) < 100, 2.0, -1.0)[:, None]
    first = np.where(np.arange(200) < 100, 1.0, 0.0)
    mixed = np.where(np.arange(200) < 100, 3.0, 1.0)
    networks = fit_networks(x, y, [first, 1 - first, mixed], (8,), squares, 600, seed=0)
    said = [float(network(jnp.zeros((1, 1)))[0, 0]) for network in networks]
    assert said == pytest.approx([2, -1, (3 * 2 - 1) / 4], abs=0.15)


def test_a_network_learns_a_function_and_starts_from_its_own_seed():
    x = np.random.default_rng(0).uniform(-1, 1, (2000, 2))
    y = np.abs(x[:, :1]) - x[:, 1:]
    networks = fit_networks(x, y, [np.ones(2000)] * 2, (32, 32), squares, 800, seed=0)
    outputs = [np.asarray(network(jnp.asarray(x, jnp.float32))) for network in networks]
    assert all(np.abs(output - y).mean() < 0.03 for output in outputs)
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3
    again = fit_networks(x, y, [np.ones(2000)] * 2, (32, 32), squares, 800, seed=0)[1]
    np.testing.assert_array_equal(outputs[1], np.asarray(again(jnp.asarray(x, jnp.float32))))


def test_one_step_is_that_of_adam_on_the_drawn_rows():
    """A linear network from 1 to y with one row that has all the weight: the first step of Adam is its rate, up or down."""
    y = np.array([[5.0], [-5.0]])
    (network,) = fit_networks(np.ones((2, 1)), y, [np.array([0.0, 1.0])], (), squares, 1, seed=0)
    fresh = MLP(1, 1, (), normalise=True, key=jax.random.split(jax.random.key(0))[0])
    moved = float(network.layers[0].bias[0] - fresh.layers[0].bias[0])
    assert moved == pytest.approx(-ADAM.rate, rel=1e-3)  # towards -5, by a full step


def test_columns_are_scaled_by_their_spread_and_a_constant_one_is_only_moved():
    columns = np.array([[1.0, 7.0], [3.0, 7.0]], np.float32)
    centre, spread = scaling(columns)
    assert centre.tolist() == [2.0, 7.0]
    assert spread.tolist() == [1.0, 1.0]
