"""BCQ-Lagrangian's targets, perturbation and choice against loops in NumPy, and where gradients flow."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import BCQLag
from ringfence.algorithms.bcq_lag import perturb, perturbation_loss
from ringfence.algorithms.candidates import (
    balanced_normal,
    best_candidate_target,
    choose,
    chosen_cost_target,
    critic_losses,
    generate,
    soft_clipped,
)
from ringfence.algorithms.critics import Critics
from ringfence.algorithms.lagrange import Multiplier
from tests.equations import reference
from tests.equations.conftest import ACT, OBS, ROWS, policy_of, small_state

pytestmark = pytest.mark.usefixtures("quick_compilation")
KEY = jax.random.key(5)
DISCOUNT, N = 0.9, 4
METHOD = BCQLag(hidden=(8, 8), candidates=N, cvae_steps=1, batch_size=ROWS, discount=DISCOUNT, lambda_rate=0.1)


def large(critic, factor=30.0):
    """A critic whose values differ enough between actions that a wrong choice shows."""
    return jax.tree.map(lambda x: factor * x, critic)


@pytest.fixture
def state():
    state = small_state(METHOD)
    first, second = state.targets.reward
    return replace(state, targets=Critics((large(first), large(second)), large(state.targets.cost)))


@pytest.fixture
def candidates():
    return jax.random.uniform(KEY, (N, ROWS, ACT), minval=-1, maxval=1)


def largest(tree):
    return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def table(critic, observations, candidates):
    """Q(s_i, a_ji) as (n, batch), by a double loop."""
    return np.array(
        [[reference.q(critic, s, a) for s, a in zip(np.asarray(observations), row, strict=True)]
         for row in np.asarray(candidates)]
    )  # fmt: skip


# The candidates


def test_generated_actions_decode_clipped_latents(state, batch):
    latents = 2.0 * jax.random.normal(KEY, (N, ROWS, 2 * ACT))
    got = generate(state.generator, batch.observations, latents)
    for j in range(N):
        for i, s in enumerate(np.asarray(batch.observations)):
            z = np.clip(np.asarray(latents[j, i]), -0.5, 0.5)
            expected = np.tanh(reference.mlp(state.generator.decoder, np.concatenate([s, z])))
            np.testing.assert_allclose(got[j, i], expected, atol=1e-5)


def test_the_perturbation_moves_by_at_most_phi_and_stays_in_range(state, batch, candidates):
    edge = candidates.at[0].set(1.0)
    strong = jax.tree.map(lambda x: 50.0 * x, state.perturbation)
    got = np.asarray(perturb(strong, batch.observations, edge, 0.05))
    for j in range(N):
        for i, s in enumerate(np.asarray(batch.observations)):
            a = np.asarray(edge[j, i], np.float64)
            move = 0.05 * np.tanh(reference.mlp(strong, np.concatenate([s, a])))
            np.testing.assert_allclose(got[j, i], np.clip(a + move, -1, 1), atol=1e-5)
    moves = np.abs(got - np.asarray(edge))
    assert moves.max() <= 0.05 + 1e-6
    assert moves.max() > 0.04
    assert np.abs(got).max() <= 1.0


def test_fixed_draws_do_not_lean_to_one_side():
    for count in (6, 7):
        draws = balanced_normal(KEY, count, 3)
        assert draws.shape == (count, 3)
        np.testing.assert_allclose(draws.sum(0), 0.0, atol=1e-6)
    assert len(np.unique(np.asarray(balanced_normal(KEY, 6, 3)), axis=0)) == 6


# The targets


def test_soft_clipping_weighs_the_smaller_value_by_its_weight():
    np.testing.assert_allclose(soft_clipped(jnp.asarray([1.0, 5.0]), jnp.asarray([3.0, 1.0]), 0.75), [1.5, 2.0])


def test_the_reward_target_is_the_best_soft_clipped_candidate_and_stops_at_termination(state, batch, candidates):
    first, second = (table(critic, batch.next_observations, candidates) for critic in state.targets.reward)
    expected = []
    for i in range(ROWS):
        options = [0.7 * min(first[j, i], second[j, i]) + 0.3 * max(first[j, i], second[j, i]) for j in range(N)]
        expected.append(float(batch.rewards[i]) + DISCOUNT * float(batch.continues[i]) * max(options))
    got = best_candidate_target(state.targets, batch, candidates, DISCOUNT, 0.7)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    stopped = np.asarray(batch.continues) == 0
    np.testing.assert_array_equal(np.asarray(got)[stopped], np.asarray(batch.rewards)[stopped])


@pytest.mark.parametrize("price", [0.0, 0.5, 20.0])
def test_the_cost_target_follows_the_action_that_the_policy_would_take(state, batch, candidates, price):
    """Not the costliest candidate, the cheapest or a mixture of them, and nothing after a termination."""
    reward = table(state.targets.reward[0], batch.next_observations, candidates)
    cost = table(state.targets.cost, batch.next_observations, candidates)
    chosen = [cost[np.argmax(reward[:, i] - price * cost[:, i]), i] for i in range(ROWS)]
    expected = np.asarray(batch.costs) + DISCOUNT * np.asarray(batch.continues) * chosen
    got = chosen_cost_target(state.targets, batch, candidates, jnp.asarray(price), DISCOUNT)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    for wrong in (cost.max(0), 0.75 * cost.min(0) + 0.25 * cost.max(0)):
        other = np.asarray(batch.costs) + DISCOUNT * np.asarray(batch.continues) * wrong
        assert np.abs(other - got).max() > 0.01
    stopped = np.asarray(batch.continues) == 0
    np.testing.assert_array_equal(np.asarray(got)[stopped], np.asarray(batch.costs)[stopped])


def test_a_price_moves_the_choice_from_the_most_rewarding_to_the_cheapest_candidate(state, batch, candidates):
    reward = table(state.targets.reward[0], batch.observations, candidates)
    cost = table(state.targets.cost, batch.observations, candidates)
    for price, best in ((0.0, reward.argmax(0)), (1e6, cost.argmin(0))):
        got = choose(state.targets, batch.observations, candidates, jnp.asarray(price))
        np.testing.assert_array_equal(got, np.asarray(candidates)[best, np.arange(ROWS)])


# The losses


def test_critic_losses_are_mean_squared_errors_and_each_critic_steps_down_its_own(state, batch):
    reward_target, cost_target = np.linspace(-1, 1, ROWS), np.linspace(2, 3, ROWS)
    values = [
        reference.q_each(c, batch.observations, batch.actions) for c in (*state.critics.reward, state.critics.cost)
    ]
    loss, (reward_loss, cost_loss) = critic_losses(state.critics, batch, reward_target, cost_target)
    assert float(reward_loss) == pytest.approx(sum(np.mean((q - reward_target) ** 2) for q in values[:2]), rel=1e-4)
    assert float(cost_loss) == pytest.approx(np.mean((values[2] - cost_target) ** 2), rel=1e-4)
    assert float(loss) == pytest.approx(float(reward_loss + cost_loss))

    def gradient(part):
        return jax.grad(lambda critics: critic_losses(critics, batch, reward_target, cost_target)[1][part])(
            state.critics
        )

    assert largest(gradient(0).cost) == 0.0
    assert largest(gradient(1).reward) == 0.0  # the cost loss must not step the reward critics
    assert largest(gradient(0).reward[0]) > 0
    assert largest(gradient(0).reward[1]) > 0
    assert largest(gradient(1).cost) > 0


def test_the_perturbation_raises_the_penalised_value(state, batch, candidates):
    price = 0.7
    loss = perturbation_loss(
        state.perturbation, state.critics, batch.observations, candidates[:1], jnp.asarray(price), 0.05
    )
    moved = np.asarray(perturb(state.perturbation, batch.observations, candidates, 0.05))[0]
    reward = reference.q_each(state.critics.reward[0], batch.observations, moved)
    cost = reference.q_each(state.critics.cost, batch.observations, moved)
    assert float(loss) == pytest.approx(-np.mean(reward - price * cost), rel=1e-4)


# The update


def test_the_generator_stage_only_clones(state, batch):
    """No penalty in a warm-up: the multiplier, the critics and the perturbation stay, though the limit is broken."""
    broken = replace(state, limit=jnp.asarray(-100.0))
    after, _ = METHOD.update_generator(broken, batch, KEY)
    assert largest(jax.tree.map(jnp.subtract, after.generator, state.generator)) > 0
    for part in ("critics", "targets", "perturbation", "multiplier"):
        assert all(map(np.array_equal, jax.tree.leaves(getattr(after, part)), jax.tree.leaves(getattr(state, part))))


def test_the_update_leaves_the_generator_alone_and_moves_everything_else(state, batch):
    after, _ = METHOD.update(state, batch, KEY)
    assert largest(jax.tree.map(jnp.subtract, after.generator, state.generator)) == 0.0
    for part in ("critics", "targets", "perturbation", "target_perturbation"):
        assert largest(jax.tree.map(jnp.subtract, getattr(after, part), getattr(state, part))) > 0


# The policy file


def test_the_policy_file_chooses_by_value_as_training_does(state):
    """In float32 on both sides: the same choice except where two candidates tie, so compare values."""
    state = replace(state, critics=state.targets, multiplier=Multiplier(*map(jnp.asarray, (0.8, 8.0, 0.0))))
    observations = np.random.default_rng(0).normal(size=(40, OBS)).astype(np.float32)
    policy = policy_of(METHOD.export(state))
    np.testing.assert_allclose(policy(observations), METHOD.act(state, jnp.asarray(observations)), atol=1e-5)
