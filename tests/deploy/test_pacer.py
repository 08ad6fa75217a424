"""A pacer keeps what an episode costs behind the limit's pace, and with it the discounted cost inside the limit."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ringfence
from ringfence.data.episodes import discounted_sum
from ringfence.deploy import Artifact, Network, Pacer, Policy
from ringfence.deploy.pacer import HIGHER, LEAST_BUDGET, LOWER, SPENT
from ringfence.errors import InvalidSetting, NonFiniteValue, WrongShape
from ringfence.evaluation import evaluate

LOW, HIGH, SPENDING = 0.5, 2.0, 0.9
LIMIT, DISCOUNT, HORIZON = 40.0, 0.99, 300  # a pace of 0.4
PACE = LIMIT * (1 - DISCOUNT)
S = ("observation",)
TENSORS = {  # the policy's own action is 0; the paced actor's mean is 0.3 + s / 2
    "actor.0.weight": [[0, 0]],
    "actor.0.bias": [0, 0],
    "paced_actor.0.weight": [[0.5, 0]],
    "paced_actor.0.bias": [0.3, 0],
}
ARTIFACT = Artifact(
    "tanh-gaussian",
    {name: Network(name, S, "tanh-gaussian") for name in ("actor", "paced_actor")},
    TENSORS,
    [0],
    [1],
    [0],  # actions from 0 to 4: 2 + 2 tanh(gain x mean)
    [4],
    limit=LIMIT,
    discount=DISCOUNT,
    horizon=HORIZON,
    metadata={"pacing": {"low": LOW, "high": HIGH, "spending": SPENDING}},
)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=60), st.floats(0.01, 0.999), st.floats(0.1, 50.0))
def test_an_episode_that_is_never_ahead_of_the_pace_is_inside_the_limit(wanted, discount, limit):
    """The claim of the page, without a pacer: each cost is cut to what keeps the sum at the pace times the steps."""
    pace, spent, costs = limit * (1 - discount), 0.0, []
    for step, cost in enumerate(wanted, start=1):
        costs.append(min(cost, pace * step - spent))
        spent += costs[-1]
    assert discounted_sum(np.array(costs), discount) <= limit * (1 + 1e-9)


def gains_by_hand(costs):
    """The gain of each step, after the costs of the steps before. A high one moves by a fifth of what steps of late cost
    less than they should, in units of the pace; of late: the last step has a weight of 1/20, that before 19/20 of it, ..."""
    gains, spent, is_high, at_start = [], 0.0, False, True
    for step in range(len(costs) + 1):
        budget = PACE * step - spent
        enough = max((HORIZON - step) * (SPENDING - PACE), LEAST_BUDGET * PACE)
        at_start = at_start and 0 <= budget < SPENT * PACE
        if budget < SPENT * PACE:
            is_high = False
            gains.append(1.0 if at_start else LOW)
        else:
            is_high = is_high or budget > enough
            recent = sum(0.05 * 0.95 ** (step - 1 - i) * costs[i] for i in range(step))
            should = PACE + budget / max(HORIZON - step, 1)
            moved = HIGH + float(np.clip(0.2 * (should - recent) / PACE, -0.06, 0.1))
            gains.append(moved if is_high else 1.0)
        spent += costs[step] if step < len(costs) else 0.0
    return gains


def paced(costs, pacer=None):
    """The gains that a pacer takes when it is told these costs."""
    pacer = pacer or Pacer(ARTIFACT)
    pacer.reset()
    gains = []
    for cost in (None, *costs):
        pacer(np.zeros(1), cost)
        gains.append(pacer.gain)
    return gains


@pytest.mark.parametrize("seed", range(4))
def test_the_gain_is_high_once_the_budget_lasts_to_the_end_and_low_when_it_is_spent(seed):
    """First saved, then spent at random rates, then nothing is left, and at the end some is saved again."""
    rng = np.random.default_rng(seed)
    costs = np.concatenate([rng.uniform(0.0, 0.1, 200), rng.uniform(0.8, 2.0, 90), rng.uniform(0.0, 0.2, 60)]).tolist()
    expected = gains_by_hand(costs)
    assert expected[0] == 1.0
    assert LOW in expected[240:300]
    high = np.array([gain for gain in expected[:240] if gain > 1.0])
    assert (high.min(), high.max()) == pytest.approx((HIGH - LOWER, HIGH + HIGHER))  # it goes all the way,
    assert np.any((high > HIGH - 0.9 * LOWER) & (high < HIGH + 0.9 * HIGHER))  # and not at once
    pacer = Pacer(ARTIFACT)
    assert paced(costs, pacer) == pytest.approx(expected, rel=1e-9)
    assert paced([2.0] * 9, pacer)[-1] == LOW  # another episode, of which the next has no part
    assert paced(costs, pacer) == pytest.approx(expected, rel=1e-9)


def with_saver():
    """The same file with a network to save with: its mean is 0.1 + s / 5."""
    tensors = {**TENSORS, "saving_actor.0.weight": [[0.2, 0]], "saving_actor.0.bias": [0.1, 0]}
    networks = {**ARTIFACT.networks, "saving_actor": Network("saving_actor", S, "tanh-gaussian")}
    return replace(ARTIFACT, networks=networks, tensors=tensors)


def test_where_the_file_has_a_policy_to_save_with_it_acts_while_the_budget_is_saved_and_only_then():
    for artifact, slope, offset in ((ARTIFACT, 0.5, 0.3), (with_saver(), 0.2, 0.1)):
        pacer = Pacer(artifact)
        saves = pacer(np.array([0.8]))
        assert pacer.gain == 1.0
        np.testing.assert_allclose(saves, [2 + 2 * np.tanh(0.8 * slope + offset)], rtol=1e-6)
        spent = pacer(np.array([0.8]), 9.0)  # ahead of the pace
        assert pacer.gain == LOW
        np.testing.assert_allclose(spent, [2 + 2 * np.tanh(LOW * 0.7)], rtol=1e-6)
        paced([0.0] * HORIZON, pacer)
        spends = pacer(np.array([0.8]), 0.0)
        assert pacer.gain > 1.0
        np.testing.assert_allclose(spends, [2 + 2 * np.tanh(pacer.gain * 0.7)], rtol=1e-6)


def test_an_episode_that_begins_costly_is_slowed_down_at_once_and_a_cheap_one_is_not():
    """Budgets of 0, -0.5, -0.1, 0.3, 0.7, 1.1, 1.5 and 1.9; four steps at the pace are 1.6."""
    assert paced([0.9, *[0.0] * 6]) == [1.0, *[LOW] * 6, 1.0]
    assert paced([0.3, 0.3, 0.3]) == [1.0] * 4


def test_budget_and_steps_are_those_of_the_episode():
    pacer = Pacer(ARTIFACT)
    for _ in range(2):
        pacer.reset()
        assert (pacer.steps, pacer.spent, pacer.budget) == (0, 0.0, 0.0)
        paced([0.1, 0.2, 0.0], pacer)
        assert pacer.steps == 3
        assert pacer.spent == pytest.approx(0.3)
        assert pacer.budget == pytest.approx(3 * PACE - 0.3)


def test_the_gain_multiplies_the_paced_actors_mean_before_the_squash():
    pacer = Pacer(ARTIFACT)
    for seen, gain in ((0.0, 1.0), (0.8, 1.0), (-3.0, 1.0)):
        pacer.reset()
        action = pacer(np.array([seen]))
        np.testing.assert_allclose(action, [2 + 2 * np.tanh(gain * (0.3 + seen / 2))], rtol=1e-6)
        assert (action.shape, action.dtype) == ((1,), np.float32)
    paced([0.0] * HORIZON, pacer)
    action = pacer(np.array([0.8]), 0.0)
    assert pacer.gain == HIGH + HIGHER  # nothing was spent
    np.testing.assert_allclose(action, [2 + 2 * np.tanh((HIGH + HIGHER) * 0.7)], rtol=1e-6)


class TwoGaits(gymnasium.Env):
    """An action over 3.3 leads to the faster gait, one under 2.9 to the slower; between them the gait stays. It earns and
    costs about 1 a step, or 0.2."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Box(0.0, 4.0, (1,))

    def reset(self, *, seed=None, options=None):
        self.rng, self.fast, self.steps = np.random.default_rng(seed), False, 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.fast = action[0] > (2.9 if self.fast else 3.3)
        self.steps += 1
        cost = (0.9 if self.fast else 0.2) * self.rng.uniform(0.9, 1.1)
        return np.ones(1, np.float32), cost, False, self.steps == HORIZON, {"cost": cost}


