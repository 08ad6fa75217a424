"""BEAR-Lagrangian's MMD against a double loop, its Lagrangian by hand, its warm-up and its two multipliers."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import BEARLag
from ringfence.algorithms.bear_lag import mmd, penalised_loss
from ringfence.algorithms.critics import Critics
from ringfence.algorithms.lagrange import Multiplier
from tests.equations import reference
from tests.equations.conftest import ACT, OBS, ROWS, policy_of, small_state

KEY = jax.random.key(5)
METHOD = BEARLag(
    hidden=(8, 8), candidates=4, mmd_samples=3, cvae_steps=1, warmup_steps=1, batch_size=ROWS, lambda_rate=0.1
)


def largest(tree):
    return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def same(one, other):
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


@pytest.fixture
def state():
    return small_state(METHOD)


def multiplier(value):
    return Multiplier(jnp.asarray(value), jnp.asarray(value / METHOD.lambda_rate), jnp.asarray(0.0))


# The MMD


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian"])
def test_the_mmd_is_that_of_a_double_loop(kernel):
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, size=(4, ROWS, ACT)), rng.uniform(-1, 1, size=(3, ROWS, ACT))
    width = 0.7

    def k(a, b):
        distance = sum(abs(p - q) if kernel == "laplacian" else (p - q) ** 2 for p, q in zip(a, b, strict=True))
        return np.exp(-distance / (2 * width))

    expected = []
    for i in range(ROWS):
        xs, ys = x[:, i], y[:, i]
        within_x = sum(k(a, b) for a in xs for b in xs) / len(xs) ** 2
        within_y = sum(k(a, b) for a in ys for b in ys) / len(ys) ** 2
        between = sum(k(a, b) for a in xs for b in ys) / (len(xs) * len(ys))
        expected.append(np.sqrt(within_x - 2 * between + within_y + 1e-6))
    np.testing.assert_allclose(mmd(jnp.asarray(x), jnp.asarray(y), kernel, width), expected, rtol=1e-4)


def test_the_mmd_is_least_where_the_samples_are_the_same_and_its_gradient_stays_finite_there():
    x = jax.random.uniform(KEY, (4, ROWS, ACT))
    np.testing.assert_allclose(mmd(x, x, "laplacian", 1.0), 1e-3, rtol=0.2)
    gradient = jax.grad(lambda a: mmd(a, x, "laplacian", 1.0).sum())(x)
    assert np.isfinite(gradient).all()
    assert float(mmd(x, x + 0.5, "laplacian", 1.0).min()) > 0.05


def test_both_sides_of_the_mmd_are_executed_actions(state, batch):
    """After the squash, in the range of the logged actions: pre-tanh actions would leave [-1, 1]."""
    far = replace(state, actor=jax.tree.map(lambda x: 20.0 * x, state.actor))
    actions, _ = METHOD.distance_to_behaviour(far.actor, far, batch.observations, KEY)
    behaviour = METHOD.behaviour(far, batch.observations, KEY)
    assert np.abs(actions).max() <= 1.0
    assert np.abs(actions).max() > 0.99  # the squash was at work
    assert np.abs(behaviour).max() <= 1.0


# The Lagrangian


def test_the_actor_loss_is_the_lagrangian_of_both_constraints():
    reward, cost = np.arange(6.0).reshape(2, 3), np.array([[1.0, 4, 2], [0, 2, 5]])
    distance = np.array([0.1, 0.2, 0.6])
    expected = -(reward.mean() - 0.5 * cost.mean()) + 7.0 * 0.3
    got = penalised_loss(*map(jnp.asarray, (reward, cost, distance, 0.5, 7.0)))
    assert float(got) == pytest.approx(expected, rel=1e-5)


def test_the_lagrangian_takes_the_smaller_reward_critic_of_the_actors_own_samples(state, batch):
    state = replace(state, multiplier=multiplier(0.5))
    actions, distance = METHOD.distance_to_behaviour(state.actor, state, batch.observations, KEY)
    total = 0.0
    for sample in np.asarray(actions):
        first, second = (reference.q_each(c, batch.observations, sample) for c in state.critics.reward)
        total += np.mean(
            np.minimum(first, second) - 0.5 * reference.q_each(state.critics.cost, batch.observations, sample)
        )
    loss, seen = METHOD.lagrangian(state.actor, state, batch.observations, KEY)
    assert float(loss) == pytest.approx(-total / len(actions) + 1.0 * float(distance.mean()), rel=1e-4)
    assert float(seen["mmd"]) == pytest.approx(float(distance.mean()))


# Stages


@pytest.mark.slow
def test_the_warm_up_only_clones(state, batch):
    """Neither the critics' values nor the prices have a say in the actor's step, however large they are."""
    loud = Critics(*jax.tree.map(lambda x: 100.0 * x, tuple(state.critics)))
    a, b = (
        METHOD.update_cloning(replace(state, critics=c, multiplier=multiplier(p)), batch, KEY)[0]
        for c, p in ((state.critics, 0.0), (loud, 50.0))
    )
    assert same(a.actor, b.actor)
    assert largest(jax.tree.map(jnp.subtract, a.actor, state.actor)) > 0
    dear = replace(state, mmd_multiplier=replace(state.mmd_multiplier, log=jnp.log(3.0)))
    distance = METHOD.distance_to_behaviour(state.actor, state, batch.observations, KEY)[1].mean()
    loss, seen = METHOD.cloning_loss(state.actor, dear, batch.observations, KEY)
    assert float(loss) == pytest.approx(3.0 * float(distance), rel=1e-5)
    assert float(seen["mmd"]) == pytest.approx(float(distance))


@pytest.mark.slow
def test_the_price_of_cost_rests_until_the_policy_stage(state, batch):
    broken = replace(state, limit=jnp.asarray(-100.0))
    for update in (METHOD.update_generator, METHOD.update_cloning):
        after, _ = update(broken, batch, KEY)
        assert same(after.multiplier, state.multiplier)
    after, metrics = METHOD.update(broken, batch, KEY)
    assert float(metrics["lambda_cost"]) == pytest.approx(0.1 * (float(metrics["qc_policy"]) + 100.0), rel=1e-4)


@pytest.mark.slow
def test_the_price_of_the_mmd_moves_in_the_warm_up_and_after_but_not_while_the_generator_learns(state, batch):
    """As in BEAR's code. Adam's first step has the size of its rate, and its sign is that of MMD - epsilon."""
    after, _ = METHOD.update_generator(state, batch, KEY)
    assert same(after.mmd_multiplier, state.mmd_multiplier)
    for epsilon, sign in ((1e-4, 1.0), (2.0, -1.0)):  # no MMD is above 2, nor below 1e-3
        method = replace(METHOD, epsilon=epsilon)
        for update in (method.update_cloning, method.update):
            assert float(update(state, batch, KEY)[0].mmd_multiplier.log) == pytest.approx(sign * 1e-3, rel=1e-3)


def test_the_policy_stage_leaves_the_generator_alone(state, batch):
    after, _ = METHOD.update(state, batch, KEY)
    assert same(after.generator, state.generator)
    for part in ("actor", "target_actor", "critics", "targets"):
        assert not same(getattr(after, part), getattr(state, part))


# The policy file


def test_the_policy_file_chooses_as_training_does(state):
    loud = Critics(*jax.tree.map(lambda x: 30.0 * x, tuple(state.critics)))
    state = replace(state, critics=loud, multiplier=multiplier(0.8))
    observations = np.random.default_rng(0).normal(size=(40, OBS)).astype(np.float32)
    policy = policy_of(METHOD.export(state))
    np.testing.assert_allclose(policy(observations), METHOD.act(state, jnp.asarray(observations)), atol=1e-5)


def test_an_epsilon_that_the_behaviour_itself_cannot_keep_is_reported():
    row = {"lambda_cost": 0.0, "qc_policy": 1.0, "mmd_floor": 0.2}
    assert "out of reach" in METHOD.warnings("policy", [row])[0]
    assert not METHOD.warnings("policy", [{**row, "mmd_floor": 0.01}])
    assert not METHOD.warnings("warm-up", [{"mmd": 1.0}])
