"""Roll-outs in a model of the plant."""

from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.logs import random_walks

from ringfence.data import Dataset
from ringfence.data.trips import Trips
from ringfence.evaluation.ope.dynamics import BEHIND, DISTURBED, Dynamics, _residual, fit_dynamics, network_spread
from ringfence.evaluation.ope.regression import draw_weights
from ringfence.evaluation.ope.rollouts import RollOuts
from ringfence.networks import MLP

by_plant = partial(np.mean, axis=1)
ENDS = 0.1  # the probability that an episode terminates in a step


def linear_network(push: float) -> MLP:
    """s' = s - push a, reward s, cost 3 a, an episode in ten ends in each step: without hidden layers."""
    network = MLP(2, 4, (), key=jax.random.key(0))
    weight = jnp.array([[0, 1, 0, 0], [-push, 0, 3, 0]])
    bias = jnp.array([0, 0, 0, np.log(ENDS / (1 - ENDS))])
    return eqx.tree_at(lambda n: (n.layers[0].weight, n.layers[0].bias), network, (weight, bias))


NEVER = Trips(np.full(1, -np.inf, np.float32), np.full(1, np.inf, np.float32))


@pytest.fixture(scope="module")
def plant():
    network = linear_network(push=0.5)
    one, wide = np.ones(1, np.float32), np.full(2, 99, np.float32)
    unscaled = np.zeros(2, np.float32), np.ones(2, np.float32)
    told = np.zeros(3, np.float32), np.ones(3, np.float32)
    return Dynamics((network, network), 8 * np.ones((5, 1), np.float32), -4 * one, 4 * one, -99 * one, 99 * one, -wide, wide,
                    unscaled, told, NEVER, NEVER)  # fmt: skip


def test_a_roll_out_adds_up_discounted_steps_that_are_still_alive(plant):
    rolled = plant.roll_out(lambda s: s, 3, 0.9)  # the action is the state, cut off at 4: s = 8, 6, 4
    alive = 0.9 * (1 - ENDS)
    assert by_plant(rolled.imagined_return) == pytest.approx([8 + 6 * alive + 4 * alive**2] * 2)
    assert by_plant(rolled.imagined_cost) == pytest.approx([12 * (1 + alive + alive**2)] * 2)
    last = np.zeros(rolled.alive.shape, bool)
    last[2] = True
    assert rolled.share(last) == pytest.approx(alive**2 / (1 + alive + alive**2))


def test_a_plant_is_the_mean_of_all_networks_but_one_and_the_spread_is_that_of_single_networks(plant):
    model = replace(plant, networks=tuple(map(linear_network, (0.25, 0.5, 1.5))), usual=2.0)
    rolled = model.roll_out(lambda s: 0 * s + 4, 2, 0.9)
    # s' = 8 - push x 4, where push is the mean of the two others: 1, 7 / 8, 3 / 8
    assert rolled.observations[1, :, 0, 0] == pytest.approx([4, 4.5, 6.5])
    returned = 8 + 0.9 * (1 - ENDS) * np.array([4, 4.5, 6.5])
    assert by_plant(rolled.imagined_return) == pytest.approx(returned)
    apart = model.step(rolled.observations[0], rolled.actions[0])[3]
    assert apart == pytest.approx(np.std([1, 2, 6]) / 2 * np.ones((3, 5)))  # changes of -1, -2 and -6
    single = np.array([3.0, 5.0, 6.0, 10.0])
    assert network_spread((single.sum() - single) / 3) == pytest.approx(single.std(ddof=1))


def test_where_no_logged_episode_terminates_there_are_disturbed_roll_outs_too(plant):
    """Of a state that stays where it is, each step adds noise of the size of the model's error: after n steps the variance
    is n times as large."""
    calm = replace(plant, starts=np.zeros((4000, 1), np.float32), residual=np.array([0.5], np.float32))
    assert calm.roll_out(lambda s: 0 * s, 3, 0.9).disturbed is None  # some logged episodes terminate
    rolled = replace(calm, terminates=False).roll_out(lambda s: 0 * s, 10, 0.9)
    assert not rolled.observations.any()
    assert rolled.disturbed.disturbed is None
    spread = rolled.disturbed.observations.std((1, 2, 3))
    assert spread == pytest.approx(DISTURBED * 0.5 * np.sqrt(np.arange(10)), rel=0.05)
    again = replace(calm, terminates=False).roll_out(lambda s: 0 * s, 10, 0.9)
    np.testing.assert_array_equal(again.disturbed.observations, rolled.disturbed.observations)
    narrow = replace(calm, terminates=False, most=np.ones(1, np.float32)).roll_out(lambda s: 0 * s, 10, 0.9)
    assert narrow.disturbed.observations.max() == 1  # roll-outs stay in the log's range