def test_every_episode_is_inside_and_most_of_the_limit_is_used():
    """Gains of 0.5, 1 and 2 on a mean of 0.8 are actions of 2.76, 3.33 and 3.84: with 1 the gait is the faster one, at more
    than twice the pace."""
    result = evaluate(Pacer(ARTIFACT), TwoGaits, episodes=6)
    per_step = result.costs / result.lengths
    assert per_step.max() <= PACE
    assert per_step.min() > 0.9 * PACE
    assert result.discounted_costs.max() <= LIMIT
    assert (result.limit, result.discount) == (LIMIT, DISCOUNT)
    unpaced = evaluate(lambda seen: np.full((len(seen), 1), 3.33), TwoGaits, episodes=2, discount=DISCOUNT)
    assert (unpaced.costs / unpaced.lengths).min() > 2 * PACE


def test_another_limit_and_horizon_can_be_given():
    pacer = Pacer(Policy(ARTIFACT), limit=20.0, horizon=50)
    assert (pacer.pace, pacer.horizon) == (pytest.approx(0.2), 50.0)
    assert evaluate(pacer, TwoGaits, episodes=1).limit == 20.0


def test_a_policy_without_gains_cannot_be_paced(tmp_path):
    plain = replace(ARTIFACT, metadata={})
    path = Policy(plain).save(tmp_path / "policy.safetensors")
    for policy in (plain, Policy(plain), path, str(path)):
        with pytest.raises(InvalidSetting, match="cannot be paced: its file has no gains"):
            Pacer(policy)
    without = {name: network for name, network in ARTIFACT.networks.items() if name == "actor"}
    tensors = {name: tensor for name, tensor in ARTIFACT.tensors.items() if name.startswith("actor")}
    with pytest.raises(InvalidSetting, match="no gains"):
        Pacer(replace(ARTIFACT, networks=without, tensors=tensors))
    whole = Policy(ARTIFACT).save(tmp_path / "paced.safetensors")
    assert ringfence.Pacer(whole).pacing == (LOW, HIGH, SPENDING)


