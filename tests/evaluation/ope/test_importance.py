"""Importance sampling where the expectation is a sum that can be written out."""

import itertools

import numpy as np
import pytest

from ringfence.data import Dataset
from ringfence.evaluation.ope import importance
from ringfence.evaluation.ope.importance import Weights

DISCOUNT = 0.9
STEPS = 3
PI = np.array([0.2, 0.8])  # of both actions, in every state
REWARD = np.array([[1.0, 3.0], [0.5, 2.0]])  # [state, action]; the action is the next state


def every_sequence(terminate=None):
    """Each of the 2^3 sequences of actions once: exactly what a uniform behaviour does, on average. With `terminate` an
    episode ends when that action is taken first."""
    rows = []
    for sequence in itertools.product((0, 1), repeat=STEPS):
        state = 0
        for step, action in enumerate(sequence):
            ended = terminate is not None and action == terminate and step == 0
            rows.append((state, action, REWARD[state, action], action, ended, ended or step == STEPS - 1))
            state = action
            if ended:
                break
    states, actions, rewards, following, terminated, last = map(np.array, zip(*rows, strict=True))
    return Dataset.from_arrays(
        observations=states[:, None],
        actions=actions[:, None],
        rewards=rewards,
        costs=rewards / 2,
        next_observations=following[:, None],
        terminations=terminated,
        truncations=last & ~terminated,
        action_low=[0],
        action_high=[1],
    )


def ratios(log):
    return np.log(PI[log.actions[:, 0].astype(int)] / 0.5)


def exact_value(terminate=None, horizon=STEPS):
    """By recursion over the tree of actions."""

    def value(state, step):
        if step == horizon:
            return 0.0
        total = 0.0
        for action in (0, 1):
            ends = terminate is not None and action == terminate and step == 0
            total += PI[action] * (REWARD[state, action] + (0 if ends else DISCOUNT * value(action, step + 1)))
        return total

    return value(0, 0)


def finite_q(state, action, steps):
    if steps == 0:
        return 0.0
    return REWARD[state, action] + DISCOUNT * sum(PI[a] * finite_q(action, a, steps - 1) for a in (0, 1))


@pytest.mark.parametrize("terminate", [None, 1])
@pytest.mark.parametrize("estimator", [importance.whole_episode, importance.per_decision, importance.weighted])
def test_over_all_sequences_the_estimate_is_the_exact_value(estimator, terminate):
    log = every_sequence(terminate)
    weights = Weights(log, ratios(log), STEPS)
    assert estimator(weights, log.rewards, DISCOUNT) == pytest.approx(exact_value(terminate))
    assert estimator(weights, log.costs, DISCOUNT) == pytest.approx(exact_value(terminate) / 2)


def test_doubly_robust_with_exact_values_is_exact_in_a_deterministic_world_whatever_the_ratios():
    log = every_sequence()
    step = np.tile(np.arange(STEPS), 2**STEPS)
    states, actions = log.observations[:, 0].astype(int), log.actions[:, 0].astype(int)
    pair = [finite_q(s, a, STEPS - t) for s, a, t in zip(states, actions, step, strict=True)]
    following = [sum(PI[b] * finite_q(a, b, STEPS - t - 1) for b in (0, 1)) for a, t in zip(actions, step, strict=True)]
    wrong = Weights(log, np.random.default_rng(0).normal(size=len(log)), STEPS)
    start = [sum(PI[a] * finite_q(0, a, STEPS) for a in (0, 1))] * 2**STEPS
    values = {"start_values": start, "pair_values": pair, "next_values": following}
    assert importance.doubly_robust(wrong, log.rewards, DISCOUNT, **values) == pytest.approx(exact_value())


def test_doubly_robust_with_exact_ratios_is_exact_whatever_the_values():
    log = every_sequence()
    rng = np.random.default_rng(1)
    guess = rng.normal(size=(2, 2))  # Q(s, a), wrong
    states, actions = log.observations[:, 0].astype(int), log.actions[:, 0].astype(int)
    values = guess @ PI  # V = E_pi Q
    last = np.tile(np.arange(STEPS) == STEPS - 1, 2**STEPS)
    found = importance.doubly_robust(
        Weights(log, ratios(log), STEPS),
        log.rewards,
        DISCOUNT,
        start_values=np.full(2**STEPS, values[0]),
        pair_values=guess[states, actions],
        next_values=np.where(last, 0.0, values[actions]),
    )
    assert found == pytest.approx(exact_value())


@pytest.mark.parametrize("horizon", [STEPS, 10])
def test_marginalised_weights_are_exact_when_cells_are_states_for_any_horizon(horizon):
    log = every_sequence()
    found = importance.marginalised(
        log,
        ratios(log),
        log.rewards,
        DISCOUNT,
        cells=log.observations[:, 0].astype(int),
        next_cells=log.next_observations[:, 0].astype(int),
        horizon=horizon,
    )
    assert found == pytest.approx(exact_value(horizon=horizon))


def test_with_equal_weights_every_episode_counts_and_with_one_heavy_weight_only_one():
    log = every_sequence()
    assert Weights(log, np.zeros(len(log)), STEPS).effective_episodes == pytest.approx([8, 8, 8])
    heavy = np.zeros(len(log))
    heavy[0] = 20.0
    assert Weights(log, heavy, STEPS).effective_episodes == pytest.approx([1, 1, 1], abs=1e-3)


def test_weights_too_large_for_a_number_leave_finite_estimates():
    log = every_sequence()
    weights = Weights(log, np.full(len(log), 500.0), STEPS)
    assert weights.effective_episodes == pytest.approx([8, 8, 8])
    assert importance.weighted(weights, log.rewards, DISCOUNT) == pytest.approx(
        importance.weighted(Weights(log, np.zeros(len(log)), STEPS), log.rewards, DISCOUNT)
    )


def test_an_episode_cut_off_before_the_horizon_leaves_the_later_steps_to_the_others():
    log = Dataset.from_arrays(
        observations=np.zeros((3, 1)),
        actions=np.zeros((3, 1)),
        rewards=[1.0, 1.0, 5.0],
        costs=np.zeros(3),
        next_observations=np.zeros((3, 1)),
        terminations=[0, 0, 0],
        truncations=[1, 0, 1],  # one episode of 1 step, one of 2
        action_low=[-1],
        action_high=[1],
    )
    weights = Weights(log, np.zeros(3))
    assert importance.per_decision(weights, log.rewards, 0.5) == pytest.approx(1 + 0.5 * 5)
    assert importance.weighted(weights, log.rewards, 0.5) == pytest.approx(1 + 0.5 * 5)


def test_the_mean_weight_is_1_at_each_step_if_the_behaviour_is_known():
    log = every_sequence()
    assert Weights(log, ratios(log)).log_means == pytest.approx(np.zeros(STEPS))
    alike = Weights(log, np.full(len(log), -50.0))  # equal weights, none of which is 1
    assert alike.log_means == pytest.approx([-50, -100, -150])