def test_the_same_disturbance_moves_every_plant(plant):
    """How far the plants differ is then a difference of the networks, and not of the noise."""
    moved = replace(plant, terminates=False, residual=np.array([0.5], np.float32)).roll_out(lambda s: 0 * s, 4, 0.9)
    first, second = np.moveaxis(moved.disturbed.observations, 1, 0)
    np.testing.assert_array_equal(first, second)
    assert first[3].std() > 0.1


def rolled_out(costs, **changes):
    """Of one step: costs (plants, roll-outs), all alive."""
    costs = np.asarray(costs, np.float32)[None]
    one, blank = np.ones_like(costs), np.zeros((*costs.shape, 1), np.float32)
    return RollOuts(blank, blank, 0 * one, costs, one, one, one, one, 0.9, **changes)


def test_ends_scatter_and_start_spread_are_of_calm_and_disturbed_roll_outs():
    calm, wild = [[1.0, 3.0], [2.0, 2.0]], [[0.0, 8.0], [5.0, 7.0]]
    rolled = rolled_out(calm, disturbed=rolled_out(wild))
    least, most = rolled.ends("cost")
    assert (least.tolist(), most.tolist()) == ([2, 2], [4, 6])
    assert rolled.greatest_cost.tolist() == [4, 6]
    assert sorted(rolled.scatter) == [-4, -1, 1, 4]  # of the disturbed ones, around the mean of their plant
    # Means over plants by start: 1.5 and 2.5, 2.5 and 7.5; standard errors 0.5 and 2.5.
    assert rolled.start_spread("cost") == pytest.approx(2.5)
    assert rolled_out(calm).start_spread("cost") == pytest.approx(0.5)
    assert rolled_out([[1.0], [2.0]]).start_spread("cost") == 0
    assert rolled_out(calm).scatter.tolist() == [-1, 1, 0, 0]


def test_the_most_that_a_policy_costs_counts_no_end_by_a_level_in_disturbed_roll_outs_either():
    none = np.zeros((1, 1, 2), np.float32)
    fallen = replace(rolled_out([[5.0, 7.0]]), alive=none, perhaps_alive=none)
    rolled = rolled_out([[1.0, 3.0]], disturbed=fallen)
    assert rolled.ends("cost")[1].tolist() == [2]
    assert rolled.greatest_cost.tolist() == [6]


@pytest.mark.parametrize(("terminated", "often"), [(0, False), (2, False), (3, True)])
def test_hardly_any_termination_is_one_of_twenty_episodes_at_most(terminated, often):
    """Of 50 episodes of ten steps."""
    rng, ends = np.random.default_rng(0), np.arange(1, 501) % 10 == 0
    ended = ends & (np.arange(500) < 10 * terminated)
    states = rng.normal(size=(500, 1))
    log = Dataset.from_arrays(
        observations=states, next_observations=states, actions=rng.uniform(-1, 1, (500, 1)), rewards=np.ones(500),
        costs=np.ones(500), terminations=ended, truncations=ends & ~ended, action_low=[-1.0], action_high=[1.0],
    )  # fmt: skip
    assert fit_dynamics(log, 10, members=2, steps=2).terminates is often


