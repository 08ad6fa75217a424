"""Share over the limit and CVaR against distributions whose tails are known."""

import numpy as np
import pytest
from scipy.stats import norm

from ringfence.evaluation.ope.tail import Tail, tail_of, worst_mean


def test_the_worst_tenth_of_a_normal_distribution_is_its_cvar():
    """CVaR at 0.9 of N(m, s) is m + s phi(z) / 0.1 with z the quantile at 0.9."""
    shape = norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    tail = tail_of(50.0, 60.0, 4.0, shape, limit=52.0)
    beyond = 4.0 * norm.pdf(norm.ppf(0.9)) / 0.1
    assert tail.worst_tenth == pytest.approx(50 + beyond, rel=1e-3)
    assert tail.worst_tenth_at_most == pytest.approx(60 + beyond, rel=1e-3)
    assert tail.share_over_limit == pytest.approx(norm.sf(0.5), abs=1e-3)
    assert tail.share_at_most == pytest.approx(norm.sf(-2), abs=1e-3)


def test_a_tenth_of_few_episodes_counts_the_one_at_the_edge_in_part():
    assert worst_mean(np.arange(15.0)) == pytest.approx((14 + 0.5 * 13) / 1.5)
    assert worst_mean(np.array([1.0, 3.0]), share=1.0) == 2.0


def test_a_cost_is_never_negative_and_without_a_limit_there_is_no_share():
    tail = tail_of(1.0, 1.0, 5.0, np.array([-1.0, 1.0]), limit=None)
    assert tail.share_over_limit is None
    assert tail.share_at_most is None
    assert tail_of(1.0, 1.0, 5.0, np.array([-1.0, -2.0]), limit=0.0).worst_tenth == 0.0


def test_of_two_tails_each_number_is_the_worse_one():
    assert Tail(0.1, 0.4, 5.0, 9.0).or_worse(Tail(0.2, 0.3, 7.0, 8.0)) == Tail(0.2, 0.4, 7.0, 9.0)
    assert Tail(None, None, 5.0, 9.0).or_worse(Tail(None, None, 7.0, 8.0)) == Tail(None, None, 7.0, 9.0)
