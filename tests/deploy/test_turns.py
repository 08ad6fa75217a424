"""Two policies that take turns keep the limit on average over episodes, and use it."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

import ringfence
from ringfence.data.episodes import discounted_sum
from ringfence.deploy import Artifact, Network, Policy, Turns
from ringfence.errors import InvalidSetting, NonFiniteValue, WrongShape
from ringfence.evaluation import evaluate

LIMIT, DISCOUNT, HORIZON = 40.0, 0.99, 50  # a pace of 0.4
PACE = LIMIT * (1 - DISCOUNT)
CHEAP, COSTLY = 0.3, 0.6  # of a step: with half of the episodes each the mean would be over the pace
S = ("observation",)
TENSORS = {  # the policy's own action is 0; the others are tanh(0.2 + s / 10) and tanh(0.7 - s / 2)
    "actor.0.weight": [[0, 0]],
    "actor.0.bias": [0, 0],
    "cheap_actor.0.weight": [[0.1, 0]],
    "cheap_actor.0.bias": [0.2, 0],
    "costly_actor.0.weight": [[-0.5, 0]],
    "costly_actor.0.bias": [0.7, 0],
}
EXPECTED = {"cheap_cost": 30.0, "costly_cost": 60.0, "share": 0.3, "expected_return": 100.0}
ARTIFACT = Artifact(
    "tanh-gaussian",
    {name: Network(name, S, "tanh-gaussian") for name in ("actor", "cheap_actor", "costly_actor")},
    TENSORS,
    [0],
    [1],
    [0],  # actions from 0 to 4
    [4],
    limit=LIMIT,
    discount=DISCOUNT,
    horizon=HORIZON,
    metadata={"turns": EXPECTED},
)


def episode(turns, costs):
    """Runs one; whether the costly policy acted. `costs` are of the cheap one and of the costly one."""
    turns.reset()
    costly = turns.acting == "costly_actor"
    for step in range(HORIZON):
        turns(np.zeros(1), costs[costly] if step else None)
    return costly


def accounts_by_hand(episodes, costs, expected=60.0):
    """Who acts, if both sums over the episodes so far can pay for one more costly episode: at first what the file expects of
    it, and then the mean of those that were."""
    discounted = [discounted_sum(np.full(HORIZON, cost), DISCOUNT) for cost in costs]
    saved_discounted = saved = 0.0
    found, seen = [], False
    for _ in range(episodes):
        price = discounted[1] if seen else expected
        excess = HORIZON * ((costs[1] if seen else expected * (1 - DISCOUNT)) - PACE)
        costly = bool(found) and saved_discounted + LIMIT >= price and saved >= excess
        found.append(costly)
        seen |= costly
        saved_discounted += LIMIT - discounted[costly]
        saved += HORIZON * (PACE - costs[costly])
    return found


@pytest.mark.parametrize("costs", [(0.29, 0.61), (0.11, 0.5), (0.39, 0.9), (0.41, 0.5), (0.2, 0.3)])
def test_the_costly_policy_acts_where_what_was_saved_pays_for_it(costs):
    """The third never saves enough for what the file expects in these episodes, the fourth is never inside, and the fifth is
    inside with either: then only the first episode is the cheap one's, once the costly one has been seen."""
    turns = Turns(ARTIFACT)
    found = [episode(turns, costs) for _ in range(25)]
    assert found == accounts_by_hand(25, costs)
    assert not found[0]
    turns.reset()
    assert (turns.episodes, turns.costly_episodes) == (25, sum(found))


@pytest.mark.parametrize("cheap", [0.05, 0.2, 0.33])
def test_the_mean_over_the_episodes_so_far_is_inside_after_each_and_little_is_left(cheap):
    costs, spent = (cheap, COSTLY), []
    turns = Turns(ARTIFACT)
    for _ in range(60):
        spent.append(costs[episode(turns, costs)])
        assert np.mean(spent) <= PACE + 1e-12
    assert np.mean(spent) > PACE - 0.01
    share = (PACE - cheap) / (COSTLY - cheap)  # with which the mean is the pace
    assert np.mean([cost == COSTLY for cost in spent]) == pytest.approx(share, abs=1 / 30)