def test_columns_whose_changes_are_noise_make_a_plant_noisy_and_a_clock_does_not():
    """Columns: one that the action moves, a clock, noise that comes back to 0, one that never changes."""
    rng, episodes, length = np.random.default_rng(0), 60, 20
    moved, noise, rows = rng.normal(size=episodes), rng.normal(size=episodes), []
    for step in range(length + 1):
        action = rng.uniform(-1, 1, episodes)
        clock = np.full(episodes, step / length)
        rows.append((np.stack([moved, clock, noise, np.full(episodes, 7.0)], 1), action))
        moved = 0.9 * moved + action / 2
        noise = 0.7 * noise + 0.7 * rng.standard_normal(episodes)
    states, actions = (np.stack(column, 1) for column in zip(*rows, strict=True))
    count = episodes * length
    log = Dataset.from_arrays(
        observations=states[:, :-1].reshape(count, 4), next_observations=states[:, 1:].reshape(count, 4),
        actions=actions[:, :-1].reshape(count, 1), rewards=np.ones(count), costs=np.ones(count),
        terminations=np.zeros(count, bool), truncations=np.arange(1, count + 1) % length == 0,
        action_low=[-1.0], action_high=[1.0],
    )  # fmt: skip
    model = fit_dynamics(log, length, members=2, steps=400)
    assert model.noisy == (2,)
    # Of x' = 0.7 x + e the change varies by 2 V (1 - 0.7), and e by V (1 - 0.7 ** 2): at least (1 + 0.7) / 2 is unexplained.
    assert model.unexplained[2] > 0.8


def test_the_disturbance_is_the_models_error_on_rows_that_it_has_not_seen():
    """A network that says 0 misses changes of 3 in one column and of 4 in the rows that were not drawn for it, of 0 in the
    others."""
    network = jax.tree.map(jnp.zeros_like, MLP(2, 5, (), key=jax.random.key(0)))
    drawn = np.array([1.0, 1.0, 0.0, 0.0])
    changes = np.array([[3, 0], [3, 0], [3, 4], [3, 4]], np.float32)
    assert _residual((network,), np.zeros((4, 2)), changes, [drawn]) == pytest.approx([3, 4])
    all_seen = _residual((network,), np.zeros((4, 2)), changes, [np.ones(4)])
    assert all_seen == pytest.approx([3, np.sqrt(8)])


def below(level):
    return Trips(np.full(1, level, np.float32), np.full(1, np.inf, np.float32))


def test_an_episode_ends_when_its_state_passes_a_level(plant):
    """The action is the state, cut off at 4: s = 8, 6, 4, 2, 1. Two plants and five roll-outs are alike."""
    model = replace(plant, trips=below(3), beyond_doubt=below(1.5))
    rolled, alive = model.roll_out(lambda s: s, 5, 0.9), 1 - ENDS
    assert rolled.alive[:, 0, 0] == pytest.approx([1, alive, alive**2, 0, 0])
    assert rolled.steps == pytest.approx(1 + alive + alive**2)
    # A level counts where a step would lead, also outside the range that states are kept in.
    narrow = replace(model, least=np.full(1, 5, np.float32))
    assert narrow.roll_out(lambda s: s, 5, 0.9).alive[:, 0, 0] == pytest.approx(
        [1, alive, alive**2, alive**3, alive**4]
    )
    lower = replace(narrow, trips=below(4.5))
    assert lower.roll_out(lambda s: s, 5, 0.9).alive[:, 0, 0] == pytest.approx([1, alive, 0, 0, 0])


def test_until_an_end_is_beyond_doubt_it_lies_between_here_and_there(plant):
    """The same states. The level of 3 is passed after the third step, that of 1.5 after the fourth."""
    model = replace(plant, trips=below(3), beyond_doubt=below(1.5))
    rolled, going_on = model.roll_out(lambda s: s, 5, 0.9), 0.9 * (1 - ENDS)
    assert rolled.perhaps_alive[:, 0, 0] == pytest.approx([1, 1 - ENDS, (1 - ENDS) ** 2, (1 - ENDS) ** 3, 0])
    certain = 12 * (1 + going_on + going_on**2)  # actions of 4, 4 and 4
    assert by_plant(rolled.known_cost) == pytest.approx([certain] * 2)
    assert by_plant(rolled.imagined_cost) == pytest.approx([certain + 6 * going_on**3] * 2)  # and one of 2
    assert rolled.greatest_cost == pytest.approx([certain + 6 * going_on**3 + 3 * going_on**4] * 2)  # and one of 1
    assert by_plant(rolled.known_return) == pytest.approx([8 + 6 * going_on + 4 * going_on**2] * 2)
    assert by_plant(rolled.imagined_return) == pytest.approx([8 + 6 * going_on + 4 * going_on**2 + 2 * going_on**3] * 2)


