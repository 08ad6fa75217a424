"""The second opinion, in a world whose values can be written down."""

import numpy as np
import pytest

from ringfence.data import Dataset
from ringfence.evaluation.ope.clone import clone_of
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


def opinion(log, features):
    fitted = FittedQ(log, features, DISCOUNT, STEPS)
    following, first = shifted(log.next_observations), shifted(log.observations[log.episode_starts])
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
