"""Statistics over seeds and tasks, against rliable and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.evaluation.statistics import (
    between_behaviours,
    cost_over_limit,
    dsrl_cost,
    dsrl_return,
    improvement_interval,
    interquartile_mean,
    mean_of_tasks,
    probability_of_improvement,
    stratified_interval,
    violation_rate,
)

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(5, 3)), RNG.normal(0.5, 1.0, size=(4, 3))  # seeds, tasks


@pytest.fixture
def rliable():
    """Its bootstraps draw from NumPy's global generator, whatever `random_state` they are given."""
    from rliable import library, metrics

    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    yield library, metrics
    np.random.set_state(before)  # noqa: NPY002


def by_task(matrix):
    return list(matrix.T)


@pytest.mark.parametrize("seeds", [1, 2, 3, 4, 5, 10])
def test_the_interquartile_mean_is_rliables(rliable, seeds):
    scores = RNG.normal(size=(seeds, 3))
    assert interquartile_mean(by_task(scores)) == pytest.approx(rliable[1].aggregate_iqm(scores))


def test_the_interquartile_mean_by_hand():
    assert interquartile_mean([np.array([100.0, 1.0]), np.array([2.0, -100.0])]) == 1.5  # 1 and 2 are left
    assert interquartile_mean([np.array([1.0, 2.0, 6.0])]) == 3.0  # of three none is left out


def test_the_mean_of_tasks_weighs_tasks_equally(rliable):
    assert mean_of_tasks(by_task(X)) == pytest.approx(rliable[1].aggregate_mean(X))
    assert mean_of_tasks([np.array([0.0]), np.array([1.0, 1.0, 1.0])]) == 0.5


def test_the_probability_of_improvement_is_rliables(rliable):
    expected = rliable[1].probability_of_improvement(X, Y)
    assert probability_of_improvement(by_task(X), by_task(Y)) == pytest.approx(expected)


def test_the_probability_of_improvement_by_hand():
    ours, theirs = [np.array([1.0, 3.0])], [np.array([2.0, 3.0])]
    # pairs (1,2) no, (1,3) no, (3,2) yes, (3,3) a tie
    assert probability_of_improvement(ours, theirs) == pytest.approx(1.5 / 4)


def test_stratified_intervals_are_rliables_up_to_chance(rliable):
    library, metrics = rliable
    _, theirs = library.get_interval_estimates({"x": X}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=2000)
    ours = stratified_interval(by_task(X), resamples=20_000)
    # Of 2,000 resamples the 2.5 % quantile is uncertain by about 0.35 % in rank, which is 0.02 here.
    np.testing.assert_allclose(ours, theirs["x"][:, 0], atol=0.05)


def test_improvement_intervals_are_rliables_up_to_chance(rliable):
    library, metrics = rliable
    _, theirs = library.get_interval_estimates(
        {"x,y": (X, Y)}, lambda x, y: np.array([metrics.probability_of_improvement(x, y)]), reps=400
    )
    ours = improvement_interval(by_task(X), by_task(Y), resamples=20_000)
    np.testing.assert_allclose(ours, theirs["x,y"][:, 0], atol=0.06)


def test_resamples_keep_every_task_in_its_proportion():
    """Two tasks that do not vary: a bootstrap that mixed tasks would vary, a stratified one cannot."""
    scores = [np.zeros(4), np.full(4, 10.0)]
    assert stratified_interval(scores, mean_of_tasks) == (5.0, 5.0)


def test_the_interval_of_a_mean_has_the_known_width():
    values = np.random.default_rng(0).normal(size=400)
    low, high = stratified_interval([values], mean_of_tasks, resamples=4000)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.08)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12))
def test_an_interval_lies_within_the_scores_and_is_reproducible(values):
    scores = [np.array(values)]
    low, high = stratified_interval(scores, resamples=50)
    room = 1e-9 * max(map(abs, values))
    assert min(values) - room <= low <= high <= max(values) + room
    assert (low, high) == stratified_interval(scores, resamples=50)


def test_the_violation_rate_counts_costs_over_the_limit_only():
    assert violation_rate(np.array([29.0, 30.0, 30.1, 40.0]), 30.0) == 0.5


def test_normalised_scores():
    assert between_behaviours(1500.0, safe=1000.0, unsafe=3000.0) == 0.25
    assert cost_over_limit(45.0, 30.0) == 1.5
    assert dsrl_return(150.0, least=100.0, most=200.0) == 0.5
    assert dsrl_cost(20.0, 40.0) == 0.5
    assert dsrl_cost(0.0, 0.0) == 1.0
    assert dsrl_cost(3.0, 0.0) == 4.0