def test_a_fitted_model_keeps_states_in_the_logs_range_and_as_far_as_ends_are_in_doubt():
    log = random_walks(low=-1.0)
    model = fit_dynamics(log, 3, members=2, steps=2)
    behind = BEHIND * log.observations.std()
    assert model.beyond_doubt.low == pytest.approx(model.trips.low - behind, rel=1e-5)
    assert model.least == pytest.approx(model.beyond_doubt.low)
    assert model.most == pytest.approx(log.observations.max(0))


def test_rows_are_drawn_as_often_as_their_weights_say():
    """With the steps of a constant rate a network of no inputs learns the mean of what it draws: here of the early rows."""
    episodes, length = 40, 200
    step = np.tile(np.arange(length), episodes)
    states = np.zeros((episodes * length, 1))
    log = Dataset.from_arrays(
        observations=states, next_observations=states, actions=states, rewards=(step < 20).astype(float), costs=0.0 * step,
        terminations=np.zeros(len(step), bool), truncations=step == length - 1, action_low=[-1.0], action_high=[1.0],
    )  # fmt: skip
    model = fit_dynamics(log, 3, members=2, steps=400)
    rolled = model.roll_out(lambda s: 0 * s, 1, 0.9)
    assert rolled.rewards.mean() == pytest.approx(draw_weights(np.full(episodes, length))[step < 20].sum(), abs=0.05)


def test_after_more_disputed_steps_than_allowed_rewards_lie_between_little_and_what_is_imagined(plant):
    model = replace(plant, networks=tuple(map(linear_network, (0.25, 0.5, 1.5))), usual=2.0, allowed=1.0)
    push = lambda s: np.where(s > 4.2, 4, 0).astype(np.float32)  # noqa: E731
    # Changes of -1, -2 and -6 are disputed (a spread of 2.16 over 2), changes of 0 are not. The three plants come from 8 to
    # 4, 4.5 and 6.5. There the first rests, and the two others make their second disputed step.
    rolled, alive = model.roll_out(push, 3, 0.9), 0.9 * (1 - ENDS)
    assert rolled.known[:, :, 0].T.tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert rolled.leaving == pytest.approx(2 / 3 * (1 - ENDS))  # an episode in ten has ended before
    assert by_plant(rolled.known_return) == pytest.approx([8 + 4 * alive + 4 * alive**2, 8, 8])
    assert by_plant(rolled.imagined_return)[:2] == pytest.approx(
        [8 + 4 * alive + 4 * alive**2, 8 + 4.5 * alive + 1 * alive**2]
    )
    at_worst = replace(rolled, unknown_reward=-2.0)
    assert by_plant(at_worst.known_return) == pytest.approx(
        [rolled.imagined_return[0, 0], *[8 - 2 * alive - 2 * alive**2] * 2]
    )
    assert by_plant(rolled.imagined_cost)[:2] == pytest.approx([12, 12 + 12 * alive])
    assert by_plant(rolled.known_cost) == pytest.approx([12, 12, 12])
    assert replace(model, allowed=2.0).roll_out(push, 3, 0.9).known_return[1].mean() > 12


def test_a_roll_out_that_has_terminated_leaves_no_more():
    """Two roll-outs of three steps: one leaves in its second step, the other in its third, after a certain termination."""
    known = np.array([[1, 1], [0, 1], [0, 0]], np.float32)[:, None]
    alive = np.array([[1, 1], [1, 1], [1, 0]], np.float32)[:, None]
    blank = np.zeros((3, 1, 2, 1), np.float32)
    assert RollOuts(blank, blank, known, known, alive, alive, alive, known, 0.9).leaving == 1 / 2
    assert RollOuts(blank, blank, known, known, np.ones_like(alive), alive, alive, known, 0.9).leaving == 1
    assert RollOuts(blank, blank, known, known, alive, alive, alive, known, 0.9).steps == (3 + 2) / 2


