"""Mistakes that are easy to make in BCQ- and BEAR-Lagrangian, in what their updates and policy files really do: each is
a test that fails if we make it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import BCQLag, BEARLag
from ringfence.algorithms import candidates as candidates_module
from ringfence.algorithms.lagrange import Multiplier
from tests.equations import reference
from tests.equations.conftest import ACT, OBS, ROWS, policy_of, small_state

KEY = jax.random.key(5)
RATE, DISCOUNT, N = 0.1, 0.9, 4
SMALL = {"hidden": (8, 8), "candidates": N, "cvae_steps": 1, "batch_size": ROWS}
SMALL |= {"discount": DISCOUNT, "lambda_rate": RATE}
METHODS = {"bcq": BCQLag(**SMALL), "bear": BEARLag(**SMALL, mmd_samples=3, warmup_steps=1)}
ACTS = {"bcq": ("generator",), "bear": ("actor", "target_actor")}  # what makes its actions
DRAWS = {
    "bcq": ("latents", 2 * ACT),
    "bear": ("noise", ACT),
}  # of the deterministic policy; their number is the policy's
both = pytest.mark.parametrize("name", METHODS)
pytestmark = pytest.mark.usefixtures("quick_compilation")


def times(factor, tree):
    return jax.tree.map(lambda x: factor * x, tree)


def same(one, other):
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def state_of(name, price=0.0, limit=0.05):
    """Critics whose values differ enough between actions that a wrong choice shows."""
    state = small_state(METHODS[name], limit)
    multiplier = Multiplier(*map(jnp.asarray, (price, price / RATE, 0.0)))
    louder = {part: times(30.0, getattr(state, part)) for part in ("critics", "targets")}
    return replace(state, **louder, multiplier=multiplier)


@pytest.fixture
def spy(monkeypatch):
    """What an update gave to the critics: the candidates at s' and the targets."""

    def update(name, state, batch):
        method = METHODS[name]
        seen = {}
        target, step = candidates_module.best_candidate_target, candidates_module.critic_step

        def spied_target(targets, batch, candidates, *rest):
            seen["candidates"] = candidates
            return target(targets, batch, candidates, *rest)

        def spied_step(optimiser, critics, optimiser_state, batch, reward_target, cost_target):
            seen["reward_target"], seen["cost_target"] = reward_target, cost_target
            return step(optimiser, critics, optimiser_state, batch, reward_target, cost_target)

        monkeypatch.setattr(candidates_module, "best_candidate_target", spied_target)
        monkeypatch.setattr(candidates_module, "critic_step", spied_step)
        method.update(state, batch, KEY)
        return {name: np.asarray(value) for name, value in seen.items()}

    return update


@both
@pytest.mark.parametrize("price", [0.0, 0.5])
def test_the_cost_target_is_of_the_candidate_that_the_policy_would_take_and_ends_at_termination(
    name, price, batch, spy
):
    """Neither a maximum over the candidates nor a mixture of minimum and maximum."""
    state = state_of(name, price)
    seen = spy(name, state, batch)
    candidates = seen["candidates"]
    reward, cost = (
        np.array([reference.q_each(critic, batch.next_observations, row) for row in candidates])
        for critic in (state.targets.reward[0], state.targets.cost)
    )
    chosen = [cost[np.argmax(reward[:, i] - price * cost[:, i]), i] for i in range(ROWS)]
    wrong = (cost.max(0), 0.75 * cost.min(0) + 0.25 * cost.max(0))
    assert min(np.abs(value - chosen).max() for value in wrong) > 0.01  # each would be seen
    expected = np.asarray(batch.costs) + DISCOUNT * np.asarray(batch.continues) * chosen
    np.testing.assert_allclose(seen["cost_target"], expected, rtol=1e-3, atol=1e-3)
    stopped = np.asarray(batch.continues) == 0
    np.testing.assert_array_equal(seen["cost_target"][stopped], np.asarray(batch.costs)[stopped])
    np.testing.assert_array_equal(seen["reward_target"][stopped], np.asarray(batch.rewards)[stopped])


@both
def test_target_actions_are_executed_ones_squashed_into_the_range_of_the_logged_actions(name, batch, spy):
    state = state_of(name)
    far = replace(state, **{part: times(30.0, getattr(state, part)) for part in ACTS[name]})
    candidates = np.abs(spy(name, far, batch)["candidates"])
    assert candidates.max() <= 1.0
    assert candidates.max() > 0.9  # unsquashed they would lie beyond


@both
def test_costs_do_not_step_the_reward_critics(name, batch):
    """Costs far above and far below Qc: Adam's first step has the sign of the gradient and hides its size."""
    state, method = state_of(name), METHODS[name]
    dear, cheap = (batch._replace(costs=jnp.full(ROWS, cost)) for cost in (1e4, -1e4))
    one, two = (method.update(state, b, KEY)[0].critics for b in (dear, cheap))
    assert same(one.reward, two.reward)
    assert not same(one.cost, two.cost)


@both
def test_the_limit_is_compared_with_the_discounted_sum_that_qc_is(name, batch):
    """lambda moves by the rate times E Qc - l; l is a sum over steps already and is not scaled by 1 - discount."""
    for limit in (-3.0, 100.0):
        started = state_of(name, price=0.2, limit=limit)
        _, metrics = METHODS[name].update(started, batch, KEY)
        expected = max(0.2 + RATE * (float(metrics["qc_policy"]) - limit), 0.0)
        assert float(metrics["lambda_cost"]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@both
@pytest.mark.parametrize("deterministic", [True, False])
def test_at_run_time_the_best_of_several_actions_is_taken_not_any_one(name, deterministic):
    method = METHODS[name]
    observations = np.random.default_rng(1).normal(size=(200, OBS)).astype(np.float32)
    field, width = DRAWS[name]
    draws = np.random.default_rng(2).normal(size=(20, width)).astype(np.float32)

    def mean_values(price, count):
        """Qr and Qc of what the policy file does with so many candidates."""
        state = replace(state_of(name, price), **{field: jnp.asarray(draws[:count])})
        policy = policy_of(method.export(state))
        actions = policy(observations, deterministic=deterministic, rng=np.random.default_rng(0))
        critics = (state.critics.reward[0], state.critics.cost)
        return [float(critic(observations, actions).mean()) for critic in critics]

    assert mean_values(0.0, 20)[0] > mean_values(0.0, 1)[0] + 0.01
    assert mean_values(1e3, 20)[1] < mean_values(0.0, 20)[1] - 0.01
