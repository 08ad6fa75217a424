"""The fair trial of the printed algorithm (results/cpq-study/printed): the score-function gradient that it has besides."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from ringfence.networks import Gaussian, sample_tanh, tanh_log_prob
from tests.equations.conftest import SMALL, small_state

pytestmark = pytest.mark.usefixtures("quick_compilation")
KEY = jax.random.key(5)
SCRIPT = Path(__file__).parents[2] / "results" / "cpq-study" / "printed" / "printed.py"
SPEC = importlib.util.spec_from_file_location("printed_trials", SCRIPT)
printed_trials = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(printed_trials)
Printed = printed_trials.Printed


def test_the_score_function_gradient_feels_the_edge_of_the_indicator():
    """One action, Qr = 1 everywhere, safe below an edge: the reparametrised gradient is 0, the true one is not."""
    mean, std, edge = 0.2, 0.5, 0.4  # in the Gaussian's own units, before the squash
    true_gradient = -norm.pdf((edge - mean) / std) / std  # d/dmean P(u <= edge)
    gaussian = Gaussian(jnp.full((200, 1), mean), jnp.full((200, 1), jnp.log(std)))
    actions, _ = sample_tanh(gaussian, KEY, (500,))

    def loss(m):
        moved = Gaussian(gaussian.mean + m, gaussian.log_std)
        safe = (actions[..., 0] <= np.tanh(edge)).astype(jnp.float32)
        return printed_trials.score_function_loss(safe, tanh_log_prob(moved, actions))

    assert -jax.grad(loss)(0.0) == pytest.approx(true_gradient, rel=0.03)

    def reparametrised(m):
        drawn, _ = sample_tanh(Gaussian(gaussian.mean + m, gaussian.log_std), KEY, (500,))
        return jnp.mean(jnp.where(drawn[..., 0] <= np.tanh(edge), 1.0, 0.0))

    assert jax.grad(reparametrised)(0.0) == 0


def test_the_baseline_of_the_score_function_is_the_mean_of_the_other_actions():
    objective, log_prob = np.array([[1.0, 5.0], [2.0, 6.0], [6.0, 1.0]]), np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    total = 0.0
    for i in range(3):
        for j in range(2):
            others = [objective[k, j] for k in range(3) if k != i]
            total += (objective[i, j] - np.mean(others)) * log_prob[i, j]
    assert printed_trials.score_function_loss(jnp.asarray(objective), jnp.asarray(log_prob)) == pytest.approx(
        -total / 6
    )


def test_a_trial_without_changes_is_the_printed_algorithm(batch, printed):
    state = small_state(printed, limit=10.0)  # where every action is safe
    ours, theirs = Printed(**SMALL).update(state, batch, KEY)[0], printed.update(state, batch, KEY)[0]
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_trial_with_the_score_function_moves_the_actor_by_log_pi_alone(batch, printed):
    """Qr and Qc of each drawn action are numbers; the gradient is that of log pi of the actions, weighted by them."""
    method = Printed(actor_gradient="score", **SMALL)
    state = small_state(printed)
    gaussian = state.actor(batch.observations)
    actions = sample_tanh(gaussian, KEY, (method.ood_samples,))[0]
    qr = jnp.minimum(*(critic(batch.observations, actions) for critic in state.critics.reward))
    qc = state.critics.cost(batch.observations, actions)
    state = replace(state, limit=jnp.median(qc))
    objective = np.where(qc <= state.limit, qr, 0.0)

    def expected(actor):
        return printed_trials.score_function_loss(objective, tanh_log_prob(actor(batch.observations), actions))

    loss, _ = method.actor_loss(state.actor, state.critics, batch, state, KEY)
    assert loss == pytest.approx(float(expected(state.actor)), rel=1e-4)
    found = jax.grad(lambda actor: method.actor_loss(actor, state.critics, batch, state, KEY)[0])(state.actor)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(jax.grad(expected)(state.actor)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