def test_disputed_steps_are_counted_in_logged_episodes_as_long_as_a_roll_out():
    rows, length, horizon, rng = 120, 12, 10, np.random.default_rng(0)
    states, actions = rng.normal(size=(rows, 1)), rng.uniform(-1, 1, (rows, 1))
    rewards = np.where(np.arange(rows) < length, -3.0, 1.0)  # the first of ten episodes is the poorest
    log = Dataset.from_arrays(
        observations=states, next_observations=states - actions, actions=actions, rewards=rewards,
        costs=actions[:, 0] ** 2, terminations=np.zeros(rows, bool), truncations=np.arange(1, rows + 1) % length == 0,
        action_low=[-1.0], action_high=[1.0],
    )  # fmt: skip
    model = fit_dynamics(log, horizon, members=3, steps=5)
    scaled = (np.concatenate([states, actions], 1) - model.inputs[0]) / model.inputs[1]
    changes = np.stack([network(jnp.asarray(scaled, jnp.float32))[:, 0] for network in model.networks])
    apart = changes.std(0).reshape(-1, length)[:, :horizon]
    assert model.usual == pytest.approx(np.quantile(apart, 0.97), rel=1e-5)
    assert model.allowed == pytest.approx(np.quantile((apart > np.quantile(apart, 0.97)).sum(1), 0.97))
    assert model.unknown_reward == -3


def test_a_roll_out_stays_in_the_range_of_logged_states(plant):
    narrow = replace(plant, least=np.full(1, 7, np.float32))
    assert narrow.roll_out(lambda s: s, 3, 0.9).observations[:, 0, 0, 0].tolist() == [8, 7, 7]


def test_a_fitted_model_foretells_a_policy_that_is_no_source_of_the_log():
    rng = np.random.default_rng(0)
    episodes, length = 60, 20
    state, rows = rng.normal(2, 0.5, episodes), []
    for step in range(length):
        action = np.clip(0.2 * state + 0.3 * rng.standard_normal(episodes), -1, 1)
        following = 0.9 * state - action / 2
        rows.append((state, action, state, np.abs(action), following, np.full(episodes, step == length - 1)))
        state = following
    s, a, r, c, n, last = (np.stack(column, 1).reshape(-1) for column in zip(*rows, strict=True))
    log = Dataset.from_arrays(
        observations=s[:, None], actions=a[:, None], rewards=r, costs=c, next_observations=n[:, None],
        terminations=np.zeros(len(s), bool), truncations=last.astype(bool), action_low=[-1], action_high=[1],
    )  # fmt: skip
    model = fit_dynamics(log, length, members=2, steps=600)
    rolled = model.roll_out(lambda s: 0.4 * s, length, 0.9)
    # s' = 0.9 s - 0.2 s = 0.7 s, so that the sums are geometric; the cost is 0.4 s while that is below 1.
    start, total = model.starts.mean(), (1 - 0.63**length) / (1 - 0.63)
    assert by_plant(rolled.imagined_return) == pytest.approx([start * total] * 2, rel=0.05)
    assert by_plant(rolled.imagined_cost) == pytest.approx([0.4 * start * total] * 2, rel=0.08)


@pytest.mark.parametrize("episodes", [1, 2])
def test_members_share_the_episodes_of_a_log_with_too_few_for_folds(episodes):
    rows, rng = 40, np.random.default_rng(0)
    states, actions = rng.normal(size=(rows, 1)), rng.uniform(-1, 1, (rows, 1))
    ends = np.arange(1, rows + 1) % (rows // episodes) == 0
    log = Dataset.from_arrays(
        observations=states, next_observations=states - actions, actions=actions, rewards=states[:, 0],
        costs=actions[:, 0] ** 2,
        terminations=np.zeros(rows, bool), truncations=ends, action_low=[-1.0], action_high=[1.0],
    )  # fmt: skip
    assert np.isfinite(fit_dynamics(log, 3, steps=2).roll_out(lambda s: 0 * s, 3, 0.9).imagined_cost).all()


def test_a_fitted_model_ends_episodes_at_levels_and_by_chance_where_none_explains_them():
    """All logged episodes drift at random; the policy goes up by 0.3 in each step, to the level of 1.5."""
    model = fit_dynamics(random_walks(high=1.5, episodes=100), 30, members=2, steps=500)
    rolled = model.roll_out(lambda s: np.ones_like(s), 30, 0.9)
    steps = np.ceil((1.5 - model.starts[:, 0]) / 0.3)
    assert rolled.alive.sum(0).mean(0) == pytest.approx(steps, abs=1.2)
    assert rolled.alive[0].min() == 1.0

    model = fit_dynamics(random_walks(at_random=0.05, episodes=200), 30, members=2, steps=500)
    rolled = model.roll_out(lambda s: 0 * s, 30, 0.9)
    assert rolled.steps == pytest.approx((1 - 0.95**30) / 0.05, rel=0.2)
