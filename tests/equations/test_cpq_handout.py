"""The safe clone, the episodes in which policies are compared, and the choice of the one handed out, against plain NumPy."""

from dataclasses import replace
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import Spec, cpq_handout
from ringfence.algorithms.cpq_clone import CLONE_MEMORY, CLONED, EPISODE_COST, Clone, cloning_loss_over, episode_costs
from ringfence.algorithms.cpq_expected import (
    CLONE,
    CLONE_GAIN,
    CLONE_RAISED,
    EPISODES,
    FARTHEST,
    GAINS,
    NOISE,
    SHAKEN,
    SHAKEN_EPISODES,
    Expected,
    Policies,
    gains_around_one,
    imagine,
    with_gain,
)
from ringfence.algorithms.cpq_handout import (
    DISPUTED,
    LEAD,
    LEAST_SAVED,
    LOWEST,
    MORE_EARLY_ENDS,
    MORE_THAN_CLONE,
    RAISED,
    Choice,
    Doubts,
    choice_in_words,
    choose_clone,
    choose_policy,
    doubts_of,
    hand_out_of,
    is_chosen,
    is_worth_pacing,
    is_worth_saving,
    pacing_in_words,
)
from ringfence.algorithms.cpq_imagined import AIM, HELD_OUT, PREDICTED, SETTLED, TERMINATED, Plant, held_out_rows
from ringfence.data import Dataset
from ringfence.networks import TanhGaussianActor
from ringfence.optimise import Adam
from tests.equations import reference
from tests.equations.conftest import ACT, OBS, ROWS, small_state

pytestmark = pytest.mark.usefixtures("quick_compilation")
KEY = jax.random.key(3)
DISCOUNT, HORIZON = 0.9, 12
COST, REWARD, TERMINATION = OBS, OBS + 1, OBS + 2  # columns of the model, after the changes of the state
PLAIN = GAINS // 2
DISTURBED = 0.5  # of what is left unexplained


def same(one, two):
    return all(map(np.array_equal, *map(jax.tree.leaves, (one, two))))


# The safe clone

LENGTHS = (3, 1, 5, 2, 4)
COSTS = np.random.default_rng(4).uniform(size=sum(LENGTHS))


def log_of_episodes(sources=None):
    """Episodes of different lengths; the last but one was terminated."""
    rows = sum(LENGTHS)
    ends = np.cumsum(LENGTHS) - 1
    truncations, terminations = np.isin(np.arange(rows), ends), np.arange(rows) == ends[-2]
    return Dataset.from_arrays(
        observations=np.arange(rows)[:, None],
        next_observations=np.arange(rows)[:, None],
        actions=np.zeros((rows, 1)),
        rewards=np.ones(rows),
        costs=COSTS,
        terminations=terminations,
        truncations=truncations & ~terminations,
        source=None if sources is None else np.repeat(sources, LENGTHS),
        source_names=() if sources is None else ("a", "b", "c"),
    )


def discounted_costs(discount):
    """Of each episode, by a loop over its rows."""
    found, row = [], 0
    for length in LENGTHS:
        found.append(sum(discount**t * COSTS[row + t] for t in range(length)))
        row += length
    return found


def test_without_sources_a_row_has_the_discounted_cost_of_its_episode():
    expected = [cost for cost, length in zip(discounted_costs(0.5), LENGTHS, strict=True) for _ in range(length)]
    found = episode_costs(log_of_episodes(), 0.5)
    assert (found.shape, found.dtype) == ((sum(LENGTHS), 1), np.float32)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)


def test_with_sources_a_row_has_the_mean_over_the_episodes_of_its_source():
    """The third source wrote one episode, the first two have two each."""
    costs, sources = discounted_costs(0.5), [1, 0, 1, 2, 0]
    means = {0: (costs[1] + costs[4]) / 2, 1: (costs[0] + costs[2]) / 2, 2: costs[3]}
    expected = [means[source] for source, length in zip(sources, LENGTHS, strict=True) for _ in range(length)]
    found = episode_costs(log_of_episodes(sources), 0.5)
    assert (found.shape, found.dtype) == ((sum(LENGTHS), 1), np.float32)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)


def test_cpq_asks_for_the_costs_of_episodes_at_its_own_discount(departed):
    columns = replace(departed, discount=0.5).columns(log_of_episodes())
    assert list(columns) == ["episode_cost", "held_out"] == [EPISODE_COST, HELD_OUT]
    np.testing.assert_array_equal(columns[HELD_OUT], held_out_rows(log_of_episodes()))
    np.testing.assert_array_equal(columns[EPISODE_COST], episode_costs(log_of_episodes(), 0.5))


@pytest.fixture
def actor():
    return TanhGaussianActor(OBS, ACT, (8, 8), key=jax.random.key(5))


def log_likelihood(actor, observation, action):
    """The density of a = tanh(u) is that of u over |da/du| = 1 - a^2, dimension by dimension."""
    output = reference.mlp(actor.mlp, observation)
    mean, log_std = output[:ACT], np.clip(output[ACT:], -5, 2)
    total = 0.0
    for j in range(ACT):
        z = (np.arctanh(action[j]) - mean[j]) / np.exp(log_std[j])
        density = np.exp(-0.5 * z**2) / (np.sqrt(2 * np.pi) * np.exp(log_std[j]))
        total += np.log(density / (1 - action[j] ** 2))
    return total


SAFE = np.array([1, 0, 1, 0, 0, 1], np.float32)


def test_the_loss_of_the_clone_is_the_negative_mean_log_density_over_safe_rows(actor, batch):
    pairs = list(zip(np.asarray(batch.observations), np.asarray(batch.actions, np.float64), strict=True))
    for safe in (SAFE, np.eye(ROWS, dtype=np.float32)[4], np.ones(ROWS, np.float32)):
        expected = -np.mean([log_likelihood(actor, *pairs[i]) for i in range(ROWS) if safe[i]])
        assert float(cloning_loss_over(actor, batch, jnp.asarray(safe))) == pytest.approx(expected, rel=1e-4)


def test_a_batch_without_safe_rows_has_no_loss_and_no_gradient(actor, batch):
    loss, gradient = jax.value_and_grad(cloning_loss_over)(actor, batch, jnp.zeros(ROWS))
    assert float(loss) == 0.0
    assert all(np.all(np.asarray(leaf) == 0.0) for leaf in jax.tree.leaves(gradient))


def test_unsafe_rows_have_no_influence_and_actions_at_the_bounds_leave_the_gradient_finite(actor, batch):
    edges = jnp.asarray([[1.0, -1.0]] * ROWS)
    unsafe = jnp.asarray(SAFE == 0)[:, None]
    other = batch._replace(
        observations=jnp.where(unsafe, 50.0, batch.observations), actions=jnp.where(unsafe, edges, batch.actions)
    )
    here, there, bounds = (
        jax.value_and_grad(cloning_loss_over)(actor, rows, jnp.asarray(SAFE))
        for rows in (batch, other, batch._replace(actions=edges))
    )
    assert same(here, there)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((here, bounds)))
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(here[1])) > 1e-3


def with_costs(batch, costs):
    return batch._replace(extras={EPISODE_COST: jnp.asarray(costs, jnp.float32)[:, None]})


