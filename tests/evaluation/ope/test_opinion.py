"""The second opinion, in a world whose values can be written down."""

from dataclasses import replace

import numpy as np
import pytest

from ringfence.data import Dataset
from ringfence.evaluation.ope.clone import clone_of, sources_of
from ringfence.evaluation.ope.fqe import FittedQ
from ringfence.evaluation.ope.opinion import second_opinion

STEPS, DISCOUNT, NOISE = 2, 0.9, 0.3


def log_of(episodes, seed=0):
    """The state x is drawn anew in [-1, 1] at each step, whatever is done. The behaviour plays x / 2 and noise; the reward
    is (a - x)^2, the cost a^2."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (episodes, STEPS + 1))
    a = x[:, :-1] / 2 + NOISE * rng.standard_normal((episodes, STEPS))
    return Dataset.from_arrays(
        observations=x[:, :-1].reshape(-1, 1),
        actions=a.reshape(-1, 1),
        rewards=((a - x[:, :-1]) ** 2).ravel(),
        costs=(a**2).ravel(),
        next_observations=x[:, 1:].reshape(-1, 1),
        terminations=np.zeros(episodes * STEPS, bool),
        truncations=np.tile(np.arange(STEPS) == STEPS - 1, episodes),
        action_low=[-3],
        action_high=[3],
    )


def polynomials(observations, actions):
    x, a = observations[:, 0], actions[:, 0]
    return np.stack([np.ones_like(x), x, a, x * a, a * a, x * x], 1)


def shifted(observations):
    return observations / 2 + 0.1


def opinion(log, features, policy=shifted):
    fitted = FittedQ(log, features, DISCOUNT, STEPS)
    following, first = policy(log.next_observations), policy(log.observations[log.episode_starts])
    values = fitted.evaluate(following, first)
    clone = clone_of(log, "the log", np.ones(len(log), bool))
    return second_opinion(fitted, [clone], following, first, values), values


def exact():
    """With a = x / 2 + 0.1 + noise and E[x^2] = 1/3: E[(a - x)^2] = 1/12 + 0.01 + noise^2, and the same for E[a^2]."""
    return (1 / 12 + 0.1**2 + NOISE**2) * (1 + DISCOUNT)


def test_both_opinions_come_near_the_exact_value_of_the_policy_with_the_behaviours_noise():
    found, _ = opinion(log_of(4000), polynomials)
    assert found.usable
    assert (found.returned, found.cost) == pytest.approx((exact(), exact()), rel=0.06)
    assert (found.robust_return, found.robust_cost) == pytest.approx((exact(), exact()), rel=0.06)
    assert "doubly robust" in str(found)


def test_doubly_robust_mends_critics_that_know_neither_state_nor_action():
    """A constant critic values every policy like the behaviour, whose cost is E[a^2] = 1/12 + noise^2."""
    found, values = opinion(log_of(4000), lambda o, a: np.ones((len(o), 1), np.float32))
    behaviour = (1 / 12 + NOISE**2) * (1 + DISCOUNT)
    assert values.cost == pytest.approx(behaviour, rel=0.03)
    assert found.robust_cost == pytest.approx(exact(), rel=0.06)
    assert found.robust_cost - values.cost == pytest.approx(exact() - behaviour, rel=0.5)


def test_with_few_effective_episodes_there_is_no_doubly_robust_estimate_and_it_is_said():
    found, _ = opinion(log_of(11), polynomials)
    assert not found.usable
    assert found.robust_cost is None
    assert "of no use" in str(found)


def test_without_any_overlap_equal_weights_are_not_taken_for_certainty():
    """Every ratio is clipped at exp(-50): all weights are equal, so that all 50 episodes seem to count."""
    found, _ = opinion(log_of(50), polynomials, lambda observations: observations + 100)
    assert found.effective_episodes == pytest.approx(50)
    assert not found.usable
    assert found.robust_cost is None
    assert "the mean weight of an episode is 3.7e-44 instead of 1" in str(found)  # exp(-50) in each of two steps


def test_a_source_that_was_not_fitted_makes_it_unusable_and_is_named():
    log = log_of(400)
    log = replace(log, source=(np.arange(len(log)) >= 400).astype(np.int32), source_names=("day", "night"))
    fitted = FittedQ(log, polynomials, DISCOUNT, STEPS)
    following, first = shifted(log.next_observations), shifted(log.observations[log.episode_starts])
    clones = [clone_of(log, name, rows) for name, rows in sources_of(log)]
    values = fitted.evaluate(following, first)
    assert second_opinion(fitted, clones, following, first, values).usable
    found = second_opinion(fitted, clones[:1], following, first, values)
    assert not found.usable
    assert "no reference episode of night is whole" in str(found)


def test_the_line_says_that_the_policy_is_given_the_behaviours_noise():
    found, _ = opinion(log_of(4000), polynomials)
    assert str(found).startswith("importance sampling, of the policy with the behaviours' noise: return")
