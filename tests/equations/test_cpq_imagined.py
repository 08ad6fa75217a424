"""The model that imagines, the episodes in it and the slack, against plain NumPy."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ringfence
from ringfence.algorithms import Batch, Spec
from ringfence.algorithms.cpq_imagined import (
    AIM,
    HALVED,
    HELD_OUT,
    NETWORKS,
    PREDICTED,
    SETTLED,
    SLACK,
    TERMINATED,
    TERMINATION_SIZE,
    UNDER_WAY,
    Imagined,
    Plant,
    falling,
    feedback_rate,
    held_out_rows,
    in_parts,
    next_slack,
    plant_loss,
)
from ringfence.algorithms.cpq_limits import BANDS, slack_at
from ringfence.networks import TanhGaussianActor
from tests.equations.conftest import ACT, OBS, ROWS, small_state

DISCOUNT, HORIZON, LIMIT = 0.9, 8, 5.0
KEY = jax.random.key(3)
STEPS = 1000  # of the fit
HALF = UNDER_WAY // 2
COST, REWARD, TERMINATION = OBS, OBS + 1, OBS + 2  # columns of the model, after the changes of the state


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


def of_either_sign(network):
    """With costs and rewards of either sign, and ends that are likely in some states."""
    moved = jnp.zeros(OBS + 3).at[COST].set(0.12).at[REWARD].set(-0.1).at[TERMINATION].set(0.4)
    return eqx.tree_at(lambda mlp: mlp.layers[-1].bias, network, replace_fn=lambda bias: bias + moved)


def told_by(plant, rows):
    """What the networks say on average, in the units of the log, of rows of states and actions side by side."""
    return np.mean([forward(network, rows) for network in plant.networks], 0) * np.asarray(plant.size, np.float64)


@pytest.fixture
def plant(batch):
    fresh = Plant.create(Spec(OBS, ACT), (8, 8), KEY)
    size = jnp.asarray([0.5, 0.1, 0.2, 2.0, 7.0, 0.3])
    fresh = replace(fresh, networks=tuple(map(of_either_sign, fresh.networks)), size=size)
    return replace(fresh, low=jnp.full(OBS, -1.5), high=jnp.full(OBS, 1.5))


@pytest.fixture
def actors():
    return [TanhGaussianActor(OBS, ACT, (8,), key=jax.random.key(k)) for k in (5, 6)]


def modes(actors):
    return [actor.mode for actor in actors]


def followed_by(batch):
    """What the model learns to tell of each row: the change of the state, cost, reward and whether the episode ended."""
    rows = []
    for i in range(len(batch.costs)):
        change = np.asarray(batch.next_observations[i], np.float64) - np.asarray(batch.observations[i], np.float64)
        rows.append([*change, float(batch.costs[i]), float(batch.rewards[i]), float(batch.continues[i] == 0)])
    return np.asarray(rows)


def squared_errors(plant, batch, size, chosen=None):
    """For each column the mean of squares over the chosen rows of a network's half, and over the networks, in NumPy. The
    state that follows a termination does not count."""
    rows, followed = np.concatenate([batch.observations, batch.actions], -1), followed_by(batch) / size
    chosen = np.ones(ROWS) if chosen is None else np.asarray(chosen, np.float64)
    counts = np.tile(chosen[:, None], OBS + 3)
    counts[:, :OBS] *= np.asarray(batch.continues)[:, None]
    halves = (slice(0, ROWS // 2), slice(ROWS // 2, None))
    squares = [
        (forward(net, rows[half]) - followed[half]) ** 2 for net, half in zip(plant.networks, halves, strict=True)
    ]
    return np.mean(
        [(each * counts[half]).sum(0) / counts[half].sum(0) for each, half in zip(squares, halves, strict=True)], 0
    )


def test_the_loss_sums_the_mean_squares_of_the_networks_and_comes_with_the_mean_of_each_column(plant, batch):
    size = np.array([0.4, 0.3, 0.9, 1.5, 2.0, 0.7])
    expected = squared_errors(plant, batch, size)
    loss, (learned, held) = plant_loss(plant.networks, in_parts(batch, 2), jnp.asarray(size, jnp.float32))
    assert float(loss) == pytest.approx(2.0 * expected.mean(), rel=1e-5)
    np.testing.assert_allclose(learned, expected, rtol=1e-5)
    assert np.all(np.isnan(held))


# One row of each half is held out, of an episode that goes on
HELD = np.array([0, 1, 0, 0, 1, 0], np.float32)


@pytest.fixture
def half_held(batch):
    going_on = batch._replace(continues=jnp.asarray(batch.continues).at[np.flatnonzero(HELD)].set(1.0))
    return going_on._replace(extras={HELD_OUT: jnp.asarray(HELD)[:, None]})


def test_rows_that_are_held_out_measure_the_error_and_are_not_learned_from(plant, half_held):
    size = np.array([0.4, 0.3, 0.9, 1.5, 2.0, 0.7])
    parts = in_parts(half_held, 2)
    loss, (learned, held) = plant_loss(plant.networks, parts, jnp.asarray(size, jnp.float32))
    expected = squared_errors(plant, half_held, size, 1.0 - HELD)
    assert float(loss) == pytest.approx(2.0 * expected.mean(), rel=1e-5)
    np.testing.assert_allclose(learned, expected, rtol=1e-5)
    np.testing.assert_allclose(held, squared_errors(plant, half_held, size, HELD), rtol=1e-5)
    after, error = plant.fit(half_held, STEPS)
    both = [squared_errors(plant, half_held, np.asarray(after.size), rows)[: OBS + 1] for rows in (1.0 - HELD, HELD)]
    assert 0 < np.sum(both[0] > both[1]) < OBS + 1  # each is the greater one somewhere
    np.testing.assert_allclose(after.errors, np.maximum(*both), rtol=1e-4)
    assert float(error) == pytest.approx(both[0].mean(), rel=1e-4)
    again = replace(after, fitted=jnp.asarray(10_000))
    second, _ = again.fit(half_held, 500)
    then = squared_errors(again, half_held, np.asarray(second.size), HELD)[: OBS + 1]
    np.testing.assert_allclose(second.of_held, 0.98 * both[1] + 0.02 * then, rtol=1e-4)  # a tenth of 500 steps
    np.testing.assert_array_equal(second.errors, np.maximum(second.of_learned, second.of_held))

    other = half_held._replace(rewards=half_held.rewards + 5.0 * HELD)  # other rows that are held out
    one, two = (
        jax.grad(plant_loss, has_aux=True)(plant.networks, in_parts(rows, 2), plant.size)[0]
        for rows in (half_held, other)
    )
    assert all(map(np.array_equal, *map(jax.tree.leaves, (one, two))))


def log_with(lengths):
    ends = np.zeros(sum(lengths), bool)
    ends[np.cumsum(lengths) - 1] = True
    numbers = np.random.default_rng(1).uniform(size=(ends.size, 3)).astype(np.float32)
    return ringfence.Dataset.from_arrays(
        observations=numbers, actions=numbers[:, :1] - 0.5, rewards=numbers[:, 0], costs=numbers[:, 1],
        next_observations=numbers, terminations=np.zeros_like(ends), truncations=ends,
    )  # fmt: skip


def test_every_tenth_episode_is_held_out_and_of_fewer_episodes_the_last_tenth_of_each():
    lengths = [3, 4] * 11
    expected = np.repeat([i in (9, 19) for i in range(22)], lengths)
    np.testing.assert_array_equal(held_out_rows(log_with(lengths)), expected[:, None].astype(np.float32))
    few = held_out_rows(log_with([20, 9, 35]))[:, 0]
    np.testing.assert_array_equal(np.flatnonzero(few), [18, 19, 61, 62, 63])


def test_cpq_asks_for_the_rows_that_are_held_out(departed):
    held = departed.columns(log_with([20, 30]))[HELD_OUT]
    np.testing.assert_array_equal(np.flatnonzero(held), [18, 19, 47, 48, 49])


def test_networks_that_know_a_small_log_by_heart_do_not_count_as_a_model_of_it():
    """100 rows in which nothing follows from anything: all of them can be learned, none of the others explained."""
    rng = np.random.default_rng(4)
    states, following = rng.normal(size=(2, 100, 3)).astype(np.float32)
    actions, costs = rng.uniform(-1, 1, size=(100, 1)), rng.uniform(size=100)
    columns = [jnp.asarray(x, jnp.float32) for x in (states, actions, costs, costs, following, np.ones(100))]
    held = jnp.asarray(np.arange(100) % 10 == 9, jnp.float32)[:, None]

    def error_with(extras):
        def one(plant, key):
            rows = jax.random.randint(key, (128,), 0, 100)
            drawn = [x[rows] for x in columns]
            return plant.fit(Batch(*drawn, starts=columns[0][:8], extras={k: v[rows] for k, v in extras.items()}), 800)

        plant, _ = jax.lax.scan(one, Plant.create(Spec(3, 1), (32, 32), KEY), jax.random.split(KEY, 800))
        return float(plant.error)

    assert error_with({}) < 0.5 * PREDICTED
    assert error_with({HELD_OUT: held}) > 0.7


def test_a_network_learns_from_its_own_part_of_the_batch_alone(plant, batch):
    """Other rows in the second half leave the gradient of the first network as it is."""
    other = batch._replace(rewards=batch.rewards.at[ROWS // 2 :].add(5.0))
    one, two = (
        jax.grad(plant_loss, has_aux=True)(plant.networks, in_parts(rows, 2), plant.size)[0] for rows in (batch, other)
    )
    assert all(map(np.array_equal, *map(jax.tree.leaves, (one[0], two[0]))))
    assert not np.array_equal(one[1].layers[-1].bias, two[1].layers[-1].bias)


def test_what_follows_is_the_change_the_cost_the_reward_and_termination_in_their_units(plant, batch):
    """Costs are never negative, rewards may be. With an axis more in front, each row is told the same."""
    told = told_by(plant, np.concatenate([batch.observations, batch.actions], -1))
    assert told[:, COST].min() < 0.0 < told[:, COST].max()
    assert told[:, REWARD].min() < 0.0
    found = plant(batch.observations, batch.actions)
    np.testing.assert_allclose(found.observations, batch.observations + told[:, :OBS], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.costs, np.maximum(told[:, COST], 0.0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.rewards, told[:, REWARD], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.terminated, told[:, TERMINATION], rtol=1e-4, atol=1e-5)
    twice = plant(*(jnp.stack([x, x]) for x in (batch.observations, batch.actions)))
    for many, once in zip(twice, found, strict=True):
        np.testing.assert_allclose(many, np.stack([once, once]), rtol=1e-5, atol=1e-6)


def test_networks_are_deeper_and_wider_than_the_policys_and_differ_from_the_start(plant):
    assert len(plant.networks) == NETWORKS == 2
    for network in plant.networks:
        assert [layer.bias.size for layer in network.layers] == [16, 16, 16, OBS + 3]
    first, second = (np.asarray(network.layers[0].weight) for network in plant.networks)
    assert np.abs(first - second).min() > 0.0


def test_steps_fall_from_full_to_none_as_a_cosine():
    found = [float(falling(jnp.asarray(done))) for done in (0.0, 0.25, 0.5, 1.0, 1.5)]
    np.testing.assert_allclose(found, [1.0, (1 + np.sqrt(0.5)) / 2, 0.5, 0.0, 0.0], atol=1e-6)


def test_one_fit_goes_down_the_gradient_and_keeps_size_and_range(plant, batch):
    plant = replace(plant, low=jnp.zeros(OBS), high=jnp.zeros(OBS))
    after, error = plant.fit(batch, STEPS)
    numbers = followed_by(batch)
    assert 0.0 < numbers[:, TERMINATION].mean() < 1.0  # both kinds of rows
    size = np.sqrt(np.mean(numbers**2, 0))  # the first batch sets it
    size[TERMINATION] = TERMINATION_SIZE
    np.testing.assert_allclose(after.size, size, rtol=1e-4)
    np.testing.assert_array_equal(after.low, np.minimum(0.0, np.min(batch.observations, 0)))
    np.testing.assert_array_equal(after.high, np.maximum(0.0, np.max(batch.observations, 0)))
    assert int(after.fitted) == 1

    before, then = (squared_errors(each, batch, size) for each in (plant, after))
    assert then.mean() < before.mean()
    np.testing.assert_allclose(after.errors, before[: OBS + 1], rtol=1e-4)  # of the networks before the step
    assert float(error) == pytest.approx(before[: OBS + 1].mean(), rel=1e-4)

    second, _ = after.fit(batch._replace(costs=3.0 * batch.costs, continues=jnp.zeros(ROWS)), STEPS)
    square = 0.5 * after.size[COST] ** 2 + 0.5 * np.mean((3.0 * batch.costs) ** 2)
    assert float(second.size[COST]) == pytest.approx(float(np.sqrt(square)), rel=1e-4)
    assert float(second.size[TERMINATION]) == np.float32(TERMINATION_SIZE)


@pytest.mark.parametrize(("fitted", "share"), [(0, 1.0), (STEPS // 2, 0.5), (STEPS, 0.0)])
def test_each_column_has_a_part_in_the_first_step(plant, batch, fitted, share):
    """Adam's first step is its rate against the sign of the gradient, times what is left of the cosine. The gradient in the
    last bias is twice the mean error over the columns' number: of states, cost, reward and termination alike."""
    plant = replace(plant, fitted=jnp.asarray(fitted))
    after, _ = plant.fit(batch, STEPS)
    size = np.asarray(after.size, np.float64)
    rows = np.concatenate([batch.observations, batch.actions], -1)
    for number, half in enumerate((slice(0, ROWS // 2), slice(ROWS // 2, None))):
        told = forward(plant.networks[number], rows[half])
        counts = np.ones((ROWS // 2, OBS + 3))
        counts[:, :OBS] *= np.asarray(batch.continues)[half, None]
        gradient = 2.0 * ((told - followed_by(batch)[half] / size) * counts).sum(0) / counts.sum(0) / (OBS + 3)
        assert np.abs(gradient).min() > 1e-4
        was, now = (np.asarray(each.networks[number].layers[-1].bias) for each in (plant, after))
        np.testing.assert_allclose(now - was, -4e-3 * share * np.sign(gradient), rtol=2e-2, atol=1e-7)


def test_errors_are_running_means_of_states_and_cost_and_the_error_is_their_mean(plant, batch):
    plant = replace(plant, errors=jnp.asarray([0.1, 0.2, 0.3, 0.8]), of_learned=jnp.asarray([0.1, 0.2, 0.3, 0.8]))
    assert float(plant.error) == pytest.approx((0.1 + 0.2 + 0.3 + 0.8) / 4, rel=1e-6)
    for fitted, rate in ((0, 1.0), (1, 0.5), (4, 0.2), (99, 0.01), (10_000, 0.01)):
        size = np.sqrt((1 - rate) * np.asarray(plant.size) ** 2 + rate * np.mean(followed_by(batch) ** 2, 0))
        size[TERMINATION] = TERMINATION_SIZE
        now = squared_errors(plant, batch, size)[: OBS + 1]
        after, error = replace(plant, fitted=jnp.asarray(fitted)).fit(batch, STEPS)
        np.testing.assert_allclose(after.errors, (1 - rate) * np.asarray(plant.errors) + rate * now, rtol=1e-4)
        assert float(after.error) == pytest.approx(float(np.asarray(after.errors).mean()), rel=1e-5)
        assert float(error) == pytest.approx(now.mean(), rel=1e-4)  # that of this batch


def test_rewards_do_not_count_as_errors(plant, batch):
    other = batch._replace(rewards=100.0 * batch.rewards + 50.0)
    one, two = (plant.fit(rows, STEPS) for rows in (batch, other))
    np.testing.assert_array_equal(one[0].errors, two[0].errors)
    assert float(one[1]) == float(two[1])


def test_what_stands_in_for_the_state_after_a_termination_is_not_learned(plant, batch):
    ended = np.asarray(batch.continues) == 0.0
    assert 0 < ended.sum() < ROWS
    other = batch._replace(next_observations=jnp.where(ended[:, None], batch.observations, batch.next_observations))
    assert not np.array_equal(other.next_observations, batch.next_observations)
    one, two = (
        jax.grad(plant_loss, has_aux=True)(plant.networks, in_parts(rows, 2), plant.size) for rows in (batch, other)
    )
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*map(jax.tree.leaves, (one, two)), strict=True))


def test_the_size_of_a_small_column_is_its_own(plant, batch):
    small = batch._replace(costs=jnp.full(ROWS, 1e-4))
    plant = replace(plant, fitted=jnp.asarray(10_000), size=plant.size.at[COST].set(1e-4))
    for _ in range(30):
        plant, _ = plant.fit(small, STEPS)
    assert float(plant.size[COST]) == pytest.approx(1e-4, rel=1e-4)


def test_states_are_left_where_a_column_is_a_tenth_of_its_range_outside_the_log(plant):
    """Ranges of [-1, 3], [0, 1] and [5, 5.5]: margins of 0.4, 0.1 and 0.05."""
    plant = replace(plant, low=jnp.asarray([-1.0, 0.0, 5.0]), high=jnp.asarray([3.0, 1.0, 5.5]))
    rows = [
        ([0.0, 0.5, 5.2], False),
        ([-1.39, -0.09, 4.96], False),
        ([3.39, 1.09, 5.54], False),
        ([-1.41, 0.5, 5.2], True),
        ([3.41, 0.5, 5.2], True),
        ([0.0, -0.11, 5.2], True),
        ([0.0, 1.11, 5.2], True),
        ([0.0, 0.5, 4.94], True),
        ([0.0, 0.5, 5.56], True),
        ([9.0, 9.0, 9.0], True),
    ]
    states, expected = jnp.asarray([state for state, _ in rows]), [left for _, left in rows]
    np.testing.assert_array_equal(plant.left(states), expected)
    np.testing.assert_array_equal(plant.left(states.reshape(2, 5, OBS)), np.reshape(expected, (2, 5)))


def test_a_batch_is_cut_into_equal_parts_and_rows_that_are_left_over_are_in_none(batch):
    seven = batch._replace(
        **{name: jnp.concatenate([getattr(batch, name), getattr(batch, name)[:1]]) for name in batch._fields[:6]}
    )
    assert batch._fields[:6] == ("observations", "actions", "rewards", "costs", "next_observations", "continues")
    for count, rows in ((1, [[0, 1, 2, 3, 4, 5, 6]]), (2, [[0, 1, 2], [3, 4, 5]]), (3, [[0, 1], [2, 3], [4, 5]])):
        parts = in_parts(seven, count)
        assert len(parts) == count
        for part, mine in zip(parts, rows, strict=True):
            for name in batch._fields[:6]:
                np.testing.assert_array_equal(getattr(part, name), np.asarray(getattr(seven, name))[mine])
            np.testing.assert_array_equal(part.starts, batch.starts)


def test_a_batch_with_fewer_rows_than_parts_is_every_part(batch):
    one = batch._replace(**{name: getattr(batch, name)[:1] for name in batch._fields[:6]})
    parts = in_parts(one, 2)
    assert len(parts) == 2
    for part in parts:
        assert all(map(np.array_equal, *map(jax.tree.leaves, (part, one))))


def test_it_learns_a_linear_plant():
    """Episodes terminate where the first number of the state is over 1."""
    rng = np.random.default_rng(2)
    pull, push = np.array([[0.9, 0.1], [-0.1, 0.8]]), np.array([[0.3], [0.1]])
    states, actions = rng.normal(size=(4096, 2)), rng.uniform(-1, 1, size=(4096, 1))
    following, costs = states @ pull.T + actions @ push.T, np.abs(actions[:, 0])
    rewards, goes_on = 5.0 * states[:, 1] - 2.0, states[:, 0] <= 1.0
    columns = [jnp.asarray(x, jnp.float32) for x in (states, actions, rewards, costs, following, goes_on)]
    log = Batch(*columns, starts=jnp.asarray(states[:8], jnp.float32))

    def one(plant, key):
        rows = jax.random.randint(key, (128,), 0, 4096)
        drawn = [x[rows] for x in (log.observations, log.actions, log.rewards, log.costs, log.next_observations)]
        return plant.fit(Batch(*drawn, log.continues[rows], log.starts), 2000)

    plant, losses = jax.lax.scan(one, Plant.create(Spec(2, 1), (16,), KEY), jax.random.split(KEY, 2000))
    assert float(losses[-100:].mean()) < 0.01
    told = plant(log.observations, log.actions)
    assert float(jnp.sqrt(jnp.mean((told.observations - log.next_observations)[goes_on] ** 2))) < 0.03
    assert float(jnp.mean(jnp.abs(told.costs - log.costs))) < 0.05
    assert float(jnp.mean(jnp.abs(told.rewards - log.rewards))) < 0.25  # a twentieth of their spread
    assert np.mean((np.asarray(told.terminated) > 0.5) == ~goes_on) > 0.97
    assert float(told.terminated[states[:, 0] > 1.5].min()) > 0.5


def imagined_once(seed=0, times=None):
    rng = np.random.default_rng(seed)
    fresh = Imagined.create(Spec(OBS, ACT, horizon=HORIZON), jnp.asarray([LIMIT]), DISCOUNT, KEY)
    return replace(
        fresh,
        observations=jnp.asarray(rng.normal(size=(UNDER_WAY, OBS)), jnp.float32),
        times=fresh.times if times is None else jnp.asarray(times, jnp.int32),
        discounted=jnp.asarray(rng.uniform(size=UNDER_WAY), jnp.float32),
        steps=jnp.asarray(100, jnp.int32),
    )


def test_a_step_of_every_episode_is_the_loop_over_them(plant, actors, batch):
    """Times from 0 to the horizon, some rows lost, some terminated: each row by hand."""
    before = imagined_once(times=np.arange(UNDER_WAY) % HORIZON)
    after = before.advance(plant, *modes(actors), batch.starts, DISCOUNT)
    late, complete, lost_rows, ends = ([[], []] for _ in range(4))
    for i in range(UNDER_WAY):
        state = np.asarray(before.observations[i], np.float64)
        half = int(i >= HALF)
        action = np.tanh(forward(actors[half].mlp, state)[:ACT])
        told = told_by(plant, np.concatenate([state, action]))
        following, cost = state + told[:OBS], max(told[COST], 0.0)
        time = i % HORIZON
        total = float(before.discounted[i]) + DISCOUNT**time * cost
        lost = bool(np.any(np.abs(following) > 1.5 + 0.1 * 3.0))
        ends[half].append(not lost and told[TERMINATION] > TERMINATED)
        lost |= told[TERMINATION] > TERMINATED
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
    assert all(0 < sum(ended) < sum(rows) < HALF for rows, ended in zip(lost_rows, ends, strict=True))  # all happen
    assert all(0.0 == min(costs) < max(costs) for costs in late)
    pace = [0.1 * LIMIT + 0.005 * (np.mean(costs) - 0.1 * LIMIT) for costs in late]
    np.testing.assert_allclose(after.pace, pace, rtol=1e-4)
    tails = [DISCOUNT**HORIZON * p / (1 - DISCOUNT) for p in pace]
    starts = [LIMIT + 0.05 * (np.mean(t) + tail - LIMIT) for t, tail in zip(complete, tails, strict=True)]
    np.testing.assert_allclose(after.from_start, starts, rtol=1e-4)


def test_episodes_that_did_not_begin_at_a_start_do_not_count(plant, actors, batch):
    early = replace(imagined_once(times=np.full(UNDER_WAY, HORIZON - 1)), steps=jnp.asarray(HORIZON - 1))
    np.testing.assert_array_equal(
        early.advance(plant, *modes(actors), batch.starts, DISCOUNT).from_start, [LIMIT, LIMIT]
    )


def test_a_constant_cost_is_found_whatever_the_horizon(actors, batch):
    """A plant that stands still and costs 0.3 a step: 0.3 / (1 - discount) from the start, and as a pace."""
    plant = Plant.create(Spec(OBS, ACT), (8,), KEY)
    still = jax.tree.map(jnp.zeros_like, plant.networks[0])
    still = eqx.tree_at(lambda mlp: mlp.layers[-1].bias, still, jnp.asarray([0, 0, 0, 0.3, -7.0, 0.0]))
    plant = replace(plant, networks=(still, still), low=jnp.full(OBS, -9.0), high=jnp.full(OBS, 9.0))
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


def known(plant):
    """The model, as if it had learned for long and explained everything."""
    return replace(plant, errors=jnp.zeros_like(plant.errors), fitted=jnp.asarray(10_000, jnp.int32))


def test_an_update_moves_the_slack_only_after_the_policy_settled_and_by_a_model_that_predicts(batch, departed):
    state = small_state(departed)
    after, metrics = departed.update(state, batch, KEY)
    assert int(after.imagined.steps) == 1
    assert float(after.slack[0]) == 1.0
    assert "imagined_cost" in metrics
    for error in (0.0, 0.9 * PREDICTED):
        plant = replace(known(state.plant), errors=jnp.full(OBS + 1, error))
        late, _ = departed.update(replace(state, step=jnp.asarray(SETTLED), plant=plant), batch, KEY)
        rate = float(feedback_rate(jnp.asarray(SETTLED + 1), jnp.asarray(error), departed.feedback))
        cost = float(late.imagined.cost(departed.discount)[0])
        assert float(late.slack[0]) == pytest.approx(1.0 + rate * (AIM - cost / 0.05), abs=1e-5)
        assert abs(float(late.slack[0]) - 1.0) > 1e-4
    unknown = replace(state.plant, errors=jnp.full(OBS + 1, 2 * PREDICTED))
    badly, _ = departed.update(replace(state, step=jnp.asarray(SETTLED), plant=unknown), batch, KEY)
    assert float(badly.slack[0]) == 1.0


def test_the_model_learns_in_the_stage_of_the_detector_and_is_then_fixed(batch, departed):
    method = replace(departed, cvae_steps=6)
    state = small_state(method)
    state = replace(state, plant=replace(state.plant, fitted=jnp.asarray(2)))
    expected, error = state.plant.fit(batch, 6)
    detector, metrics = method.update_detector(state, batch, KEY)
    assert all(map(np.array_equal, *map(jax.tree.leaves, (detector.plant, expected))))
    assert float(metrics["plant_loss"]) == float(error)
    policy, metrics = method.update(state, batch, KEY)
    assert all(map(np.array_equal, *map(jax.tree.leaves, (policy.plant, state.plant))))
    assert "plant_loss" not in metrics


def test_episodes_are_imagined_by_the_newest_actors(batch, departed):
    state = small_state(departed)
    after, _ = departed.update(state, batch, KEY)
    actors = after.actor.mode, after.averaged_actor.mode
    expected = state.imagined.advance(state.plant, *actors, batch.starts, departed.discount)
    for a, b in zip(*map(jax.tree.leaves, (after.imagined, expected)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_range_of_limits_has_a_pace_and_a_cost_for_each_band(plant, actors, batch):
    """Four bands: the rows of each half are cut into four groups, the bands in order; each row by hand."""
    limits = np.asarray([2.0, 4.0, 6.0, 8.0])
    fresh = Imagined.create(Spec(OBS, ACT, horizon=HORIZON), jnp.asarray(limits, jnp.float32), DISCOUNT, KEY)
    before = replace(
        imagined_once(times=np.full(UNDER_WAY, HORIZON // 2)), pace=fresh.pace, from_start=fresh.from_start
    )
    after = before.advance(plant, *modes(actors), batch.starts, DISCOUNT)
    for half in range(2):
        for band in range(4):
            rows = half * HALF + np.arange(band * HALF // 4, (band + 1) * HALF // 4)
            states = np.asarray(before.observations, np.float64)[rows]
            actions = np.tanh(forward(actors[half].mlp, states)[:, :ACT])
            told = told_by(plant, np.concatenate([states, actions], -1))
            was, now = (1 - DISCOUNT) * limits[band], np.maximum(told[:, COST], 0.0).mean()
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
    costs = jnp.asarray([10.0, 30.0, 30.0, 90.0, 40.0, 45.0, 50.0, 57.0])
    imagined = replace(state.imagined, from_start=jnp.tile(costs, 2), pace=jnp.zeros(2 * BANDS))
    settled = replace(state, step=jnp.asarray(SETTLED), plant=known(state.plant), imagined=imagined)
    late, _ = method.update(settled, batch, KEY)
    rate = float(feedback_rate(jnp.asarray(SETTLED + 1), late.plant.error, method.feedback))
    now = np.asarray(late.imagined.cost(method.discount))  # after one more step of the episodes
    middles = 20.0 + 40.0 * (np.arange(BANDS) + 0.5) / BANDS
    np.testing.assert_allclose(late.slack, 1.0 + rate * (AIM - now / middles), atol=1e-5)
    assert float(late.slack[0]) > 1.0 > float(late.slack[3])


def test_without_feedback_there_is_no_model(batch, departed):
    method = replace(departed, feedback=0.0)
    state = method.init(KEY, jnp.asarray(30.0), Spec(OBS, ACT))
    assert (state.plant, state.imagined, state.clone, state.starts) == (None, None, None, None)
    after, metrics = method.update(replace(state, step=jnp.asarray(SETTLED)), batch, KEY)
    assert float(after.slack[0]) == 1.0
    assert "slack" not in metrics