def test_the_clone_learns_from_rows_inside_the_limit_and_counts_them(actor, batch):
    """0.3 has no exact binary form: the row at the limit is inside all the same."""
    limit, adam = jnp.asarray(0.3), Adam(1e-3)
    clone = Clone.create(actor, adam)
    assert float(clone.rows) == 0.0
    rows = with_costs(batch, [0.1, 0.30001, 0.3, 5.0, 0.4, 0.0])  # the safe ones are those of SAFE
    after = clone.fit(rows, limit, adam)
    assert (float(after.rows), float(after.others)) == (3.0, 3.0)
    gradient = jax.grad(cloning_loss_over)(actor, batch, jnp.asarray(SAFE))
    for g, old, new in zip(*map(jax.tree.leaves, (gradient, actor, after.actor)), strict=True):
        clear = np.abs(g) > 1e-5
        step = np.asarray(new) - np.asarray(old)
        np.testing.assert_allclose(step[clear], -1e-3 * np.sign(np.asarray(g)[clear]), rtol=0.05)  # Adam's first step
    assert same(after.averaged, after.actor)
    again = after.fit(rows, jnp.asarray(0.05), adam)  # only the last row
    assert (float(again.rows), float(again.others)) == (4.0, 8.0)
    assert int(again.optimiser[0].count) == 2


def test_the_candidate_is_the_mean_of_the_first_iterates_and_then_a_running_mean(actor, batch):
    adam, rows = Adam(1e-2), with_costs(batch, 1.0 - SAFE)
    clone = Clone.create(actor, adam)
    iterates = []
    for _ in range(4):
        clone = clone.fit(rows, jnp.asarray(0.5), adam)
        iterates.append(clone.actor)
    for mean, *values in zip(*map(jax.tree.leaves, (clone.averaged, *iterates)), strict=True):
        np.testing.assert_allclose(mean, np.mean(np.array(values), 0), rtol=1e-4, atol=1e-6)
    later = replace(clone, steps=jnp.asarray(10.0 * CLONE_MEMORY)).fit(rows, jnp.asarray(0.5), adam)
    for old, newest, mean in zip(*map(jax.tree.leaves, (clone.averaged, later.actor, later.averaged)), strict=True):
        np.testing.assert_allclose(mean, old + (newest - old) / CLONE_MEMORY, rtol=1e-4, atol=1e-6)


def test_the_clone_goes_down_its_loss(actor, batch):
    adam, rows = Adam(3e-3), with_costs(batch, 1.0 - SAFE)

    def one(clone, _):
        return clone.fit(rows, jnp.asarray(0.5), adam), cloning_loss_over(clone.actor, batch, jnp.asarray(SAFE))

    clone, losses = jax.lax.scan(one, Clone.create(actor, adam), length=300)
    assert np.all(np.diff(losses[:20]) < 0)
    assert float(losses[-1]) < float(losses[0]) - 1.0
    assert float(clone.rows) == 900.0
    safe = SAFE == 1
    distance = np.abs(np.asarray(clone.actor.mode(batch.observations)) - np.asarray(batch.actions)).max(1)
    assert distance[safe].max() < 0.1 < distance[~safe].min()  # it copies the safe rows and not the others


# What a policy earns and costs in the model


def costlier(network):
    """With costs and rewards of either sign, and an end that is likely in some states."""
    moved = jnp.zeros(OBS + 3).at[COST].set(0.2).at[REWARD].set(-0.25).at[TERMINATION].set(0.8)
    return eqx.tree_at(lambda mlp: mlp.layers[-1].bias, network, replace_fn=lambda bias: bias + moved)


def told_by(plant, pair):
    """What the networks say on average, over the sizes in the log."""
    return np.mean([reference.mlp(network, pair) for network in plant.networks], 0)


@pytest.fixture
def plant():
    """A model in which some episodes terminate, some leave the log's states and some reach the horizon."""
    fresh = Plant.create(Spec(OBS, ACT), (8, 8), KEY)
    return replace(
        fresh,
        networks=tuple(map(costlier, fresh.networks)),
        size=jnp.asarray([0.25, 0.15, 0.2, 2.0, 1.5, 0.15]),
        errors=jnp.asarray([0.6, 0.2, 0.4, 1.4]),
        low=jnp.asarray([-1.2, -1.0, -1.4]),
        high=jnp.asarray([1.1, 1.2, 1.3]),
    )


TURNED = np.array([0.3, 1.0, 4.0])  # three candidates: the actor with its mean this many times as large


def turned(actor):
    return lambda states: jnp.tanh(jnp.asarray(TURNED, jnp.float32)[:, None, None] * actor(states).mean)


def imagined_by_loops(plant, actor, starts, cost_of_end):
    """One candidate, episode and step after another, in float64; and how each episode went."""
    size, errors, low, high = (np.asarray(x, np.float64) for x in (plant.size, plant.errors, plant.low, plant.high))
    normals = [np.asarray(jax.random.normal(jax.random.fold_in(KEY, t), starts.shape)) for t in range(HORIZON)]
    returned, cost, completed, ways, losses = [], [], [], [], []
    for gain in TURNED:
        earned = discounted = costs = steps = whole = 0.0
        for episode, start in enumerate(np.asarray(starts, np.float64)):
            state, way, rewards = start, "completed", []
            for t in range(HORIZON):
                action = np.tanh(gain * reference.mlp(actor.mlp, state)[:ACT])
                told = told_by(plant, np.concatenate([state, action])) * size
                rewards.append(told[REWARD])
                discounted += DISCOUNT**t * max(told[COST], 0.0)
                costs += max(told[COST], 0.0)
                steps += 1
                noise = DISTURBED * np.sqrt(errors[:OBS]) * size[:OBS] * normals[t][episode]
                state = state + told[:OBS] + noise
                margin = 0.1 * (high - low)
                if told[TERMINATION] > TERMINATED:
                    way = "terminated"
                elif np.any(state < low - margin) or np.any(state > high + margin):
                    way = "left"
                if way != "completed":
                    discounted += DISCOUNT ** (t + 1) * cost_of_end
                    break
                state = np.clip(state, low, high)
            lost = min(np.mean(rewards), 0.0)  # after an early end a loss goes on, a gain does not
            earned += sum(rewards) + (HORIZON - len(rewards)) * lost
            losses.append(way != "completed" and lost < 0.0)
            whole += way == "completed"
            ways.append(way)
        pace = costs / steps / (1 - DISCOUNT)
        discounted = (discounted + whole * DISCOUNT**HORIZON * pace) / len(starts)
        returned.append(earned / len(starts))
        cost.append((discounted, pace))
        completed.append(whole / len(starts))
    return np.array(returned), np.array(cost), np.array(completed), ways, losses


@pytest.mark.parametrize(("cost_of_end", "greater"), [(0.5, "pace"), (12.0, "discounted")])
def test_imagined_episodes_are_those_of_a_loop_over_candidates_episodes_and_steps(plant, actor, cost_of_end, greater):
    starts = np.random.default_rng(6).normal(scale=0.5, size=(24, OBS)).astype(np.float32)
    returned, cost, completed, ways, losses = imagined_by_loops(plant, actor, starts, cost_of_end)
    assert 5 < sum(losses) < len(ways) - ways.count("completed") - 5
    assert min(ways.count(way) for way in ("completed", "terminated", "left")) > 5  # of 72
    assert 0.0 < completed.min() < completed.max() < 1.0
    assert np.all((cost[:, 0] > cost[:, 1]) == (greater == "discounted"))
    found = imagine(
        plant,
        turned(actor),
        jnp.broadcast_to(jnp.asarray(starts), (3, *starts.shape)),
        HORIZON,
        DISCOUNT,
        jnp.asarray(cost_of_end),
        jnp.asarray(DISTURBED),
        KEY,
    )
    np.testing.assert_allclose(found.returned, returned, rtol=1e-3)
    np.testing.assert_allclose(found.cost, cost.max(1), rtol=1e-3)
    np.testing.assert_allclose(found.completed, completed, rtol=1e-6)