def test_a_costly_policy_that_costs_more_than_expected_is_paid_back():
    """It costs twice what the file says: after the first such episode the account is in debt, and cheap ones pay it back."""
    turns, costs = Turns(ARTIFACT), (0.2, 1.2)
    found = [episode(turns, costs) for _ in range(40)]
    first = found.index(True)
    assert sum(costs[each] - PACE for each in found[: first + 1]) > 0  # over it then
    assert np.mean([costs[each] for each in found]) <= PACE
    assert sum(found) > 2


def test_early_costs_are_held_to_the_limit_too():
    """A cost of 5.1 in the second step and nothing else is far inside the pace, 0.2 x 50, and with 0.9 x 5.1 over
    the discounted limit of 2. The file expects 2.1, so one cheap episode seems to pay for the first costly one; then the
    price is 4.59, and an episode brings 2."""
    turns = Turns(replace(ARTIFACT, limit=2.0, discount=0.9, metadata={"turns": {**EXPECTED, "costly_cost": 2.1}}))
    acted, saved = [], []
    for _ in range(30):
        turns.reset()
        saved.append(turns.saved_discounted)
        acted.append(turns.acting == "costly_actor")
        for step in range(HORIZON):
            turns(np.zeros(1), None if step == 0 else 5.1 * (acted[-1] and step == 2))
    assert acted[:2] == [False, True]
    by_hand, account = [], 0.0
    for episode_number in range(30):
        by_hand.append(account + 2.0 >= (2.1 if episode_number < 2 else 4.59) and episode_number > 0)
        account += 2.0 - 4.59 * by_hand[-1]
    assert acted == by_hand
    assert saved[1] == pytest.approx(2.0)
    assert min(saved) == pytest.approx(-0.59, abs=1e-3)  # after the first costly one, and never again
    assert sorted(saved)[1] >= 0.0


def test_each_acts_with_its_own_network_in_the_units_of_the_plant():
    turns = Turns(ARTIFACT)
    turns.reset()
    np.testing.assert_allclose(turns(np.array([0.8])), [2 + 2 * np.tanh(0.28)], rtol=1e-6)
    while not episode(turns, (0.0, 0.0)):
        pass
    turns.reset()
    assert turns.acting == "costly_actor"
    np.testing.assert_allclose(turns(np.array([0.8])), [2 + 2 * np.tanh(0.3)], rtol=1e-6)


def ended(turns, costs):
    """Runs an episode to its end, of which `reset` is told the cost of the last step."""
    for cost in (None, *costs[:-1]):
        turns(np.zeros(1), cost)
    turns.reset(cost=costs[-1])


@pytest.mark.parametrize(("told", "last"), [(None, 0.2), (5.0, 5.0), (0, 0.0)])
def test_the_last_step_costs_what_reset_is_told_or_else_the_mean_of_the_others(told, last):
    turns = Turns(ARTIFACT, horizon=4)
    turns.reset()
    for cost in (None, 0.1, 0.3, 0.2):
        turns(np.zeros(1), cost)
    turns.reset(cost=told)
    assert turns.episodes == 1
    assert turns.saved == pytest.approx(4 * PACE - 0.6 - last)
    discounted = 0.1 + 0.3 * DISCOUNT + 0.2 * DISCOUNT**2 + last * DISCOUNT**3
    assert turns.saved_discounted == pytest.approx(LIMIT - discounted)
    saved = turns.saved
    turns.reset()  # an episode without a step is none
    turns.reset(cost=3.0)
    assert (turns.episodes, turns.saved) == (1, saved)


BRIEF = replace(  # a pace of 1.5; an episode of both steps is credited with 3, and one step with 3 x 1 / (1 + 0.5) = 2
    ARTIFACT, limit=3.0, discount=0.5, horizon=2, metadata={"turns": {**EXPECTED, "costly_cost": 4.0}}
)


