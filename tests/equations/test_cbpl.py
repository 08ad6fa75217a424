"""CBPL's game: its targets, the multiplier's answer, the gap, the rounds and the mixture."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import CBPL, Spec
from ringfence.algorithms.cbpl import best_part, exponentiated_gradient, primal_dual_gap
from ringfence.algorithms.cbpl_response import Evaluation, estimate, fqe_targets, fqi_target, policy_search_loss
from ringfence.algorithms.interface import Sample
from ringfence.deploy import components
from ringfence.errors import InvalidSetting
from tests.equations import reference
from tests.equations.conftest import ACT, OBS, ROWS, policy_of

KEY = jax.random.key(5)
DISCOUNT = 0.9
METHOD = CBPL(
    hidden=(8, 8),
    discount=DISCOUNT,
    fqi_steps=3,
    fqe_steps=2,
    rounds=4,
    price_bound=4.0,
    price_rate=0.5,
    batch_size=ROWS,
)


def same(one, other):
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def first(tree):
    return jax.tree.map(lambda x: x[0], tree)


@pytest.fixture(scope="module")
def fresh():
    return METHOD.init(KEY, jnp.asarray(0.05), Spec(OBS, ACT))


@pytest.fixture(scope="module")
def update():
    return jax.jit(METHOD.update)


@pytest.fixture
def response(fresh):
    return first(fresh.responses)


def actions_of(actor, observations):
    return np.array([np.tanh(reference.mlp(actor, s)) for s in np.asarray(observations)])


# The learner


def test_the_fqi_target_is_the_penalised_reward_and_what_follows_unless_terminated(response, batch):
    actions = actions_of(response.actor, batch.next_observations)
    following = reference.q_each(response.value, batch.next_observations, actions)
    expected = [
        float(batch.rewards[i]) - 1.7 * float(batch.costs[i]) + DISCOUNT * float(batch.continues[i]) * following[i]
        for i in range(ROWS)
    ]
    got = fqi_target(response.value, response.actor, batch, jnp.asarray(1.7), DISCOUNT)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_the_fqe_targets_evaluate_reward_and_cost_of_the_policy_unless_terminated(response, batch):
    actions = actions_of(response.actor, batch.next_observations)
    for got, critic, now in zip(
        fqe_targets(response.evaluation, response.actor, batch, DISCOUNT),
        response.evaluation,
        (batch.rewards, batch.costs),
        strict=True,
    ):
        following = reference.q_each(critic, batch.next_observations, actions)
        expected = np.asarray(now) + DISCOUNT * np.asarray(batch.continues) * following
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_policy_search_raises_the_average_value(response, batch):
    actions = actions_of(response.actor, batch.observations)
    expected = -np.mean(reference.q_each(response.value, batch.observations, actions))
    assert float(policy_search_loss(response.actor, response.value, batch.observations)) == pytest.approx(
        expected, rel=1e-4
    )


def test_fqi_moves_value_and_policy_and_fqe_moves_the_evaluation_only(response, batch):
    improved, _ = METHOD.fitting.improve(response, jnp.asarray(1.0), batch)
    assert not same(improved.value, response.value)
    assert not same(improved.actor, response.actor)
    assert same(improved.evaluation, response.evaluation)
    evaluated, _ = METHOD.fitting.evaluate(response, batch)
    assert same(evaluated.value, response.value)
    assert same(evaluated.actor, response.actor)
    assert not same(evaluated.evaluation.reward, response.evaluation.reward)
    assert not same(evaluated.evaluation.cost, response.evaluation.cost)


def test_costs_do_not_step_the_reward_evaluation(response, batch):
    dearer = batch._replace(costs=batch.costs + 5.0)
    one, two = (METHOD.fitting.evaluate(response, b)[0].evaluation for b in (batch, dearer))
    assert same(one.reward, two.reward)
    assert not same(one.cost, two.cost)


def test_return_and_cost_of_a_response_are_averages_over_start_states_not_over_logged_states(fresh, update, batch):
    """Le et al., Section 2: both are expectations over the initial distribution."""
    state, metrics = update(fresh, batch, KEY)
    response = first(state.responses)
    actions = actions_of(response.actor, batch.starts)
    for name, critic in (("qr_policy", response.evaluation.reward), ("qc_policy", response.evaluation.cost)):
        expected = np.mean(reference.q_each(critic, batch.starts, actions))
        assert float(metrics[name]) == pytest.approx(expected, rel=1e-4)


# The multiplier


def test_the_multiplier_is_le_et_als_exponentiated_gradient_with_a_slack():
    bound, rate = 4.0, 0.5
    weights = np.array([bound / 2, bound / 2])  # of the constraint and of the slack
    log_odds = jnp.asarray(0.0)
    for violation in (1.0, 0.3, -2.0, 4.0):
        weights = weights * np.exp(rate * np.array([violation, 0.0]))
        weights *= bound / weights.sum()
        log_odds = exponentiated_gradient(log_odds, jnp.asarray(violation), rate)
        assert float(bound * jax.nn.sigmoid(log_odds)) == pytest.approx(weights[0], rel=1e-5)


def test_the_multiplier_survives_estimates_that_have_diverged():
    log_odds = exponentiated_gradient(jnp.asarray(0.0), jnp.asarray(1e30), 0.5)
    assert float(4.0 * jax.nn.sigmoid(log_odds)) == 4.0


def test_the_gap_is_what_the_two_players_could_still_gain():
    """By a search over lambda in [0, B] for the lower value."""
    limit, bound, average = 2.0, 5.0, 0.4
    for mixture in ((10.0, 3.0), (10.0, 1.0)):
        best = (12.0, 4.0)
        lower = min(mixture[0] - price * (mixture[1] - limit) for price in np.linspace(0, bound, 501))
        upper = best[0] - average * (best[1] - limit)
        got = primal_dual_gap(mixture, best, average, bound, jnp.asarray(limit))
        assert float(got) == pytest.approx(upper - lower, rel=1e-5)


# The rounds


def rounds(state, update, batch, steps):
    metrics = []
    for i in range(steps):
        state, seen = update(state, batch, jax.random.key(i))
        metrics.append({name: float(value) for name, value in seen.items()})
    return state, metrics


def test_a_round_is_fqi_then_fqe_then_the_multipliers_answer(fresh, update, batch):
    state, metrics = rounds(fresh, update, batch, 10)
    assert [m["fitting"] for m in metrics] == [1, 1, 1, 0, 0] * 2
    assert [m["round"] for m in metrics] == [0] * 5 + [1] * 5
    prices = [m["lambda_cost"] for m in metrics]
    assert prices[:5] == [2.0] * 5  # B / 2
    # The last tenth of two FQE steps is one step: the estimate at the round's end
    answer = 4.0 / (1.0 + np.exp(-0.5 * (metrics[4]["qc_policy"] - 0.05)))
    assert prices[5:] == pytest.approx([answer] * 5, rel=1e-5)
    np.testing.assert_allclose(state.costs[:2], [metrics[4]["qc_policy"], metrics[9]["qc_policy"]], rtol=1e-5)
    np.testing.assert_allclose(state.returns[:2], [metrics[4]["qr_policy"], metrics[9]["qr_policy"]], rtol=1e-5)


def test_the_gap_of_a_round_comes_from_the_mixture_so_far_and_the_response_to_the_average_price(fresh, update, batch):
    state, metrics = rounds(fresh, update, batch, 10)
    mixture = float(np.mean(state.returns[:2])), float(np.mean(state.costs[:2]))
    average = np.mean([metrics[0]["lambda_cost"], metrics[5]["lambda_cost"]])
    other = jax.tree.map(lambda x: x[1], state.responses)
    best = estimate(other, batch.starts)
    expected = primal_dual_gap(mixture, tuple(best), average, 4.0, state.limit)
    assert float(state.gap) == pytest.approx(float(expected), rel=1e-4)
    assert metrics[3]["gap"] == 0.0  # no round is over yet


def test_each_response_is_kept_as_a_part_of_the_mixture(fresh, update, batch):
    after_one, _ = rounds(fresh, update, batch, 5)
    after_two, _ = rounds(after_one, update, batch, 5)
    assert same(jax.tree.map(lambda x: x[0], after_two.components), first(after_one.responses.actor))
    assert same(jax.tree.map(lambda x: x[1], after_two.components), first(after_two.responses.actor))
    parts = components(policy_of(METHOD.export(after_two)))
    assert len(parts) == 2
    observations = np.random.default_rng(0).normal(size=(20, OBS)).astype(np.float32)
    for part, state in zip(parts, (after_one, after_two), strict=True):
        expected = actions_of(first(state.responses.actor), observations)
        np.testing.assert_allclose(part(observations), expected, atol=1e-5)


def test_the_sampled_mixture_draws_all_parts_alike_and_the_deterministic_one_keeps_to_its_choice(fresh, update, batch):
    state, _ = rounds(fresh, update, batch, 15)
    policy = policy_of(METHOD.export(state))
    parts = components(policy)
    observations = np.zeros((3000, OBS), np.float32)
    sampled = policy(observations, deterministic=False, rng=np.random.default_rng(0))
    shares = [np.mean((sampled == part(observations)).all(1)) for part in parts]
    np.testing.assert_allclose(shares, 1 / 3, atol=0.04)
    chosen = best_part(np.asarray(state.returns[:3]), np.asarray(state.costs[:3]), state.limit)
    np.testing.assert_array_equal(policy(observations), parts[chosen](observations))


def test_the_chosen_part_has_the_greatest_return_within_the_limit_or_else_the_least_cost():
    returns, costs = np.array([9.0, 5.0, 7.0]), np.array([4.0, 1.0, 2.0])
    assert best_part(returns, costs, 2.0) == 2
    assert best_part(returns, costs, 4.0) == 0
    assert best_part(returns, costs, 0.5) == 1


def test_what_is_expected_from_the_start_is_that_of_the_part_that_is_handed_out(fresh, update, batch):
    """The verdict on a run goes by it. The newest response is another policy, and may be in the middle of its round."""
    state, _ = rounds(fresh, update, batch, 12)
    state = replace(state, returns=jnp.array([9.0, 5.0, 0.0, 0.0]), costs=jnp.array([0.01, 4.0, 0.0, 0.0]))
    sample = Sample(batch, jnp.zeros(ROWS), jnp.zeros(ROWS))
    found = METHOD.diagnose(state, sample, KEY)
    assert float(METHOD.export(state).tensors["chosen"][0]) == 0
    assert (float(found["qr_start"]), float(found["qc_start"])) == pytest.approx((9.0, 0.01))
    early, _ = rounds(fresh, update, batch, 2)
    found = METHOD.diagnose(early, sample, KEY)
    expected = estimate(first(early.responses), batch.starts)
    np.testing.assert_allclose([found["qr_start"], found["qc_start"]], expected, rtol=1e-5)


@pytest.mark.slow
def test_a_restart_begins_every_round_from_the_fresh_networks(fresh, batch):
    """Rounds of the same batches: with the price unmoved they repeat, and they do not without the restart."""
    for restart in (True, False):
        method = replace(METHOD, restart=restart, price_rate=0.0)
        step = jax.jit(method.update)
        state, one = rounds(fresh, step, batch, 5)
        _, two = rounds(state, step, batch, 5)
        assert (one[4]["qc_policy"] == pytest.approx(two[4]["qc_policy"], rel=1e-5)) is restart


def test_only_so_many_rounds_fit_and_more_are_refused():
    METHOD.stages(20)
    with pytest.raises(InvalidSetting, match="4 rounds of 5"):
        METHOD.stages(21)


def test_a_run_stopped_in_its_first_round_still_has_a_policy(fresh, update, batch):
    state, _ = rounds(fresh, update, batch, 2)
    policy = policy_of(METHOD.export(state))
    expected = actions_of(first(state.responses.actor), batch.observations)
    np.testing.assert_allclose(policy(np.asarray(batch.observations)), expected, atol=1e-5)


def test_estimates_far_above_the_log_are_reported():
    row = {"sample_qr_policy": 900.0, "greatest_return_to_go": 100.0, "policy_distance": 1.1}
    assert "does not fit the log" in METHOD.warnings("policy", [row])[0]
    assert not METHOD.warnings("policy", [{**row, "sample_qr_policy": 90.0}])


def test_evaluation_holds_one_critic_each_for_reward_and_cost(response):
    assert Evaluation._fields == ("reward", "cost")
    assert not same(response.evaluation.reward, response.evaluation.cost)