def test_equal_candidates_have_equal_episodes_and_noise_that_differs_from_step_to_step(plant, actor):
    """The start and the noise of an episode do not depend on the candidate. With a walk that only noise moves, the spread
    after n steps is sqrt(n) times that of one: steps, episodes and numbers have draws of their own."""
    starts = jnp.broadcast_to(jnp.linspace(-0.5, 0.5, 20 * OBS).reshape(20, OBS), (4, 20, OBS))
    found = imagine(plant, lambda s: actor.mode(s), starts, HORIZON, DISCOUNT, jnp.asarray(3.0), jnp.asarray(1.0), KEY)
    for values in found:
        assert len(set(np.asarray(values).tolist())) == 1

    still = eqx.tree_at(
        lambda mlp: mlp.layers[-1], plant.networks[0], replace_fn=lambda x: jax.tree.map(jnp.zeros_like, x)
    )
    walk = replace(plant, networks=(still, still), low=jnp.full(OBS, -90.0), high=jnp.full(OBS, 90.0))
    seen = []

    def look(states):
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), states, ordered=True)
        return actor.mode(states)

    many = jnp.zeros((1, 2000, OBS))
    imagine(walk, look, many, 9, DISCOUNT, jnp.asarray(3.0), jnp.asarray(DISTURBED), KEY)
    jax.effects_barrier()
    spread = DISTURBED * np.sqrt(np.asarray(plant.errors[:OBS])) * np.asarray(plant.size[:OBS])
    for steps in (1, 4, 8):
        np.testing.assert_allclose(seen[steps][0].std(0), np.sqrt(steps) * spread, rtol=0.06)
        correlations = np.corrcoef(seen[steps][0].T) - np.eye(OBS)
        assert np.abs(correlations).max() < 0.1


def linear_plant(cost=(0.0, 0.0), reward=(0.0, 0.0), terminated=0.0):
    """A model in which states stand still and nothing is left unexplained. A step costs cost[0] times the first action plus
    cost[1] and earns reward[0] times the second action plus reward[1]. `terminated` is how likely the end is."""
    fresh = Plant.create(Spec(OBS, ACT), (), KEY)
    weight, bias = np.zeros((OBS + ACT, OBS + 3)), np.zeros(OBS + 3)
    weight[OBS, COST], bias[COST] = cost
    weight[OBS + 1, REWARD], bias[REWARD] = reward
    bias[TERMINATION] = terminated
    told = eqx.tree_at(
        lambda mlp: (mlp.layers[0].weight, mlp.layers[0].bias),
        fresh.networks[0],
        (jnp.asarray(weight, jnp.float32), jnp.asarray(bias, jnp.float32)),
    )
    around = {"low": jnp.full(OBS, -9.0), "high": jnp.full(OBS, 9.0)}
    return replace(fresh, networks=(told, told), errors=jnp.zeros(OBS + 1), **around)


def constant_actor(first, second):
    """An actor with these means before the squash in every state."""
    fresh = TanhGaussianActor(OBS, ACT, (), key=KEY)
    layer = SimpleNamespace(weight=jnp.zeros((OBS, 2 * ACT)), bias=jnp.asarray([first, second, -1.0, -2.0]))
    return eqx.tree_at(lambda a: (a.mlp.layers[0].weight, a.mlp.layers[0].bias), fresh, (layer.weight, layer.bias))


def imagine_by_hand(plant, cost_of_end=7.0):
    act = constant_actor(0.5, 0.25).mode
    found = imagine(plant, act, jnp.zeros((1, 5, OBS)), 4, DISCOUNT, jnp.asarray(cost_of_end), jnp.ones(()), KEY)
    return [float(values[0]) for values in found]


def test_a_constant_cost_is_its_sum_over_an_infinite_horizon_and_the_return_is_that_of_the_horizon():
    """0.3 a step over 4 steps, 0.3 (1 + 0.9 + 0.81 + 0.729), and 0.9^4 x 0.3 / 0.1 beyond: 3 in all, as the pace has it."""
    assert imagine_by_hand(linear_plant(cost=(0.0, 0.3), reward=(0.0, 0.5))) == pytest.approx([2.0, 3.0, 1.0], rel=1e-5)


def test_an_episode_that_terminates_at_once_pays_the_cost_of_the_end_in_place_of_what_would_have_followed():
    """0.3 + 0.9 x 7 = 6.6; with an end that costs nothing the pace of 0.3 / 0.1 is more."""
    ends = linear_plant(cost=(0.0, 0.3), reward=(0.0, 0.5), terminated=1.01 * TERMINATED)
    assert imagine_by_hand(ends) == pytest.approx([0.5, 6.6, 0.0], rel=1e-5)
    assert imagine_by_hand(ends, cost_of_end=0.0) == pytest.approx([0.5, 3.0, 0.0], rel=1e-5)
    goes_on = linear_plant(cost=(0.0, 0.3), reward=(0.0, 0.5), terminated=0.99 * TERMINATED)
    assert imagine_by_hand(goes_on) == pytest.approx([2.0, 3.0, 1.0], rel=1e-5)


# The choice


def test_gains_are_around_one_and_nearer_to_it_where_the_anchor_is_stronger():
    for growth in (1.0, 4.0, 14.0):
        gains = np.asarray(gains_around_one(jnp.asarray(growth)))
        assert gains.shape == (GAINS,)
        assert gains[PLAIN] == 1.0
        np.testing.assert_allclose(gains + gains[::-1], 2.0, rtol=1e-6)
        expected = [1.0 + FARTHEST / growth**2 * (i - PLAIN) / PLAIN for i in range(GAINS)]
        np.testing.assert_allclose(gains, expected, rtol=1e-6)


def test_a_gain_is_a_factor_on_the_mean_before_the_squash_and_on_nothing_else(actor, batch):
    plain, more = actor(batch.observations), with_gain(actor, jnp.asarray(1.3))(batch.observations)
    np.testing.assert_allclose(more.mean, 1.3 * np.asarray(plain.mean), rtol=1e-5)
    np.testing.assert_array_equal(more.log_std, plain.log_std)
    assert same(with_gain(actor, jnp.asarray(1.0)), actor)


@pytest.fixture
def one_aim(monkeypatch):
    """Gains over 1 are held to the same part of the limit as the others."""
    monkeypatch.setattr(cpq_handout, "RAISED", AIM)


EVEN = np.linspace(0.9, 1.1, GAINS)
LIMIT = 30.0


def told(returned, cost, clone=(0.0, 0.0), completed=None, clone_completed=1.0, raised=(-999.0, 999.0, 0.0)):
    """Returns and costs of the gains, then of the clone, and last (`raised`) what the clone with its gain earns, costs and
    completes."""
    whole = np.ones(GAINS) if completed is None else completed
    columns = ([*returned, clone[0]], [*cost, clone[1]], [*whole, clone_completed])
    columns = [[*column, last] for column, last in zip(columns, raised, strict=True)]
    return Expected(*(jnp.asarray(column, jnp.float32) for column in columns))


def choice_of(expected, cloned=True, limit=LIMIT):
    """At a limit that lets gains cost `limit`, and the clone limit / AIM = 30.93 where none is given."""
    found = choose_policy(jnp.asarray(EVEN, jnp.float32), expected, jnp.asarray(limit / AIM), jnp.asarray(cloned))
    return bool(found.clone), *(float(number) for number in found[1:])


RISING = 100.0 + 10.0 * np.arange(GAINS)  # returns: 150 for the averaged actor as it is
OUTSIDE = 31.0 + np.arange(GAINS)  # costs


def test_the_best_return_inside_the_limit_is_chosen(one_aim):
    returned = np.array([1.0, 9.0, 3.0, 8.0, 2.0, 7.0, 4.0, 6.0, 99.0, 5.0, 98.0])
    cost = np.array([10.0, 40.0, 20.0, 29.0, 28.0, 27.0, 26.0, 25.0, 31.0, 24.0, 30.5])
    assert choice_of(told(returned, cost)) == pytest.approx((False, 0.96, 8.0, 29.0))
    assert choice_of(told(returned, cost), limit=28.5) == pytest.approx((False, 1.0, 7.0, 27.0))
    assert choice_of(told(returned, cost), limit=1000.0) == pytest.approx((False, 1.06, 99.0, 31.0))
    assert choice_of(told(returned, cost), limit=29.001) == pytest.approx((False, 0.96, 8.0, 29.0))
    assert choice_of(told(returned, cost), limit=28.999) == pytest.approx((False, 1.0, 7.0, 27.0))