@pytest.mark.parametrize(
    ("costs", "saved_discounted", "saved"),
    [([1.0], 2 - 1, 1.5 - 1), ([4.0], 2 - 4, 1.5 - 4), ([1.0, 3.0], 3 - 2.5, 3 - 4), ([1.0] * 3, 3 - 1.75, 4.5 - 3)],
)
def test_an_episode_is_credited_with_what_its_steps_stand_for(costs, saved_discounted, saved):
    turns = Turns(BRIEF)
    ended(turns, costs)
    assert turns.saved_discounted == pytest.approx(saved_discounted)
    assert turns.saved == pytest.approx(saved)


def test_a_costly_episode_that_ended_early_is_charged_the_price_unless_it_took_more():
    """The file expects 4 and, over the pace, 2 x (4 x 0.5 - 1.5) = 1. One step takes 3 - 2 more than it costs."""
    turns = Turns(BRIEF)
    for costs, saved_discounted, saved, costly_is_next in [
        ([0.0, 0.0], 3.0, 3.0, True),  # cheap: 3 + 3 pay for 4, and 3 pays for 1
        ([2.0], 3.0 + 3 - 4, 3.0 - 1, True),  # 2 + 1 is less than 4, and 2 - 1.5 less than 1: the prices
        (
            [3.5],
            2.0 + 3 - 4.5,
            2.0 - 2,
            False,
        ),  # 3.5 + 1 and 3.5 - 1.5 are more, and the new prices: 0 does not pay for 2
        ([0.0, 0.0], 0.5 + 3, 0.0 + 3, True),  # cheap
        ([0.5], 3.5 + 3 - 4.5, 3.0 - 2, False),  # the prices again: 1 does not pay for 2
        ([0.0, 0.0], 2.0 + 3, 1.0 + 3, True),  # cheap
        ([3.0, 1.0], 5.0 + 3 - 3.5, 4.0 - 1, True),  # complete: the prices are (4.5 + 3.5) / 2 and (2 + 1) / 2
        ([0.5], 4.5 + 3 - 4, 3.0 - 1.5, True),
    ]:
        ended(turns, costs)
        assert (turns.saved_discounted, turns.saved) == pytest.approx((saved_discounted, saved))
        assert (turns.acting == "costly_actor") is costly_is_next


@pytest.mark.parametrize(("falls", "crash"), [(0.5, 0.0), (1.0, 0.0), (0.5, 8.0), (1.0, 8.0)])
def test_a_costly_policy_does_not_act_more_often_because_it_falls(falls, crash):
    """Where it never falls, its episode takes 50 x (0.6 - 0.4) = 10 from the pace's account and a cheap one brings 5: a
    share of 1/3. It falls after any number of steps, with a crash that costs 8 or without. What a crash costs over the
    price, less than 8, may be missing on an account for a while."""
    rng = np.random.default_rng(0)
    expected = {**EXPECTED, "costly_cost": COSTLY / 0.1}
    turns = Turns(replace(ARTIFACT, limit=4.0, discount=0.9, metadata={"turns": expected}))
    acted, lengths, spent, discounted = [], [], [], []
    for _ in range(300):
        acted.append(turns.acting == "costly_actor")
        fallen = acted[-1] and rng.random() < falls
        costs = np.full(rng.integers(1, HORIZON) if fallen else HORIZON, COSTLY if acted[-1] else CHEAP)
        costs[-1] += crash * fallen
        ended(turns, costs)
        lengths.append(len(costs))
        spent.append(costs.sum())
        discounted.append(discounted_sum(costs, 0.9))
        assert np.sum(discounted) <= 4.0 * len(acted) + crash
        assert np.sum(spent) <= 0.4 * np.sum(lengths) + crash + 1e-9
    assert np.mean(discounted) <= 4.0
    assert np.sum(spent) <= 0.4 * np.sum(lengths)
    assert np.mean(acted) <= 1 / 3
    assert np.mean(acted) > 0.1


