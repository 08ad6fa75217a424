"""Mistakes that public implementations of CPQ and its siblings made: each is a test that fails if we make it too."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import CPQ, Spec
from ringfence.algorithms.cpq import all_ood_actions, cost_bellman_target, cost_critic_loss, penalized_bellman_target
from ringfence.algorithms.critics import Critics
from ringfence.limits import Limit
from ringfence.networks import Critic, Gaussian
from ringfence.training.device import to_device
from tests.equations import reference
from tests.equations.conftest import SMALL, small_state
from tests.logs import narrow_log

KEY = jax.random.key(2)
pytestmark = pytest.mark.usefixtures("quick_compilation")


def step_with_threshold(method, batch, threshold):
    """One update from the same state with all of the policy's actions OOD (-inf), or none (inf)."""
    state = small_state(method, limit=5.0)
    state = replace(state, alpha=jnp.asarray(50.0), detector=replace(state.detector, threshold=jnp.asarray(threshold)))
    return state, *method.update(state, batch, KEY)


def test_the_ood_push_reaches_the_live_cost_critic(batch, printed):
    _, pushed, _ = step_with_threshold(printed, batch, -np.inf)
    _, plain, _ = step_with_threshold(printed, batch, np.inf)
    change = [
        np.abs(a - b).max()
        for a, b in zip(*map(jax.tree.leaves, (pushed.critics.cost, plain.critics.cost)), strict=True)
    ]
    assert max(change) > 1e-5
    for a, b in zip(*map(jax.tree.leaves, (pushed.critics.reward, plain.critics.reward)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_push_raises_the_cost_of_ood_actions(batch, printed):
    method = replace(printed, learning_rate=1e-2, alpha=50.0)
    state, _, metrics = step_with_threshold(method, batch, -np.inf)
    for i in range(20):
        state, metrics = method.update(state, batch, jax.random.fold_in(KEY, i))
    assert metrics["qc_ood"] > metrics["qc_data"]
    assert metrics["qc_ood"] > 1.0


def test_ood_actions_are_the_executed_ones_squashed_into_the_action_range(batch, printed, monkeypatch):
    seen = []
    import ringfence.algorithms.cpq as module

    monkeypatch.setattr(
        module, "all_ood_actions", lambda actions, kept: (seen.append(actions), all_ood_actions(actions, kept))[1]
    )
    state = small_state(printed)
    wide = replace(state, actor=jax.tree.map(lambda x: 30 * x, state.actor))
    printed.update(wide, batch, KEY)
    assert seen[0].shape[0] == SMALL["ood_samples"]
    assert float(jnp.abs(seen[0]).max()) <= 1.0


def test_logged_actions_are_scaled_to_the_range_that_the_policy_acts_in():
    data = to_device(narrow_log(rows=400, low=-2.0, high=5.0))
    unit = to_device(narrow_log(rows=400))
    rows = jnp.arange(400)
    np.testing.assert_allclose(data.batch(rows).actions, unit.batch(rows).actions, atol=1e-5)


def test_ood_is_a_threshold_on_the_score_and_no_share_of_the_batch(batch, printed):
    for threshold, rate in [(np.inf, 0.0), (-np.inf, 1.0)]:
        _, _, metrics = step_with_threshold(printed, batch, threshold)
        assert metrics["ood_rate"] == rate


def test_without_ood_actions_the_cost_loss_is_the_plain_bellman_error(batch, printed):
    critic = small_state(printed).critics.cost
    nothing = all_ood_actions(jnp.zeros((4, 6, 2)), jnp.zeros((4, 6), bool))
    target = jnp.ones(6)
    gradient = jax.grad(lambda c: cost_critic_loss(c, batch, target, nothing, jnp.asarray(99.0), jnp.asarray(1.0))[0])
    plain = jax.grad(lambda c: jnp.mean((c(batch.observations, batch.actions) - target) ** 2))
    for a, b in zip(*map(jax.tree.leaves, (gradient(critic), plain(critic))), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_the_mean_is_over_the_m_kept_actions_and_does_not_count_the_others(m):
    kept = jnp.zeros((4, 1), bool).at[:m].set(True)
    weights = all_ood_actions(jnp.zeros((4, 1, 2)), kept).weights[:, 0]
    np.testing.assert_allclose(weights, [1 / m] * m + [0] * (4 - m))


def test_the_latent_kl_is_a_sum_over_dimensions():
    one = Gaussian(jnp.asarray([1.0]), jnp.asarray([0.5])).kl_to_standard()
    five = Gaussian(jnp.full(5, 1.0), jnp.full(5, 0.5)).kl_to_standard()
    assert five == pytest.approx(5 * float(one), rel=1e-6)


def test_there_is_one_cost_critic_and_its_target_takes_no_minimum(batch, printed):
    targets = small_state(printed).targets
    assert isinstance(targets.cost, Critic)
    assert Critics._fields == ("reward", "cost")
    expected = np.asarray(batch.costs) + 0.99 * np.asarray(batch.continues) * reference.q_each(
        targets.cost, batch.next_observations, batch.actions
    )
    np.testing.assert_allclose(cost_bellman_target(targets.cost, batch, batch.actions, 0.99), expected, rtol=1e-4)


def test_termination_masks_both_bootstraps_and_truncation_neither(printed):
    log = narrow_log(rows=400)
    data = to_device(log)
    targets = small_state(printed).targets
    for flag, goes_on in [(log.terminations, 0.0), (log.truncations, 1.0)]:
        rows = jnp.asarray(np.flatnonzero(flag))
        assert len(rows) > 0
        batch = data.batch(rows)
        cost = reference.q_each(targets.cost, batch.next_observations, batch.actions)
        reward = np.minimum(*(reference.q_each(c, batch.next_observations, batch.actions) for c in targets.reward))
        np.testing.assert_allclose(
            cost_bellman_target(targets.cost, batch, batch.actions, 0.9), batch.costs + 0.9 * goes_on * cost, rtol=1e-3
        )
        np.testing.assert_allclose(
            penalized_bellman_target(targets, batch, batch.actions, jnp.asarray(1e6), 0.9),
            batch.rewards + 0.9 * goes_on * reward,
            rtol=1e-3,
        )


def test_the_detector_is_trained_first_and_then_fixed(batch, printed):
    names = [stage.name for stage in printed.stages(10)]
    assert names == ["detector", "policy"]
    state = small_state(printed)
    after, _ = printed.stages(10)[1].update(state, batch, KEY)
    for a, b in zip(*map(jax.tree.leaves, (state.detector, after.detector)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_actor_sees_the_indicator(batch, printed):
    """No action safe: the printed actor gets no signal at all, and its reward critics are not to blame."""
    state = small_state(printed, limit=-1e6)
    after, metrics = printed.update(state, batch, KEY)
    assert metrics["indicator"] == 0
    for a, b in zip(*map(jax.tree.leaves, (state.actor, after.actor)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_actor_objective_never_moves_a_critic(batch, departed):
    steps = [replace(departed, recovery_weight=w, anchor=a) for w, a in [(0.0, 0.0), (1e3, 5.0)]]
    results = [method.update(small_state(method), batch, KEY)[0].critics for method in steps]
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_limit_is_compared_as_a_discounted_sum():
    assert Limit.of(0.3, "step", discount=0.99).discounted == pytest.approx(30)
    horizon, discount, cost = 20, 0.9, 0.7
    by_hand = sum(discount**t * cost for t in range(horizon))
    assert Limit.of(cost * horizon, "episode", discount=discount, horizon=horizon).discounted == pytest.approx(by_hand)
    state = CPQ(**SMALL).init(KEY, jnp.asarray(30.0), Spec(3, 2))
    assert state.limit == 30