def test_without_a_policy_inside_it_is_the_averaged_actor_as_it_is():
    """Not nearer to the greater gain that earns more; and the clone is outside too."""
    found = choice_of(told(RISING, OUTSIDE, clone=(999.0, 31.0)))
    assert found == (False, 1.0, 150.0, 36.0)


def test_the_clone_is_chosen_where_it_earns_most_and_is_inside(one_aim):
    inside = np.linspace(10.0, 29.0, GAINS)
    assert choice_of(told(RISING, inside, clone=(201.0, 30.9))) == pytest.approx((True, 1.0, 201.0, 30.9))
    assert choice_of(told(RISING, inside, clone=(201.0, 31.0))) == pytest.approx((False, 1.1, 200.0, 29.0))
    assert choice_of(told(RISING, inside, clone=(199.0, 5.0))) == pytest.approx((False, 1.1, 200.0, 29.0))
    assert choice_of(told(RISING, OUTSIDE, clone=(-5.0, 30.0))) == (True, 1.0, -5.0, 30.0)  # the only one


def test_at_a_limit_of_0_the_clone_of_episodes_without_cost_counts_whatever_the_model_says():
    assert choice_of(told(RISING, OUTSIDE, clone=(5.0, 0.01)), limit=0.0) == pytest.approx((True, 1.0, 5.0, 0.01))
    assert choice_of(told(RISING, OUTSIDE, clone=(5.0, 0.01)), limit=0.001) == (False, 1.0, 150.0, 36.0)
    assert choice_of(told(RISING, OUTSIDE, clone=(5.0, 0.01)), cloned=False, limit=0.0) == (False, 1.0, 150.0, 36.0)


@pytest.mark.parametrize(
    ("raised", "taken"),
    [
        ((200.1, 0.969 * LIMIT, 0.781), True),
        ((199.9, 0.969 * LIMIT, 0.781), False),  # it earns less
        ((200.1, 0.971 * LIMIT, 0.781), False),  # costs more than AIM x l
        ((200.1, 0.969 * LIMIT, 0.779), False),  # ends more than 2 % of the episodes early
    ],
)
def test_the_clone_has_the_gain_that_earns_more_inside_the_limit(raised, taken):
    """The clone as it is earns 200 at the limit and completes 0.8 of the episodes."""
    assert (AIM, MORE_EARLY_ENDS) == (0.97, 0.02)
    found = choose_clone(told(RISING, OUTSIDE, (200.0, LIMIT), None, 0.8, raised), jnp.asarray(LIMIT))
    expected = (CLONE_GAIN, *raised[:2]) if taken else (1.0, 200.0, LIMIT)
    assert bool(found.clone)
    assert [float(x) for x in found[1:]] == pytest.approx(expected)


def test_a_clone_with_a_gain_is_handed_out_only_where_the_clone_itself_is_inside():
    more = (300.0, 5.0, 1.0)
    assert choice_of(told(RISING, OUTSIDE, (100.0, 30.9), raised=more)) == pytest.approx((True, CLONE_GAIN, 300.0, 5.0))
    assert choice_of(told(RISING, OUTSIDE, (100.0, 31.0), raised=more)) == pytest.approx((False, 1.0, 150.0, 36.0))


def test_a_clone_that_has_not_learned_is_no_candidate(one_aim):
    inside = np.linspace(10.0, 29.0, GAINS)
    best = told(RISING, inside, clone=(999.0, 5.0))
    assert choice_of(best, cloned=False) == pytest.approx((False, 1.1, 200.0, 29.0))
    assert choice_of(told(RISING, OUTSIDE, clone=(999.0, 5.0)), cloned=False) == (False, 1.0, 150.0, 36.0)


def test_gains_that_end_early_more_often_than_the_averaged_actor_do_not_count(one_aim):
    inside = np.linspace(10.0, 29.0, GAINS)
    for plain in (1.0, 0.5):  # what the averaged actor itself completes is the measure
        completed = np.full(GAINS, plain)
        completed[-1] -= 1.25 * MORE_EARLY_ENDS
        completed[-2] -= 0.75 * MORE_EARLY_ENDS
        found = choice_of(told(RISING, inside, completed=completed, clone_completed=0.0))
        assert found == pytest.approx((False, 1.08, 190.0, inside[-2]))


def test_gains_that_end_early_more_often_than_the_clone_do_not_count_where_the_clone_does(one_aim):
    """The clone earns nothing here. All gains end early more often than it, so that it is the only one that counts."""
    inside = np.linspace(10.0, 29.0, GAINS)
    completed = np.full(GAINS, 0.8)
    for whole, clone in ((0.8 + 1.1 * MORE_THAN_CLONE, True), (0.8 + 0.9 * MORE_THAN_CLONE, False), (0.1, False)):
        found = told(RISING, inside, (0.0, 1.0), completed, clone_completed=whole)
        assert choice_of(found)[0] == clone
        assert not choice_of(found, cloned=False)[0]
    outside = told(RISING, inside, (0.0, 31.0), completed, clone_completed=1.0)
    assert choice_of(outside) == pytest.approx((False, 1.1, 200.0, 29.0))  # a clone that does not count is no measure


def test_between_the_last_gain_inside_and_the_next_the_cost_is_taken_to_the_limit(one_aim):
    """1.02 costs 28 and 1.04 costs 36: the limit of 30 is a quarter of the way, so a gain of 1.025. It earns a quarter of
    the way from 160 to 170."""
    cost = np.array([4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0, 36.0, 44.0, 52.0, 60.0])
    assert choice_of(told(RISING, cost)) == pytest.approx((False, 1.025, 162.5, 30.0), rel=1e-6)
    at_the_limit = np.where(np.arange(GAINS) == 6, 29.9999, cost)
    assert choice_of(told(RISING, at_the_limit)) == pytest.approx((False, 1.02, 160.0, 30.0), rel=1e-4)


def test_there_is_nothing_between_where_the_next_gain_earns_less_or_is_inside_or_the_clone_wins(one_aim):
    cost = np.array([4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0, 36.0, 44.0, 52.0, 60.0])
    less = RISING - 11.0 * (np.arange(GAINS) > 6)
    assert choice_of(told(less, cost)) == pytest.approx((False, 1.02, 160.0, 28.0), rel=1e-6)
    equal = RISING - 10.0 * (np.arange(GAINS) > 6)
    assert choice_of(told(equal, cost)) == pytest.approx((False, 1.02, 160.0, 28.0), rel=1e-6)
    inside = np.where(np.arange(GAINS) > 6, 29.0, cost)
    early = np.where(np.arange(GAINS) > 6, 0.5, 1.0)  # the next gain is inside, earns more and does not count
    assert choice_of(told(RISING, inside, completed=early)) == pytest.approx((False, 1.02, 160.0, 28.0), rel=1e-6)
    assert choice_of(told(RISING, cost, clone=(163.0, 29.0))) == (True, 1.0, 163.0, 29.0)
    assert choice_of(told(RISING, cost, clone=(162.0, 29.0))) == pytest.approx((False, 1.025, 162.5, 30.0), rel=1e-6)
    last = np.minimum(cost, 29.0)
    assert choice_of(told(RISING, last)) == pytest.approx((False, 1.1, 200.0, 29.0))  # there is no next
    falls = np.where(np.arange(GAINS) > 6, 0.5, 1.0)  # the next gain would end episodes early
    assert choice_of(told(RISING, cost, completed=falls)) == pytest.approx((False, 1.02, 160.0, 28.0), rel=1e-6)