@pytest.mark.parametrize(
    "pacing",
    [
        [LOW, HIGH, SPENDING],
        {"low": LOW, "high": HIGH},
        {"low": "0.5", "high": HIGH, "spending": SPENDING},
        {"low": 0.0, "high": HIGH, "spending": SPENDING},
        {"low": 1.1, "high": HIGH, "spending": SPENDING},
        {"low": LOW, "high": 0.9, "spending": SPENDING},
        {"low": LOW, "high": 1e9, "spending": SPENDING},
        {"low": LOW, "high": HIGH, "spending": -1.0},
    ],
)
def test_gains_that_make_no_sense_are_refused(pacing):
    with pytest.raises(InvalidSetting, match="is not one"):
        Pacer(replace(ARTIFACT, metadata={"pacing": pacing}))


@pytest.mark.parametrize("changes", [{"limit": None}, {"limit": 0.0}, {"horizon": None}, {"discount": None}])
def test_limit_discount_and_horizon_must_be_known(changes):
    with pytest.raises(InvalidSetting, match=f"a {next(iter(changes))} greater than 0 is needed"):
        Pacer(replace(ARTIFACT, **changes))


@pytest.mark.parametrize("cost", [None, float("nan"), float("inf"), -0.1, "0.1", True])
def test_a_step_whose_cost_is_unknown_is_refused_and_nothing_is_counted(cost):
    pacer = Pacer(ARTIFACT)
    pacer(np.zeros(1))
    with pytest.raises(NonFiniteValue, match="the cost of the step before must be a number of at least 0"):
        pacer(np.zeros(1), cost)
    assert (pacer.steps, pacer.spent) == (0, 0.0)


def test_observations_are_single_and_finite():
    pacer = Pacer(ARTIFACT)
    for seen in (np.zeros(2), np.zeros((1, 1)), 0.0):
        with pytest.raises(WrongShape, match="one observation of shape"):
            pacer(seen)
    with pytest.raises(NonFiniteValue):
        pacer(np.array([np.nan]))
