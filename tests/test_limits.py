"""One meaning for every limit."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidSetting
from ringfence.limits import Limit, horizon_words, over_horizon


@given(
    st.floats(0, 1e4), st.sampled_from(["discounted", "episode", "step"]), st.floats(0.5, 0.999), st.integers(1, 5000)
)
def test_a_limit_says_back_what_was_put_in(value, kind, discount, horizon):
    limit = Limit.of(value, kind, discount=discount, horizon=horizon)
    said = {"discounted": limit.discounted, "episode": limit.per_episode, "step": limit.per_step}
    assert said[kind] == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_without_a_horizon_a_cost_per_step_goes_on_forever():
    assert Limit.of(0.3, "step", discount=0.99).discounted == pytest.approx(0.3 / 0.01)


@pytest.mark.parametrize("horizon", [1, 50, math.inf])
def test_at_a_discount_of_0_only_the_first_step_counts(horizon):
    """1 + 0 + 0 + ...: the discounted cost is that of one step."""
    limit = Limit.of(0.3, "step", discount=0.0, horizon=horizon)
    assert limit.discounted_steps == 1.0
    assert limit.discounted == limit.per_step == 0.3


@pytest.mark.parametrize(
    ("value", "kind", "options", "word"),
    [
        (-1, "discounted", {}, "at least 0"),
        (math.nan, "discounted", {}, "finite"),
        (10, "episode", {}, "horizon"),
        (10, "step", {"discount": 1.0}, "discount"),
        (10, "step", {"discount": -0.1}, "discount"),
        (10, "step", {"discount": math.nan}, "discount"),
        (10, "step", {"horizon": 0}, "horizon"),
        (10, "weekly", {}, "weekly"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_with_a_reason(value, kind, options, word):
    with pytest.raises(InvalidSetting, match=word):
        Limit.of(value, kind, **options)


def test_a_limit_is_printed_in_all_three_ways():
    text = str(Limit.of(300, "episode", horizon=1000))
    assert "30" in text
    assert "0.3 per step" in text
    assert "300 per episode of 1000 steps" in text


def test_a_horizon_that_holds_the_whole_of_an_endless_sum_is_said_in_words():
    """1 - 0.99^50 = 0.395; of 0.99^1000 nothing is left in three digits."""
    assert horizon_words(0.99, 50) == "0.395 times as much at a steady pace"
    assert horizon_words(0.99, 1000) == "as good as the same"


@given(st.floats(-100, 100), st.floats(0.5, 0.999), st.lists(st.integers(1, 300), min_size=1, max_size=3))
def test_a_steady_pace_adds_up_to_its_part_over_a_horizon_and_over_each_of_several(infinite, discount, horizons):
    """Added up step by step."""
    pace = (1 - discount) * infinite
    expected = [math.fsum(pace * discount**t for t in range(horizon)) for horizon in horizons]
    close = {"rel": 1e-9, "abs": 1e-9}
    assert [over_horizon(infinite, discount, horizon) for horizon in horizons] == pytest.approx(expected, **close)
    assert list(over_horizon(infinite, discount, np.array(horizons))) == pytest.approx(expected, **close)