def test_a_gain_over_one_needs_a_greater_margin():
    """At a limit of 100 the averaged actor costs 80, 1.02 costs 84 and 1.04 costs 92: 88 is half of the way, so 1.03. Where
    the averaged actor costs 90 it stays as it is, though 97 is allowed to it; where it costs 99, a gain of 0.98 costs 95,
    and 97 is half of the way back."""
    limit = 100.0 * AIM  # `choice_of` divides by AIM
    far = np.array([60.0, 64.0, 68.0, 72.0, 76.0, 80.0, 84.0, 92.0, 96.0, 98.0, 99.0])
    assert choice_of(told(RISING, far), limit=limit) == pytest.approx((False, 1.03, 165.0, 88.0), rel=1e-5)
    near = np.array([70.0, 74.0, 78.0, 82.0, 86.0, 90.0, 92.0, 94.0, 96.0, 96.5, 96.9])
    assert choice_of(told(RISING, near), limit=limit) == pytest.approx((False, 1.0, 150.0, 90.0), rel=1e-5)
    over = np.array([75.0, 80.0, 85.0, 90.0, 95.0, 99.0, 99.5, 99.6, 99.7, 99.8, 99.9])
    assert choice_of(told(RISING, over), limit=limit) == pytest.approx((False, 0.99, 145.0, 97.0), rel=1e-5)


def test_where_logged_episodes_terminated_the_averaged_actor_must_lead_the_clone():
    """The best gain inside the limit costs 28 and earns 150: more than a clone that earns a bit more than 150 / (1 + LEAD),
    but not by LEAD. A clone that earns nothing has no lead to beat, and of returns below 0 the size counts."""
    cost = np.linspace(10.0, 46.0, GAINS)
    best = choose_policy(jnp.asarray(EVEN), Expected(*map(jnp.asarray, told(RISING, cost))), jnp.asarray(LIMIT), False)
    for shift in (0.0, -1000.0):
        earned = float(best.returned) + shift
        for beside, wins in ((0.9, False), (1.1, True)):
            cloned = earned - beside * LEAD * abs(earned) / (1 + LEAD * np.sign(earned))
            found = told(RISING + shift, cost, clone=(cloned, 20.0))
            for lead, expected in ((0.0, False), (LEAD, not wins)):
                choice = choose_policy(
                    jnp.asarray(EVEN), found, jnp.asarray(LIMIT), jnp.asarray(True), Doubts(lead, 0.0)
                )
                assert bool(choice.clone) == expected


def test_a_policy_that_one_network_expects_to_cost_too_much_is_not_handed_out_beside_a_clone():
    found = told(RISING, np.full(GAINS, 20.0), clone=(1.0, 20.0))
    for disputed, refused in ((DISPUTED * LIMIT * 0.999, False), (DISPUTED * LIMIT * 1.001, True)):
        choice = choose_policy(jnp.asarray(EVEN), found, jnp.asarray(LIMIT), jnp.asarray(True), Doubts(0.0, disputed))
        assert bool(choice.clone) == refused
        alone = choose_policy(jnp.asarray(EVEN), found, jnp.asarray(LIMIT), jnp.asarray(False), Doubts(0.0, disputed))
        assert not bool(alone.clone)
        assert float(alone.gain) == pytest.approx(1.0 if refused else EVEN[-1], rel=1e-6)


def share_of_limit(candidate):
    return RAISED if candidate > PLAIN else AIM


def choice_by_loops(returned, cost, completed, limit, cloned):
    """What `choose_policy` says it does, candidate by candidate."""
    clone_counts = cloned and cost[CLONE] <= limit
    least = max(completed[PLAIN] - MORE_EARLY_ENDS, completed[CLONE] - MORE_THAN_CLONE if clone_counts else 0.0)
    best = None
    for i in range(GAINS):
        counts = cost[i] <= share_of_limit(i) * limit and completed[i] >= least
        if counts and (best is None or returned[i] > returned[best]):
            best = i
    turned = (False, 1.0, returned[PLAIN], cost[PLAIN])
    if best is not None:
        turned = (False, EVEN[best], returned[best], cost[best])
        further = min(best + 1, GAINS - 1)
        aim = share_of_limit(further) * limit
        if completed[further] >= least and returned[further] > returned[best] and cost[further] > aim > cost[best]:
            share = (aim - cost[best]) / (cost[best + 1] - cost[best])
            turned = (False, *(x[best] + share * (x[best + 1] - x[best]) for x in (EVEN, returned, cost)))
    copied, gain = CLONE, 1.0
    enough = completed[CLONE_RAISED] >= completed[CLONE] - MORE_EARLY_ENDS
    if enough and cost[CLONE_RAISED] <= AIM * limit and returned[CLONE_RAISED] > returned[CLONE]:
        copied, gain = CLONE_RAISED, CLONE_GAIN
    if clone_counts and (best is None or returned[copied] > turned[2]):
        return True, gain, returned[copied], cost[copied]
    return turned


