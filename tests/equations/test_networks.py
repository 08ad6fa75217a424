"""The networks and distributions against plain calculations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from ringfence.networks import (
    CVAE,
    MLP,
    Critic,
    Gaussian,
    TanhGaussianActor,
    layer_norm,
    polyak,
    sample_tanh,
    tanh_log_prob,
)
from tests.equations import reference

pytestmark = pytest.mark.usefixtures("quick_compilation")
KEY = jax.random.key(0)


@pytest.mark.parametrize("normalise", [False, True])
def test_an_mlp_is_linear_layers_with_relu_between_and_layer_norm_if_asked(normalise):
    network = MLP(3, 2, (5, 4), normalise=normalise, key=KEY)
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    expected = [reference.mlp(network, row) for row in x]
    np.testing.assert_allclose(network(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5)


def test_layer_norm_gives_zero_mean_and_unit_variance_over_features():
    x = np.random.default_rng(0).normal(3.0, 5.0, size=(4, 50)).astype(np.float32)
    y = np.asarray(layer_norm(jnp.asarray(x)))
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(y.std(-1), 1, atol=1e-4)


def test_the_gradient_of_layer_norm_matches_finite_differences():
    """Its backward pass is written by hand, for speed."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(2.0, 3.0, size=(2, 6)), rng.normal(size=(2, 6))

    def plain():
        centred = x - x.mean(-1, keepdims=True)
        return float(np.sum(weights * centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5)))

    got = jax.grad(lambda z: jnp.sum(jnp.asarray(weights, jnp.float32) * layer_norm(z)))(jnp.asarray(x, jnp.float32))
    expected = [[reference.numerical_gradient(plain, x, (i, j)) for j in range(6)] for i in range(2)]
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)


def test_a_critic_gives_one_number_per_pair_of_any_batch_shape():
    critic = Critic(3, 2, (4,), key=KEY)
    s, a = jnp.ones((5, 7, 3)), jnp.zeros((5, 7, 2))
    assert critic(s, a).shape == (5, 7)
    assert critic(s, a)[0, 0] == pytest.approx(reference.q(critic, np.ones(3), np.zeros(2)), abs=1e-5)


def test_a_scaled_critic_is_its_network_times_its_scale_and_starts_where_asked():
    plain, scaled = Critic(3, 2, (4,), key=KEY), Critic(3, 2, (4,), scale=64.0, start=-160.0, key=KEY)
    rng = np.random.default_rng(0)
    s, a = rng.normal(size=(20, 3)), rng.uniform(-1, 1, size=(20, 2))
    np.testing.assert_allclose(scaled(s, a), 64.0 * plain(s, a) - 160.0, rtol=1e-4)
    np.testing.assert_allclose(scaled(s, a), [reference.q(scaled, *pair) for pair in zip(s, a, strict=True)], rtol=1e-4)


def test_the_latent_kl_equals_its_integral_summed_over_dimensions():
    mean, log_std = [0.7, -1.2], [-0.5, 0.3]

    def integrand(z, m, s):
        p = np.exp(-0.5 * ((z - m) / s) ** 2) / (s * np.sqrt(2 * np.pi))
        log_ratio = -0.5 * ((z - m) / s) ** 2 - np.log(s) + 0.5 * z**2
        return p * log_ratio

    parts = [integrate.quad(integrand, -30, 30, (m, np.exp(ls)))[0] for m, ls in zip(mean, log_std, strict=True)]
    kl = Gaussian(jnp.asarray(mean), jnp.asarray(log_std)).kl_to_standard()
    assert kl == pytest.approx(sum(parts), rel=1e-5)
    assert kl != pytest.approx(np.mean(parts), rel=0.1)  # a mean over dimensions is another quantity


def test_the_squashed_density_integrates_to_one_over_the_action_range():
    gaussian = Gaussian(jnp.asarray([0.4]), jnp.asarray([-0.3]))
    grid = np.tanh(np.linspace(-8, 8, 20001))
    density = np.exp(np.asarray(tanh_log_prob(gaussian, jnp.asarray(grid[:, None], jnp.float32))), dtype=np.float64)
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=2e-3)


def test_a_sample_comes_with_the_log_probability_of_the_executed_action():
    gaussian = Gaussian(jnp.asarray([[0.3, -0.8]]), jnp.asarray([[-1.0, -0.2]]))
    actions, log_prob = sample_tanh(gaussian, KEY, (50,))
    assert (jnp.abs(actions) < 1).all()
    np.testing.assert_allclose(log_prob, tanh_log_prob(gaussian, actions), rtol=1e-3, atol=1e-3)


def test_sampled_actions_have_the_mean_and_spread_of_the_gaussian_after_the_squash():
    gaussian = Gaussian(jnp.asarray([0.5]), jnp.asarray([-0.7]))
    actions, _ = sample_tanh(gaussian, KEY, (20000,))
    u = np.arctanh(np.asarray(actions, np.float64))
    assert u.mean() == pytest.approx(0.5, abs=0.02)
    assert u.std() == pytest.approx(np.exp(-0.7), abs=0.02)


def test_log_probabilities_stay_finite_at_the_very_edge_of_the_action_range():
    gaussian = Gaussian(jnp.zeros((1, 2)), jnp.full((1, 2), -5.0))
    assert np.isfinite(tanh_log_prob(gaussian, jnp.asarray([[1.0, -1.0]]))).all()


def test_an_actor_keeps_its_spread_in_bounds_and_its_mode_inside_the_range():
    actor = TanhGaussianActor(3, 2, (4,), key=KEY)
    gaussian = actor(1e3 * jax.random.normal(KEY, (20, 3)))
    assert (gaussian.log_std >= -5).all()
    assert (gaussian.log_std <= 2).all()
    assert (jnp.abs(actor.mode(jnp.ones((4, 3)))) <= 1).all()


def test_encoding_n_actions_of_a_state_is_encoding_each_of_them():
    cvae = CVAE(3, 2, 4, (8, 8), key=KEY)
    rng = np.random.default_rng(0)
    states, actions = rng.normal(size=(5, 3)), rng.uniform(-1, 1, size=(6, 5, 2))
    many = cvae.encode(jnp.asarray(states, jnp.float32), jnp.asarray(actions, jnp.float32))
    for i in range(6):
        for j in range(5):
            mean, log_std = reference.latent(cvae, states[j], actions[i, j])
            np.testing.assert_allclose(many.mean[i, j], mean, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(many.log_std[i, j], log_std, rtol=1e-4, atol=1e-5)


def test_polyak_averaging_moves_the_target_by_tau():
    moved = polyak({"w": jnp.asarray([0.0, 1.0])}, {"w": jnp.asarray([10.0, 11.0])}, 0.1)
    np.testing.assert_allclose(moved["w"], [1.0, 2.0], rtol=1e-6)
