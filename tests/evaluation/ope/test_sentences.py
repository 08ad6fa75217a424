"""The bounds of small logs, and what is said where a log is too small, too short or free of costs."""

from dataclasses import replace

import numpy as np
import pytest
from tests.logs import narrow_log

from ringfence.errors import InvalidSetting
from ringfence.evaluation.ope import Judge
from ringfence.evaluation.ope.clone import clone_of
from ringfence.evaluation.ope.fqe import GROUPS
from ringfence.evaluation.ope.judgement import Estimate, decide, half_width

LOG = narrow_log(rows=1000, episode_length=50)  # 20 episodes; both halves are alike without their sources
REFERENCE = narrow_log(rows=1000, episode_length=50, seed=1)
# The 95 % quantiles of Student's t, from a printed table.
STUDENT = {1: 6.314, 3: 2.353, 4: 2.132, 7: 1.895, 23: 1.714}
NORMAL = 1.6449


def idle(observations):
    return np.zeros((len(observations), 2), np.float32)


@pytest.mark.parametrize("freedom", sorted(STUDENT))
def test_a_sampling_error_from_few_groups_of_episodes_is_multiplied_by_students_quantile(freedom):
    assert half_width(2.0, 0.0, 0.95, freedom + 1) == pytest.approx(2 * STUDENT[freedom], rel=1e-3)
    assert half_width(0.0, 0.0, 0.95, 99, 2.0, freedom + 1) == pytest.approx(2 * STUDENT[freedom], rel=1e-3)
    wanted = np.hypot(3 * STUDENT[freedom], 4 * NORMAL)  # what was measured on the behaviours is not from groups
    assert half_width(3.0, 4.0, 0.95, freedom + 1) == pytest.approx(wanted, rel=1e-3)


def test_with_all_groups_the_quantile_is_the_normal_one():
    assert half_width(3.0, 4.0, 0.95, GROUPS) == half_width(3.0, 4.0, 0.95) == pytest.approx(5 * NORMAL, rel=1e-4)
    assert half_width(3.0, 4.0, 0.5, 3) == 0


def test_the_bound_by_backups_counts_the_groups_of_its_log():
    judge = Judge(LOG.select_episodes(range(8)), REFERENCE)
    values = judge.fitted.evaluate(idle(judge.log.observations), idle(judge.log.episode_starts))
    scattered = replace(values, influences=100 * values.influences)  # so that little else counts
    estimate, _ = judge._estimates("return", scattered, None, 0.0, 0.95)
    assert estimate.upper - estimate.value == pytest.approx(STUDENT[7] * scattered.sampling_spread[0], rel=1e-2)


@pytest.mark.parametrize(("episodes", "enough"), [(1, False), (4, False), (5, True)])
def test_fewer_than_five_judging_episodes_cannot_tell(episodes, enough):
    judged = Judge(LOG.select_episodes(range(episodes)), REFERENCE)(idle, 1e6)
    assert (f"there are {episodes} episodes to judge by" not in judged.reason) == enough
    assert ("judge by more episodes" not in judged.advice) == enough
    if not enough:
        assert (judged.verdict, judged.judgeable, judged.return_is_bounded) == ("cannot tell", False, False)


def test_no_limit_of_nothing_or_less_is_advised():
    """A policy that costs 5, at most 9, is 4 below its bound."""
    advice = {limit: decide(Estimate(5.0, 1.0, 9.0), limit, 0.95, [], 50)[2] for limit in (6.0, 4.0, 2.0)}
    assert "train for a limit of about 2, or allow at least 9" in advice[6.0]
    for limit in (4.0, 2.0):
        assert "train for" not in advice[limit]
        assert advice[limit].startswith("judge from more episodes, or allow at least 9")
        assert f"too wide for any policy to be confirmed at {limit:g}" in advice[limit]


def test_what_never_costs_anything_is_inside_a_limit_of_nothing():
    free = [replace(log, costs=np.zeros(1000, np.float32)) for log in (LOG, REFERENCE)]
    usual = clone_of(LOG, "the log", np.ones(1000, bool)).mean
    judged = Judge(*free)(usual, 0.0)
    assert (judged.verdict, judged.cost) == ("inside", Estimate(0.0, 0.0, 0.0))
    assert (judged.share_over_limit, judged.share_over_limit_at_most, judged.worst_tenth_at_most) == (0, 0, 0)
    once = free[0].costs.copy()
    once[120] = 1e-3
    assert Judge(replace(free[0], costs=once), free[1])(usual, 0.0).verdict == "cannot tell"


def test_reference_episodes_that_were_all_cut_off_are_named_as_the_cause():
    ends = REFERENCE.terminations | REFERENCE.truncations
    cut_off = replace(REFERENCE, terminations=np.zeros(1000, bool), truncations=ends)
    with pytest.raises(InvalidSetting, match=r"horizon of 500 steps.*leave the longest out of the log"):
        Judge(LOG, cut_off, horizon=500)


def test_episodes_that_share_no_source_are_named_as_the_cause():
    log = narrow_log(rows=1000, episode_length=50, with_source=True)
    gentle, strong = (log.select_episodes(range(i, i + 10)) for i in (0, 10))
    with pytest.raises(InvalidSetting, match=r"judge \(gentle\) and the reference episodes \(strong\) have no source"):
        Judge(gentle, strong)