def test_the_choice_is_that_of_a_loop_over_the_candidates():
    rng = np.random.default_rng(8)
    given, expected = [], []
    for case in range(1200):
        returned = np.cumsum(rng.normal(0.5, 1.0, GAINS + 2))
        cost = rng.uniform(15, 35) + np.cumsum(rng.normal(1.0, 2.0, GAINS + 2))
        returned[CLONE:], cost[CLONE:] = rng.uniform(returned.min(), returned.max() + 2.0, 2), rng.uniform(20, 40, 2)
        completed = rng.choice([0.7, 0.8, 0.9], size=GAINS + 2, p=[0.1, 0.2, 0.7])
        cloned = case % 2 == 0
        given.append((returned, cost, completed, cloned))
        expected.append(choice_by_loops(returned, cost, completed, LIMIT, cloned))
    *columns, cloned = (jnp.asarray(np.array(x)) for x in zip(*given, strict=True))
    gains, limit = jnp.asarray(EVEN, jnp.float32), jnp.asarray(LIMIT)
    found = jax.vmap(lambda r, c, w, k: choose_policy(gains, Expected(r, c, w), limit, k))(*columns, cloned)
    clones, *numbers = (np.array(x) for x in zip(*expected, strict=True))
    np.testing.assert_array_equal(found.clone, clones)
    for mine, theirs in zip(found[1:], numbers, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
    between = ~np.isclose(numbers[0][:, None], EVEN).any(1)
    raised = clones & (numbers[0] == CLONE_GAIN)
    every_kind = raised, clones & ~raised, ~clones & between, ~clones & ~between
    assert min(kind.sum() for kind in every_kind) > 20


# From the networks to the one that is handed out

AVERAGED, COPY = constant_actor(0.5, 0.2), constant_actor(0.3, 0.6)


def action_at(mean, gain=1.0):
    return np.tanh(gain * mean)


def other_actor():
    """In place of the clone's last iterate, which is no candidate."""
    return constant_actor(9.0, 9.0)


def given_to_choose(
    plant, limit, rows=CLONED, others=1.0, growth=1.0, averaged=AVERAGED, clone=COPY, cost_of_end=0.0, starts=None,
    costly=None,
):  # fmt: skip
    fresh = Clone.create(clone, Adam(1e-3))
    counts = (jnp.asarray(x, jnp.float32) for x in (1.0, rows, others))
    copied = Clone(other_actor(), clone, fresh.optimiser, *counts)
    limit, end, growth = (jnp.asarray(x, jnp.float32) for x in (limit, cost_of_end, growth))
    if costly is not None:
        counts = (jnp.asarray(x, jnp.float32) for x in (1.0, CLONED, 1.0))
        costly = Clone(other_actor(), costly, fresh.optimiser, *counts, costly=True)
    starts = jnp.zeros((4, OBS)) if starts is None else starts
    return Policies(plant, averaged, copied, costly, starts, limit, end, growth)


def handed_out(plant, limit, **given):
    found = hand_out_of(given_to_choose(plant, limit, **given), 8, DISCOUNT)
    return found.actor, found.choice


PLANT = linear_plant(cost=(3.0, 0.0), reward=(1.5, 0.5))
STEP = FARTHEST / PLAIN  # from a gain to the next


def cost_of_gain(gain, mean=0.5):
    """A step's cost over 1 - discount."""
    return 3.0 * action_at(mean, gain) / (1 - DISCOUNT)


def return_of_gain(gain, mean=0.2):
    """Of 8 steps."""
    return 8 * (1.5 * action_at(mean, gain) + 0.5)


def limit_three_quarters_between():
    """RAISED x this limit is three quarters of the way from the cost of the second gain over 1 to that of the third."""
    return (0.25 * cost_of_gain(1 + 2 * STEP) + 0.75 * cost_of_gain(1 + 3 * STEP)) / RAISED


def test_the_gain_that_takes_the_cost_to_the_limit_is_in_the_weights_handed_out():
    limit, gain = limit_three_quarters_between(), 1 + 2.75 * STEP
    actor, choice = handed_out(PLANT, limit, clone=constant_actor(0.1, 0.1))
    assert not bool(choice.clone)
    assert float(choice.gain) == pytest.approx(gain, abs=1e-4)
    assert float(choice.cost) == pytest.approx(RAISED * limit, rel=1e-5)
    earned = 0.25 * return_of_gain(1 + 2 * STEP) + 0.75 * return_of_gain(1 + 3 * STEP)
    assert float(choice.returned) == pytest.approx(earned, rel=1e-4)
    np.testing.assert_allclose(actor.mlp.layers[-1].bias, [0.5 * gain, 0.2 * gain, -1.0, -2.0], rtol=1e-4)


def test_the_clones_weights_are_handed_out_where_it_wins_and_has_seen_enough_rows():
    """With a limit of just what it costs it is handed out as it is; with more, with its gain."""
    limit = cost_of_gain(1.0)
    actor, choice = handed_out(PLANT, limit)
    assert bool(choice.clone)
    assert float(choice.gain) == pytest.approx(CLONE_GAIN)
    np.testing.assert_allclose(actor.mlp.layers[-1].bias, [0.3 * CLONE_GAIN, 0.6 * CLONE_GAIN, -1.0, -2.0], rtol=1e-6)
    assert float(choice.returned) == pytest.approx(return_of_gain(CLONE_GAIN, mean=0.6), rel=1e-5)
    actor, choice = handed_out(PLANT, 1.0001 * cost_of_gain(1.0, mean=0.3))
    assert bool(choice.clone)
    assert same(actor, COPY)
    assert float(choice.gain) == 1.0
    assert float(choice.cost) == pytest.approx(cost_of_gain(1.0, mean=0.3), rel=1e-5)
    assert float(choice.returned) == pytest.approx(return_of_gain(1.0, mean=0.6), rel=1e-5)
    for seen in (
        {"rows": CLONED - 1},
        {"others": 0.0},
    ):  # too few, or all the log's: then it is no clone of a safe part
        actor, choice = handed_out(PLANT, 1.0001 * limit / AIM, **seen)
        assert not bool(choice.clone)
    assert float(choice.gain) == pytest.approx(1.0, abs=1e-3)


def test_where_nothing_is_inside_the_averaged_weights_are_handed_out_unchanged():
    actor, choice = handed_out(PLANT, 0.001)
    assert same(actor, AVERAGED)
    assert not bool(choice.clone)
    assert float(choice.gain) == 1.0
    assert float(choice.cost) == pytest.approx(cost_of_gain(1.0), rel=1e-5)
    assert float(choice.returned) == pytest.approx(return_of_gain(1.0), rel=1e-5)


@pytest.mark.parametrize("growth", [1.0, 4.0])
def test_every_candidate_has_the_episodes_that_it_would_have_alone(plant, actor, growth):
    """Against `imagine` for one policy at a time: the averaged actor with its weights turned, and the clone twice, from
    starts that are used in turn. The clone's costs are of calm episodes. Where the anchor is stronger returns are
    disturbed less, and early ends are those of other episodes: for every gain those of the averaged actor as it is."""
    clone = TanhGaussianActor(OBS, ACT, (8, 8), key=jax.random.key(7))
    wide = replace(plant, low=jnp.full(OBS, -20.0), high=jnp.full(OBS, 20.0))
    starts = np.random.default_rng(6).normal(scale=0.5, size=(5, OBS)).astype(np.float32)
    gains, end = [1.0 + FARTHEST / growth**2 * (i - PLAIN) / PLAIN for i in range(GAINS)], jnp.asarray(0.7)

    def alone(policy, noise, episodes=EPISODES):
        used = jnp.asarray([starts[i % 5] for i in range(episodes)])[None]
        found = imagine(
            wide, policy.mode, used, HORIZON, DISCOUNT, end, jnp.asarray(noise, jnp.float32), jax.random.key(0)
        )
        return [float(values[0]) for values in found]

    policies = [
        *(with_gain(actor, jnp.asarray(gain)) for gain in gains),
        clone,
        with_gain(clone, jnp.asarray(CLONE_GAIN)),
    ]
    rough = [alone(policy, NOISE / np.sqrt(growth)) for policy in policies]
    smooth = [alone(policy, NOISE / growth) for policy in policies]
    calm = [alone(policy, 0.0)[1] for policy in policies[CLONE:]]
    assert abs(calm[0] - rough[CLONE][1]) > 1e-3  # it makes a difference
    completed = [each[2] for each in rough]
    if growth > 1.0:
        shaken = [alone(policy, SHAKEN, SHAKEN_EPISODES)[2] for policy in (actor, *policies[CLONE:])]
        assert not np.allclose(shaken, [completed[PLAIN], *completed[CLONE:]], atol=1e-3)
        completed = [shaken[0]] * GAINS + shaken[1:]
    given = given_to_choose(
        wide, 1.0, growth=growth, averaged=actor, clone=clone, cost_of_end=0.7, starts=jnp.asarray(starts)
    )
    found = given.expected(jnp.asarray(gains), HORIZON, DISCOUNT)
    np.testing.assert_allclose(found.returned, [each[0] for each in (smooth if growth > 1.0 else rough)], rtol=1e-3)
    np.testing.assert_allclose(found.cost, [*(each[1] for each in rough[:CLONE]), *calm], rtol=1e-3)
    np.testing.assert_allclose(found.completed, completed, rtol=1e-5)


def test_the_disputed_cost_is_the_greater_one_of_the_networks_alone(plant, actor):
    """Each network on its own, in calm episodes of the averaged actor; no gain and no clone has a part in it."""
    starts = jnp.asarray(np.random.default_rng(6).normal(scale=0.5, size=(5, OBS)), jnp.float32)
    given = given_to_choose(plant, 1.0, growth=4.0, averaged=actor, cost_of_end=0.7, starts=starts)
    used = jnp.asarray([starts[i % 5] for i in range(EPISODES)])[None]
    alone = [
        imagine(
            replace(plant, networks=(network,)),
            actor.mode,
            used,
            HORIZON,
            DISCOUNT,
            jnp.asarray(0.7),
            jnp.zeros(()),
            KEY,
        )
        for network in plant.networks
    ]
    costs = [float(each.cost[0]) for each in alone]
    assert abs(costs[0] - costs[1]) > 1e-3
    assert float(given.disputed_cost(HORIZON, DISCOUNT)) == pytest.approx(max(costs), rel=1e-5)
    doubts = doubts_of(given, HORIZON, DISCOUNT)
    assert (float(doubts.lead), float(doubts.disputed_cost)) == pytest.approx((LEAD, max(costs)), rel=1e-5)
    assert tuple(map(float, doubts_of(given._replace(anchor_growth=jnp.ones(())), HORIZON, DISCOUNT))) == (0.0, 0.0)


def test_pacing_is_worth_it_where_the_greatest_gain_earns_more_than_what_is_handed_out_and_costs_too_much():
    choice = Choice(*map(jnp.asarray, (True, 1.0, 160.0, 20.0)))
    for earns, costs, worth in ((161.0, 31.0, True), (160.0, 31.0, False), (161.0, 30.0, False)):
        returned, cost = np.full(GAINS, 500.0), np.full(GAINS, 50.0)
        returned[-1], cost[-1] = earns, costs
        found = told(returned, cost, clone=(900.0, 90.0))
        assert bool(is_worth_pacing(choice, found, jnp.asarray(30.0), jnp.ones(()))) == worth
        assert not is_worth_pacing(choice, found, jnp.asarray(0.0), jnp.ones(()))  # there is no budget
        assert not is_worth_pacing(choice, found, jnp.asarray(30.0), jnp.asarray(1.01))  # logged episodes terminated


def test_the_clone_saves_for_a_pacer_where_it_is_inside_and_saves_for_a_third_of_the_episode():
    """It costs 20 and the greatest gain 50. At a limit l the clone saves for (50 - l) / (50 - 20) of the steps: 50 l' of the
    others and 20 of these are l on average. That is a third at l = 40."""
    assert pytest.approx(1 / 3) == LEAST_SAVED
    cost = np.full(GAINS, 35.0)
    cost[-1] = 50.0
    for limit, saves in ((19.9, False), (20.1, True), (39.9, True), (40.1, False), (51.0, False)):
        assert bool(is_worth_saving(told(RISING, cost, clone=(0.0, 20.0)), jnp.asarray(limit))) == saves


def test_there_is_a_choice_once_the_policy_has_settled_and_the_model_predicts_well():
    good, bad = SimpleNamespace(error=PREDICTED), SimpleNamespace(error=1.01 * PREDICTED)
    assert is_chosen(SETTLED + 1, good)
    assert not is_chosen(SETTLED, good)
    assert not is_chosen(SETTLED + 1, bad)


def test_the_file_has_the_gains_of_a_pacer_and_what_a_step_costs_with_the_greatest():
    words = pacing_in_words(jnp.asarray(60.0), 0.99)
    assert words == pytest.approx({"low": 1 - LOWEST, "high": 1 + FARTHEST, "spending": 0.6}, rel=1e-5)
    assert {type(value) for value in words.values()} == {float}  # for JSON


def test_the_words_say_which_policy_it_is_and_what_the_model_expects():
    gain = Choice(*map(jnp.asarray, (False, 1.02346, 12.5, 29.75)))
    words = {"policy": "averaged actor", "gain": 1.0235, "expected_return": 12.5, "expected_cost": 29.75}
    assert choice_in_words(gain, True, False) == {**words, "can_be_paced": True, "can_take_turns": False}
    clone = choice_in_words(Choice(*map(jnp.asarray, (True, 1.0, -3.5, 0.25))), False, True)
    words = {"policy": "safe clone", "gain": 1.0, "expected_return": -3.5, "expected_cost": 0.25}
    assert clone == {**words, "can_be_paced": False, "can_take_turns": True}
    assert [type(value) for value in clone.values()] == [str, float, float, float, bool, bool]  # for JSON


# In CPQ


def settled(method, limit=1000.0, plant=PLANT, step=SETTLED + 1, terminated=0.0, rows=0):
    """A state in which there is a choice, between constant actors."""
    state = method.init(KEY, jnp.asarray(limit), Spec(OBS, ACT, horizon=8, terminated=terminated))
    counts = jnp.ones(()), jnp.asarray(rows, jnp.float32), jnp.ones(())
    clone = Clone(other_actor(), COPY, state.clone.optimiser, *counts)
    return replace(state, step=jnp.asarray(step), plant=plant, averaged_actor=AVERAGED, clone=clone)


def is_plain(export, state):
    return same(export.networks["actor"], state.averaged_actor) and export.facts == {}


def test_what_is_handed_out_is_exported_with_the_reasons(departed):
    method = replace(departed, discount=DISCOUNT)
    limit, gain = limit_three_quarters_between(), 1 + 2.75 * STEP
    state = settled(method, limit)
    export = method.export(state)
    found = method.hand_out(state)
    assert export.facts["handed_out"] == choice_in_words(
        found.choice, bool(found.worth_pacing), bool(found.turns.worth)
    )
    assert export.facts["handed_out"]["policy"] == "averaged actor"
    assert export.facts["handed_out"]["gain"] == pytest.approx(gain, abs=1e-3)
    assert export.facts["handed_out"]["expected_cost"] == pytest.approx(RAISED * limit, rel=1e-5)
    np.testing.assert_allclose(
        export.networks["actor"].mlp.layers[-1].bias, [0.5 * gain, 0.2 * gain, -1.0, -2.0], rtol=1e-3
    )
    copied = method.export(settled(method, limit, rows=CLONED))
    assert copied.facts["handed_out"]["policy"] == "safe clone"
    assert same(copied.networks["actor"], with_gain(COPY, jnp.asarray(CLONE_GAIN)))
    assert copied.facts["handed_out"]["gain"] == pytest.approx(CLONE_GAIN, abs=1e-4)
    assert copied.facts["handed_out"]["expected_return"] == pytest.approx(
        return_of_gain(CLONE_GAIN, mean=0.6), rel=1e-5
    )


def test_the_averaged_actor_is_exported_for_a_pacer_where_that_is_worth_it(departed):
    """The greatest gain earns more than what is handed out: it costs more than the one limit, and less than the other."""
    method = replace(departed, discount=DISCOUNT)
    most = cost_of_gain(1 + FARTHEST)
    export = method.export(settled(method, 0.99 * most))
    assert list(export.facts) == ["handed_out", "pacing", "turns"]
    assert export.facts["handed_out"]["can_be_paced"]
    assert export.facts["pacing"] == pytest.approx(
        {"low": 1 - LOWEST, "high": 1 + FARTHEST, "spending": most * (1 - DISCOUNT)}, rel=1e-5
    )
    assert same(export.networks["paced_actor"], AVERAGED)
    assert "saving_actor" not in export.networks  # there is no clone
    terminated = settled(method, 0.99 * most, terminated=0.25)
    assert "pacing" not in method.export(terminated).facts
    export = method.export(settled(method, 1.01 * most))
    assert list(export.facts) == ["handed_out"]
    assert not export.facts["handed_out"]["can_be_paced"]
    assert "paced_actor" not in export.networks


def test_the_clone_is_exported_to_save_with_where_it_would_save_for_long_enough(departed):
    """Half of the way from the cost of the clone to that of the greatest gain, and nine tenths of it."""
    method = replace(departed, discount=DISCOUNT)
    least, most = cost_of_gain(1.0, mean=0.3), cost_of_gain(1 + FARTHEST)
    poor = constant_actor(0.3, 0.0)  # it earns less than the averaged actor
    for share, rows, saves in ((0.5, CLONED, True), (0.9, CLONED, False), (0.5, CLONED - 1, False)):
        state = settled(method, least + share * (most - least), rows=rows)
        state = replace(state, clone=replace(state.clone, averaged=poor))
        export = method.export(state)
        assert "pacing" in export.facts
        assert ("saving_actor" in export.networks) == saves
        assert not saves or same(export.networks["saving_actor"], poor)


def test_the_other_networks_are_exported_as_ever(departed):
    state = settled(departed)
    before, after = (departed.export(s) for s in (replace(state, step=jnp.asarray(0)), state))
    assert (before.kind, before.limit_range) == (after.kind, after.limit_range) == ("tanh-gaussian", None)
    assert (
        set(before.networks) == set(after.networks) == {"actor", "reward_1", "reward_2", "cost", "encoder", "decoder"}
    )
    assert all(same(before.networks[name], after.networks[name]) for name in before.networks if name != "actor")
    assert not same(before.networks["actor"], after.networks["actor"])
    assert same(before.tensors, after.tensors)


def test_where_there_is_no_choice_the_averaged_actor_is_exported_unchanged_and_without_facts(departed):
    unknown = replace(PLANT, errors=jnp.full(OBS + 1, 1.1 * PREDICTED))
    for state in (
        settled(departed, step=SETTLED),
        settled(departed, plant=unknown),
        replace(settled(departed), clone=None),
        replace(settled(departed), starts=None),
    ):
        assert is_plain(departed.export(state), state)
        assert departed.hand_out(state) is None
    assert not is_plain(departed.export(settled(departed)), settled(departed))


@pytest.mark.parametrize("column", [COST, REWARD])
def test_where_a_model_expects_what_is_no_number_the_averaged_actor_is_exported(departed, column):
    """Its error is a running mean, and an error that is no number is not greater than another: neither keeps it out."""
    broken = eqx.tree_at(
        lambda p: p.networks[1].layers[-1].bias, PLANT, replace_fn=lambda bias: bias.at[column].set(jnp.nan)
    )
    for error in (0.0, jnp.nan):
        state = settled(departed, plant=replace(broken, errors=jnp.full(OBS + 1, error)))
        assert is_plain(departed.export(state), state)


def test_without_feedback_and_with_a_range_of_limits_there_is_no_clone_and_no_choice(departed):
    spec = Spec(OBS, ACT, horizon=8)
    without = replace(departed, feedback=0.0)
    state = replace(without.init(KEY, jnp.asarray(30.0), spec), step=jnp.asarray(SETTLED + 1))
    assert (state.plant, state.clone, state.starts) == (None, None, None)
    assert is_plain(without.export(state), state)

    ranged = replace(departed, limits=(20.0, 60.0))
    state = replace(ranged.init(KEY, jnp.asarray(40.0), spec), step=jnp.asarray(SETTLED + 1))
    state = replace(state, plant=replace(state.plant, errors=jnp.zeros(OBS + 1)))
    assert (state.clone, state.starts) == (None, None)
    export = ranged.export(state)
    assert export.facts == {}
    assert export.limit_range == (20.0, 60.0)
    assert same(export.networks["actor"].mlp, state.averaged_actor.mlp)


def test_a_stronger_anchor_keeps_the_gain_nearer_to_one(departed):
    """Every gain is inside and the greatest earns most: 1 + 0.15 / (1 + 13 x 0.25)^2, and 1.15 where nothing terminated.
    Without an anchor gains are as near to 1 as with one. The return is that of 8 steps: the horizon is the log's."""
    for method, terminated, growth in (
        (departed, 0.0, 1.0),
        (departed, 0.25, 1.0 + 13.0 * 0.25),
        (replace(departed, anchor=0.3, termination_anchor=2.0), 0.5, 2.0),
        (replace(departed, anchor=0.0), 0.25, 1.0 + 13.0 * 0.25),
    ):
        gain = 1.0 + FARTHEST / growth**2
        choice = method.hand_out(settled(method, terminated=terminated)).choice
        assert float(choice.gain) == pytest.approx(gain, rel=1e-6)
        assert float(choice.returned) == pytest.approx(return_of_gain(gain), rel=1e-5)


@pytest.mark.parametrize(("meaning", "limits_paid"), [("ends", 0.0), ("neutral", 1.0), ("failure", 1.7)])
def test_an_imagined_end_costs_what_the_end_of_an_episode_costs_the_critic(departed, meaning, limits_paid):
    """A step of 0.1, then the end: 0.1 + 0.9 of what it means; never less than the pace, 0.1 / 0.1."""
    method = replace(departed, discount=DISCOUNT, episode_end=meaning, ood_limit_ratio=1.7)
    ends = linear_plant(cost=(0.0, 0.1), reward=(0.0, 0.5), terminated=1.0)
    choice = method.hand_out(settled(method, limit=30.0, plant=ends)).choice
    assert float(choice.cost) == pytest.approx(max(0.1 + DISCOUNT * limits_paid * 30.0, 1.0), rel=1e-5)
    assert float(choice.returned) == pytest.approx(0.5, rel=1e-6)


def test_an_update_teaches_the_clone_at_the_actors_rate_and_keeps_states_that_episodes_start_in(batch, departed):
    method = replace(departed, learning_rate=1e-2, actor_learning_rate=1e-3)
    state = small_state(method, limit=0.5)
    assert not same(state.clone.actor, state.actor)  # it starts from weights of its own
    rows = with_costs(batch, 1.0 - SAFE)
    expected = state.clone.fit(rows, jnp.asarray(0.5), Adam(1e-3))
    for learn in (method.update, method.update_detector):
        after, _ = learn(state, rows, KEY)
        assert same(after.clone, expected)
        assert after.starts.shape == (EPISODES, OBS)
        np.testing.assert_array_equal(after.starts, [batch.starts[i % ROWS] for i in range(EPISODES)])


def test_neither_the_clone_nor_the_model_reach_the_actor_and_the_critics(batch, departed):
    """An update with the column of episode costs, without it, with another model and another clone, and with neither, gives
    the same actor and critics bit for bit."""
    state = small_state(departed)
    other = small_state(departed, seed=8)
    without = replace(departed, feedback=0.0)
    column = with_costs(batch, 0.1 * SAFE)
    learned = [
        (departed, state, column),
        (departed, state, batch),
        (departed, replace(state, plant=other.plant, clone=other.clone), column),
        (without, replace(small_state(without), slack=state.slack), batch),
    ]
    policy = [method.update(state, rows, KEY)[0] for method, state, rows in learned]
    detector = [method.update_detector(state, rows, KEY)[0] for method, state, rows in learned]
    parts = [name for name in vars(policy[3]) if name not in ("plant", "imagined", "clone", "starts")]
    assert {"actor", "averaged_actor", "critics", "targets", "alpha", "slack", "actor_optimiser"} <= set(parts)
    for after in (policy, detector):
        assert not same(after[0].clone, state.clone)  # the first one did learn
        assert same(after[1].clone, state.clone)  # the second had nothing to learn from
        assert same(after[1].starts, state.starts)
        for part in parts:
            for another in after[1:]:
                assert same(getattr(another, part), getattr(after[0], part)), part


def test_a_run_shows_the_clone_its_rows_and_keeps_the_reasons_in_the_policys_file(departed, monkeypatch):
    """Two members, one whose limit every episode is inside and one that no episode is: 5 steps of 6 rows, or none."""
    from ringfence.algorithms import cpq_default
    from ringfence.training import Member, Plan, run

    seen = []

    def look(given, horizon, discount):
        seen.append((float(given.clone.rows), horizon, np.asarray(given.starts)))
        return hand_out_of(given, horizon, discount)

    log = log_of_episodes()
    method, members = replace(departed, cvae_steps=2), (Member(0, 1000.0), Member(0, 1e-3))
    plan = Plan(method, members, 3, log_every=3)
    early = run(log, plan, progress=False)
    assert all("handed_out" not in artifact.metadata for artifact in early.artifacts)
    monkeypatch.setattr(cpq_default, "hand_out_of", look)
    monkeypatch.setattr(cpq_handout, "SETTLED", 0)
    monkeypatch.setattr(cpq_handout, "PREDICTED", np.inf)
    late = run(log, plan, progress=False)
    assert [rows for rows, _, _ in seen] == [30.0, 0.0]
    assert {horizon for _, horizon, _ in seen} == {max(LENGTHS)}
    first = (np.cumsum(LENGTHS) - np.array(LENGTHS) - log.normaliser.mean[0]) / log.normaliser.std[0]
    for _, _, starts in seen:
        assert np.abs(starts - first).min(1).max() < 1e-5  # each is the first row of an episode
    for artifact in late.artifacts:
        words = artifact.metadata["handed_out"]
        assert words["policy"] == "averaged actor"
        assert set(words) == {"policy", "gain", "expected_return", "expected_cost", "can_be_paced", "can_take_turns"}
