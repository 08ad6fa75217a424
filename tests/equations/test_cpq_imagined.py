"""The model that imagines, the episodes in it and the slack, against plain NumPy."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import Batch, Spec
from ringfence.algorithms.cpq_imagined import (
    AIM,
    EPISODES,
    HALVED,
    PREDICTED,
    SETTLED,
    SLACK,
    Imagined,
    Plant,
    feedback_rate,
    next_slack,
    plant_loss,
)
from ringfence.algorithms.cpq_limits import BANDS, slack_at
from ringfence.networks import TanhGaussianActor
from tests.equations.conftest import ACT, OBS, small_state

DISCOUNT, HORIZON, LIMIT = 0.9, 8, 5.0
KEY = jax.random.key(3)
HALF = EPISODES // 2


def forward(mlp, x):
    """The network with loops over its layers: LayerNorm before each ReLU."""
    *hidden, last = [(np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)) for layer in mlp.layers]
    for weight, bias in hidden:
        x = x @ weight + bias
        if mlp.normalise:
            centred = x - x.mean(-1, keepdims=True)
            x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        x = np.maximum(x, 0.0)
    return x @ last[0] + last[1]


@pytest.fixture
def plant(batch):
    fresh = Plant.create(Spec(OBS, ACT), (8, 8), KEY)
    return replace(fresh, size=jnp.asarray([0.5, 0.1, 0.2, 2.0]), low=jnp.full(OBS, -1.5), high=jnp.full(OBS, 1.5))


@pytest.fixture
def actors():
    return [TanhGaussianActor(OBS, ACT, (8,), key=jax.random.key(k)) for k in (5, 6)]


def modes(actors):
    return [actor.mode for actor in actors]


def test_the_error_is_the_mean_square_over_rows_and_columns(plant, batch):
    followed = np.random.default_rng(0).normal(size=(len(batch.costs), OBS + 1))
    told = forward(plant.network, np.concatenate([batch.observations, batch.actions], -1))
    expected = np.mean((told - followed) ** 2)
    assert float(plant_loss(plant.network, batch, jnp.asarray(followed))) == pytest.approx(expected, rel=1e-5)


def test_what_follows_is_the_change_and_the_cost_in_their_units(plant, batch):
    told = forward(plant.averaged, np.concatenate([batch.observations, batch.actions], -1)) * np.asarray(plant.size)
    following, costs = plant(batch.observations, batch.actions)
    np.testing.assert_allclose(following, batch.observations + told[:, :-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(costs, np.maximum(told[:, -1], 0.0), rtol=1e-4, atol=1e-5)


def test_one_fit_goes_down_the_gradient_and_keeps_size_and_range(plant, batch):
    plant = replace(plant, low=jnp.zeros(OBS), high=jnp.zeros(OBS))
    after, loss = plant.fit(batch)
    changes = np.concatenate([batch.next_observations - batch.observations, batch.costs[:, None]], -1)
    np.testing.assert_allclose(after.size, np.sqrt(np.mean(changes**2, 0)), rtol=1e-4)  # the first batch sets it
    np.testing.assert_array_equal(after.low, np.minimum(0.0, np.min(batch.observations, 0)))
    np.testing.assert_array_equal(after.high, np.maximum(0.0, np.max(batch.observations, 0)))
    followed = jnp.asarray(changes) / after.size
    assert float(plant_loss(after.network, batch, followed)) < float(loss)
    assert float(after.error) == pytest.approx(float(loss), rel=1e-5)
    second, _ = after.fit(batch._replace(costs=3.0 * batch.costs))
    square = 0.5 * after.size[-1] ** 2 + 0.5 * np.mean((3.0 * batch.costs) ** 2)
    assert float(second.size[-1]) == pytest.approx(float(np.sqrt(square)), rel=1e-4)


def test_it_learns_a_linear_plant():
    rng = np.random.default_rng(2)
    pull, push = np.array([[0.9, 0.1], [-0.1, 0.8]]), np.array([[0.3], [0.1]])
    states, actions = rng.normal(size=(4096, 2)), rng.uniform(-1, 1, size=(4096, 1))
    following, costs = states @ pull.T + actions @ push.T, np.abs(actions[:, 0])
    columns = [jnp.asarray(x, jnp.float32) for x in (states, actions, costs, costs, following, np.ones(4096))]
    log = Batch(*columns, starts=jnp.asarray(states[:8], jnp.float32))

    def one(plant, key):
        rows = jax.random.randint(key, (128,), 0, 4096)
        drawn = [x[rows] for x in (log.observations, log.actions, log.rewards, log.costs, log.next_observations)]
        return plant.fit(Batch(*drawn, log.continues[rows], log.starts))

    plant, losses = jax.lax.scan(one, Plant.create(Spec(2, 1), (32, 32), KEY), jax.random.split(KEY, 3000))
    assert float(losses[-100:].mean()) < 0.01
    told, cost = plant(log.observations, log.actions)
    assert float(jnp.sqrt(jnp.mean((told - log.next_observations) ** 2))) < 0.03
    assert float(jnp.mean(jnp.abs(cost - log.costs))) < 0.05


def imagined_once(seed=0, times=None):
    rng = np.random.default_rng(seed)
    fresh = Imagined.create(Spec(OBS, ACT, horizon=HORIZON), jnp.asarray([LIMIT]), DISCOUNT, KEY)
    return replace(
        fresh,
        observations=jnp.asarray(rng.normal(size=(EPISODES, OBS)), jnp.float32),
        times=fresh.times if times is None else jnp.asarray(times, jnp.int32),
        discounted=jnp.asarray(rng.uniform(size=EPISODES), jnp.float32),
        steps=jnp.asarray(100, jnp.int32),
    )


def test_a_step_of_every_episode_is_the_loop_over_them(plant, actors, batch):
    """Times from 0 to the horizon, some rows lost: each row by hand."""
    before = imagined_once(times=np.arange(EPISODES) % HORIZON)
    after = before.advance(plant, *modes(actors), batch.starts, DISCOUNT)
    late, complete, lost_rows = ([[], []] for _ in range(3))
    for i in range(EPISODES):
        state = np.asarray(before.observations[i], np.float64)
        half = int(i >= HALF)
        action = np.tanh(forward(actors[half].mlp, state)[:ACT])
        told = forward(plant.averaged, np.concatenate([state, action])) * np.asarray(plant.size)
        following, cost = state + told[:-1], max(told[-1], 0.0)
        time = i % HORIZON
        total = float(before.discounted[i]) + DISCOUNT**time * cost
        lost = bool(np.any(np.abs(following) > 1.5 + 0.1 * 3.0))
        lost_rows[half].append(lost)
        if time >= HORIZON // 2:
            late[half].append(cost)
        if time + 1 == HORIZON:
            complete[half].append(total)
        if lost or time + 1 == HORIZON:
            np.testing.assert_array_equal(after.observations[i], batch.starts[i % len(batch.starts)])
            assert (int(after.times[i]), float(after.discounted[i])) == (0, 0.0)
        else:
            np.testing.assert_allclose(after.observations[i], np.clip(following, -1.5, 1.5), rtol=1e-3, atol=1e-4)
            assert int(after.times[i]) == time + 1
            assert float(after.discounted[i]) == pytest.approx(total, rel=1e-4)
    assert all(0 < sum(rows) < HALF for rows in lost_rows)  # both happen
    pace = [0.1 * LIMIT + 0.005 * (np.mean(costs) - 0.1 * LIMIT) for costs in late]
    np.testing.assert_allclose(after.pace, pace, rtol=1e-4)
    tails = [DISCOUNT**HORIZON * p / (1 - DISCOUNT) for p in pace]
    starts = [LIMIT + 0.05 * (np.mean(t) + tail - LIMIT) for t, tail in zip(complete, tails, strict=True)]
    np.testing.assert_allclose(after.from_start, starts, rtol=1e-4)


def test_episodes_that_did_not_begin_at_a_start_do_not_count(plant, actors, batch):
    early = replace(imagined_once(times=np.full(EPISODES, HORIZON - 1)), steps=jnp.asarray(HORIZON - 1))
    np.testing.assert_array_equal(
        early.advance(plant, *modes(actors), batch.starts, DISCOUNT).from_start, [LIMIT, LIMIT]
    )


def test_a_constant_cost_is_found_whatever_the_horizon(actors, batch):
    """A plant that stands still and costs 0.3 a step: 0.3 / (1 - discount) from the start, and as a pace."""
    plant = Plant.create(Spec(OBS, ACT), (8,), KEY)
    still = jax.tree.map(jnp.zeros_like, plant.averaged)
    still = eqx.tree_at(lambda mlp: mlp.layers[-1].bias, still, jnp.asarray([0, 0, 0, 0.3]))
    plant = replace(plant, averaged=still, low=jnp.full(OBS, -9.0), high=jnp.full(OBS, 9.0))
    imagined = Imagined.create(Spec(OBS, ACT, horizon=HORIZON), jnp.asarray([LIMIT]), DISCOUNT, KEY)
    step = jax.jit(lambda x: x.advance(plant, *modes(actors), batch.starts, DISCOUNT))
    for _ in range(1500):
        imagined = step(imagined)
    np.testing.assert_allclose(imagined.pace, 0.3, rtol=1e-2)
    np.testing.assert_allclose(imagined.from_start, 3.0, rtol=1e-2)
    assert float(imagined.cost(DISCOUNT)[0]) == pytest.approx(3.0, rel=1e-2)


def test_the_cost_that_counts_is_the_greatest_of_four():
    fresh = imagined_once()
    for pace, from_start, expected in (
        ([0.1, 0.2], [1.5, 1.9], 2.0),
        ([0.3, 0.2], [1.5, 1.9], 3.0),
        ([0.1, 0.1], [4.0, 1.9], 4.0),
        ([0.1, 0.1], [1.0, 5.0], 5.0),
    ):
        now = replace(fresh, pace=jnp.asarray(pace), from_start=jnp.asarray(from_start))
        assert float(now.cost(DISCOUNT)[0]) == pytest.approx(expected, rel=1e-5)


def test_slack_rises_below_the_aim_falls_above_and_stays_in_its_range():
    def after(slack, cost, rate=0.1):
        return float(next_slack(jnp.asarray(slack), jnp.asarray(cost), jnp.asarray(LIMIT), jnp.asarray(rate)))

    assert after(1.0, 0.5 * LIMIT) == pytest.approx(1.0 + 0.1 * (AIM - 0.5))
    assert after(1.0, 1.2 * LIMIT) == pytest.approx(1.0 + 0.1 * (AIM - 1.2))
    assert after(1.0, AIM * LIMIT) == pytest.approx(1.0)
    assert (after(1.0, 0.0, rate=9.0), after(1.0, 9.0 * LIMIT, rate=9.0)) == pytest.approx((SLACK[1], SLACK[0]))
    limit_of_nothing = next_slack(jnp.ones(()), jnp.ones(()), jnp.zeros(()), jnp.ones(()))
    assert float(limit_of_nothing) == pytest.approx(SLACK[0])


def test_feedback_waits_for_the_policy_and_slows_down():
    steps = (0, SETTLED, SETTLED + 1, HALVED, 3 * HALVED)
    rates = [float(feedback_rate(jnp.asarray(step), jnp.asarray(0.05), 0.3)) for step in steps]
    assert rates == pytest.approx([0.0, 0.0, 0.3 / (1 + (SETTLED + 1) / HALVED), 0.15, 0.075])


def test_a_model_that_explains_too_little_gives_no_feedback():
    rates = [
        float(feedback_rate(jnp.asarray(HALVED), jnp.asarray(error), 0.3)) for error in (PREDICTED, 1.01 * PREDICTED)
    ]
    assert rates == pytest.approx([0.15, 0.0])


def test_the_actor_is_held_to_slack_times_the_limit(batch, departed):
    """The loss at slack 0.5 and limit l is that at slack 1 and limit l / 2; and no gradient reaches the model."""
    critics = small_state(departed).critics
    limit = float(
        jnp.abs(critics.cost(batch.observations, batch.actions)).mean()
    )  # the size of what it is compared with
    one = replace(small_state(departed, limit=limit), critics=critics)
    half = replace(one, limit=2.0 * one.limit, slack=jnp.asarray([0.5]))
    losses = [
        departed.actor_loss(s.actor, s.critics, batch, s, KEY)[0] for s in (one, half, replace(half, slack=one.slack))
    ]
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-6)
    assert float(losses[0]) != pytest.approx(float(losses[2]), rel=1e-3)


def test_an_update_learns_the_plant_and_moves_the_slack_only_after_the_policy_settled(batch, departed):
    state = small_state(departed)
    after, metrics = departed.update(state, batch, KEY)
    assert int(after.plant.fitted) == 1
    assert int(after.imagined.steps) == 1
    assert float(after.slack[0]) == 1.0
    assert "imagined_cost" in metrics
    known = replace(state.plant, error=jnp.zeros(()), fitted=jnp.asarray(10_000))
    late, _ = departed.update(replace(state, step=jnp.asarray(SETTLED), plant=known), batch, KEY)
    assert 0.0 < float(late.plant.error) < PREDICTED
    rate = float(feedback_rate(jnp.asarray(SETTLED + 1), late.plant.error, departed.feedback))
    cost = float(late.imagined.cost(departed.discount)[0])
    assert float(late.slack[0]) == pytest.approx(1.0 + rate * (AIM - cost / 0.05), abs=1e-5)
    detector, _ = departed.update_detector(state, batch, KEY)
    assert int(detector.plant.fitted) == 1


def test_a_range_of_limits_has_a_pace_and_a_cost_for_each_band(plant, actors, batch):
    """Four bands: the rows of each half are cut into four groups, the bands in order; each row by hand."""
    limits = np.asarray([2.0, 4.0, 6.0, 8.0])
    fresh = Imagined.create(Spec(OBS, ACT, horizon=HORIZON), jnp.asarray(limits, jnp.float32), DISCOUNT, KEY)
    before = replace(imagined_once(times=np.full(EPISODES, HORIZON // 2)), pace=fresh.pace, from_start=fresh.from_start)
    after = before.advance(plant, *modes(actors), batch.starts, DISCOUNT)
    for half in range(2):
        for band in range(4):
            rows = half * HALF + np.arange(band * HALF // 4, (band + 1) * HALF // 4)
            states = np.asarray(before.observations, np.float64)[rows]
            actions = np.tanh(forward(actors[half].mlp, states)[:, :ACT])
            told = forward(plant.averaged, np.concatenate([states, actions], -1)) * np.asarray(plant.size)
            was, now = (1 - DISCOUNT) * limits[band], np.maximum(told[:, -1], 0.0).mean()
            assert float(after.pace[4 * half + band]) == pytest.approx(was + 0.005 * (now - was), rel=1e-4)
    np.testing.assert_allclose(after.from_start, np.tile(limits, 2), rtol=1e-6)  # none is complete
    costs = np.maximum(np.asarray(after.from_start), np.asarray(after.pace) / (1 - DISCOUNT))
    np.testing.assert_allclose(after.cost(DISCOUNT), np.maximum(costs[:4], costs[4:]), rtol=1e-6)


def test_an_actor_of_a_range_acts_at_the_limit_of_its_episode(departed):
    """Row i of n is at the middle of the i-th of n equal parts of the range, as a column in [-1, 1]."""
    method = replace(departed, limits=(20.0, 60.0))
    actor = TanhGaussianActor(OBS + 1, ACT, (8,), key=jax.random.key(5))
    states = np.random.default_rng(0).normal(size=(4, OBS)).astype(np.float32)
    seen = np.concatenate([states, [[-0.75], [-0.25], [0.25], [0.75]]], -1)
    np.testing.assert_allclose(
        method._controller(actor)(jnp.asarray(states)), np.tanh(forward(actor.mlp, seen)[:, :ACT]), rtol=1e-4, atol=1e-6
    )


def test_the_slack_of_a_range_lies_on_lines_between_the_middles_of_its_bands():
    slack = jnp.asarray([0.8, 0.9, 1.0, 1.0, 1.0, 1.1, 1.2, 1.2])  # bands of 5, with middles 22.5, 27.5, ...
    found = slack_at(slack, jnp.asarray([20.0, 22.5, 25.0, 31.0, 60.0]), (20.0, 60.0))
    np.testing.assert_allclose(found, [0.8, 0.8, 0.85, 0.9 + 0.1 * 3.5 / 5.0, 1.2], rtol=1e-6)
    assert float(slack_at(jnp.asarray([0.7]), jnp.asarray(30.0), None)) == pytest.approx(0.7)


def test_each_band_of_a_range_moves_its_own_slack(batch, departed):
    method = replace(departed, limits=(20.0, 60.0))
    state = method.init(KEY, jnp.asarray(40.0), Spec(OBS, ACT))
    assert state.slack.shape == (BANDS,)
    known = replace(state.plant, error=jnp.zeros(()), fitted=jnp.asarray(10_000))
    costs = jnp.asarray([10.0, 30.0, 30.0, 90.0, 40.0, 45.0, 50.0, 57.0])
    imagined = replace(state.imagined, from_start=jnp.tile(costs, 2), pace=jnp.zeros(2 * BANDS))
    late, _ = method.update(replace(state, step=jnp.asarray(SETTLED), plant=known, imagined=imagined), batch, KEY)
    rate = float(feedback_rate(jnp.asarray(SETTLED + 1), late.plant.error, method.feedback))
    now = np.asarray(late.imagined.cost(method.discount))  # after one more step of the episodes
    middles = 20.0 + 40.0 * (np.arange(BANDS) + 0.5) / BANDS
    np.testing.assert_allclose(late.slack, 1.0 + rate * (AIM - now / middles), atol=1e-5)
    assert float(late.slack[0]) > 1.0 > float(late.slack[3])


def test_without_feedback_there_is_no_model(batch, departed):
    method = replace(departed, feedback=0.0)
    state = method.init(KEY, jnp.asarray(30.0), Spec(OBS, ACT))
    assert state.plant is None
    assert state.imagined is None
    after, metrics = method.update(replace(state, step=jnp.asarray(SETTLED)), batch, KEY)
    assert float(after.slack[0]) == 1.0
    assert "slack" not in metrics