class Toll(gymnasium.Env):
    """A step costs a quarter of its action, and earns that."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(0, 4, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        cost = float(action[0]) / 4
        return np.zeros(1, np.float32), cost, False, self.steps == HORIZON, {"cost": cost}


def test_evaluation_tells_it_the_costs_and_resets_it_before_each_episode():
    """Steps cost (1 + tanh 0.2) / 2 = 0.60 and (1 + tanh 0.7) / 2 = 0.80; at a pace of 0.7 they alternate."""
    turns = Turns(ARTIFACT, limit=70.0)
    found = evaluate(turns, Toll, episodes=20)
    assert found.limit == 70.0
    cheap, costly = (HORIZON * (1 + np.tanh(x)) / 2 for x in (0.2, 0.7))
    assert set(np.round(found.costs, 3)) == {round(cheap, 3), round(costly, 3)}
    assert found.costs.mean() <= 0.7 * HORIZON
    assert found.costs[0] == pytest.approx(cheap)
    assert 7 <= np.sum(found.costs > 0.7 * HORIZON) <= 10


class Trip(Toll):
    """It trips in its tenth step, which costs 3 more."""

    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        tripped = self.steps == 10
        return observation, reward, tripped, truncated, {"cost": info["cost"] + 3.0 * tripped}


def test_evaluation_tells_it_what_the_last_step_cost():
    """All three are the cheap policy's: each is over the pace of 0.7, by 2.0."""
    turns = Turns(replace(ARTIFACT, limit=70.0, metadata={"turns": {**EXPECTED, "costly_cost": 80.0}}))
    found = evaluate(turns, Trip, episodes=3)
    assert (turns.episodes, turns.costly_episodes) == (3, 0)
    assert turns.saved == pytest.approx(3 * 10 * 0.7 - found.costs.sum())
    credit = 70.0 * (1 - DISCOUNT**10) / (1 - DISCOUNT**HORIZON)
    assert turns.saved_discounted == pytest.approx(3 * credit - found.discounted_costs.sum())
    assert found.costs == pytest.approx([10 * (1 + np.tanh(0.2)) / 2 + 3] * 3)


def test_a_file_without_a_second_policy_or_with_other_entries_is_refused(tmp_path):
    networks = {"actor": ARTIFACT.networks["actor"]}
    tensors = {name: value for name, value in TENSORS.items() if name.startswith("actor")}
    alone = replace(ARTIFACT, networks=networks, tensors=tensors)
    with pytest.raises(InvalidSetting, match="cannot take turns"):
        Turns(alone)
    path = Policy(alone).save(tmp_path / "alone.safetensors")
    with pytest.raises(InvalidSetting, match="cannot take turns"):
        ringfence.Turns(path)
    assert ringfence.Turns(Policy(ARTIFACT).save(tmp_path / "both.safetensors")).limit == LIMIT
    for wrong in ({"share": 2.0}, {"costly_cost": "much"}, {"cheap_cost": -1.0}):
        with pytest.raises(InvalidSetting, match="are not such"):
            Turns(replace(ARTIFACT, metadata={"turns": {**EXPECTED, **wrong}}))
    with pytest.raises(InvalidSetting, match="are not such"):
        Turns(replace(ARTIFACT, metadata={"turns": [1, 2]}))


@pytest.mark.parametrize("changes", [{"limit": 0.0}, {"horizon": 0}, {"limit": float("nan")}])
def test_a_limit_and_a_horizon_are_needed(changes):
    with pytest.raises(InvalidSetting, match=f"a {next(iter(changes))} greater than 0 is needed"):
        Turns(ARTIFACT, **changes)
    with pytest.raises(InvalidSetting, match="needs a discount below 1"):
        Turns(replace(ARTIFACT, discount=1.0))


def test_costs_and_observations_that_are_no_numbers_are_refused_and_nothing_is_counted():
    turns = Turns(ARTIFACT)
    turns.reset()
    turns(np.zeros(1))
    for cost in (None, -1.0, float("nan"), "much", True):
        with pytest.raises(NonFiniteValue, match="the cost of the step before"):
            turns(np.zeros(1), cost)
    for cost in (-1.0, float("nan"), "much", True):
        with pytest.raises(NonFiniteValue, match="the cost of the step before"):
            turns.reset(cost=cost)
    for observation in (np.zeros(2), np.zeros((1, 1))):
        with pytest.raises(WrongShape, match="one observation of shape"):
            turns(observation, 0.1)
    with pytest.raises(NonFiniteValue):
        turns(np.array([np.nan]), 0.1)
    turns(np.zeros(1), 0.4)
    turns.reset()
    assert turns.saved == pytest.approx(0.0)
