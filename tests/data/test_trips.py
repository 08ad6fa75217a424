"""Levels beyond which logged episodes ended."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.data.summary import summarise
from ringfence.data.trips import find_levels, find_trips
from tests.logs import random_walks


def test_levels_lie_between_the_outermost_state_that_went_on_and_the_nearest_that_ended():
    log = random_walks(low=-1.0, high=1.5, columns=3)
    trips, ended = find_trips(log), log.next_observations[log.terminations, 0]
    went_on = np.concatenate([log.observations, log.next_observations[~log.terminations]])[:, 0]
    assert trips.low[0] == pytest.approx((went_on.min() + ended[ended < 0].max()) / 2)
    assert trips.high[0] == pytest.approx((went_on.max() + ended[ended > 0].min()) / 2)
    assert np.isinf(trips.low[1:]).all()
    assert np.isinf(trips.high[1:]).all()
    further = trips.moved_out(np.full(3, 0.5, np.float32))
    assert (further.low[0], further.high[0]) == pytest.approx((trips.low[0] - 0.5, trips.high[0] + 0.5))


@settings(max_examples=20, deadline=None)
@given(st.floats(-2.0, -0.8), st.floats(0.8, 2.0), st.integers(1, 3), st.integers(0, 99))
def test_levels_explain_every_end_and_no_state_that_went_on(low, high, columns, seed):
    log = random_walks(low, high, columns, episodes=30, seed=seed)
    passed = find_trips(log)(log.next_observations)
    assert (passed == log.terminations).all()
    assert not find_trips(log)(log.observations).any()


def test_a_log_without_ends_or_with_ends_anywhere_has_no_level_that_explains_them():
    for log in (random_walks(), random_walks(at_random=0.05)):
        trips = find_trips(log)
        explained = trips(log.next_observations)[log.terminations].sum()
        assert explained <= 0.1 * log.terminations.sum()
    assert np.isinf(find_trips(random_walks()).low).all()


def test_a_summary_says_at_which_levels_episodes_ended():
    log = random_walks(low=-1.0, high=1.5, columns=2)
    summary, levels = summarise(log), find_levels(log)
    assert summary.end_levels == tuple(levels)
    assert sum(level.terminations for level in levels) == summary.terminated
    assert levels[0].terminations >= levels[1].terminations
    below = next(level for level in levels if level.below)
    assert f"{log.observation_names[0]} below {below.value:.4g} ({below.terminations})" in summary.ends_in_words
    assert summary.to_dict()["end_levels"][0]["value"] == levels[0].value
    assert summarise(random_walks()).ends_in_words == ""
