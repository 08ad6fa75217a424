"""Estimates by several draws of random features, and what else keeps a judgement from looking surer than it is."""

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from tests.logs import narrow_log

from ringfence.cli import main
from ringfence.data import Dataset
from ringfence.errors import InvalidSetting
from ringfence.evaluation.ope import Judge, choose
from ringfence.evaluation.ope.features import COUNT, RandomFeatures
from ringfence.evaluation.ope.fqe import AveragedFittedQ, FittedQ, Values, mean_of
from ringfence.evaluation.ope.judge import DRAWS, ROWS_PER_FEATURE
from ringfence.evaluation.ope.judge_inputs import steps_that_count
from ringfence.evaluation.ope.judgement import bounded, finite_or_none, percent
from ringfence.reports.judgement import costless_line, print_judgements

LOG = narrow_log(rows=1000, episode_length=50)
REFERENCE = narrow_log(rows=1000, episode_length=50, seed=1)


def idle(observations):
    return np.zeros((len(observations), 2), np.float32)


# Draws


def values(returned, cost, in_range=True):
    """As of one draw, whose features are one."""
    rows = np.array([cost, 2 * cost])
    return Values(returned, cost, 3 * cost, rows[:, None], rows, np.full((1, 2), cost), in_range)


def test_the_estimate_is_the_mean_over_draws_and_their_standard_deviation_is_its_spread():
    found = mean_of([values(1.0, 10.0), values(2.0, 14.0), values(6.0, 12.0)])
    assert (found.returned, found.cost, found.cost_spread, found.in_range) == (3.0, 12.0, 36.0, True)
    assert found.feature_spread == pytest.approx([7**0.5, 2.0])  # of 1, 2, 6: (4 + 1 + 9) / 2
    assert found.weights.tolist() == found.influences[:, 0].tolist() == [12.0, 24.0]
    assert found.critics.tolist() == [[10.0, 10.0]]  # of the first


def test_a_draw_by_which_backups_diverge_is_left_out_of_the_mean_and_the_log_cannot_judge():
    found = mean_of([values(1.0, 10.0), values(3.0, 14.0), values(1e9, 1e9, in_range=False)])
    assert (found.returned, found.cost, found.in_range) == (2.0, 12.0, False)
    alone = mean_of([values(1e9, 1e9, in_range=False)])
    assert (alone.cost, alone.in_range, alone.feature_spread.tolist()) == (1e9, False, [0, 0])


def test_averaged_evaluation_is_that_of_each_draw():
    draws = [RandomFeatures.of(LOG, 40, seed) for seed in (0, 1, 2)]
    ahead, first = idle(LOG.observations), idle(LOG.episode_starts)
    found = AveragedFittedQ(LOG, draws, 0.9, 20, seed=3).evaluate(ahead, first)
    each = [FittedQ(LOG, draw, 0.9, 20, seed=3).evaluate(ahead, first) for draw in draws]
    assert found.cost == pytest.approx(np.mean([one.cost for one in each]))
    assert found.feature_spread[1] == pytest.approx(np.std([one.cost for one in each], ddof=1))
    assert found.feature_spread[1] > 0
    assert found.weights @ LOG.costs == pytest.approx(np.mean([one.weights @ LOG.costs for one in each]))


def test_how_far_draws_differ_widens_the_bound_by_backups():
    judge = Judge(LOG, REFERENCE)
    assert len(judge.fitted.others) == DRAWS - 1
    plain = judge.evidence(idle).values
    quiet = replace(plain, influences=0 * plain.influences)
    widths = []
    for spread in (0.0, 50.0):
        drawn = replace(quiet, feature_spread=np.array([0.0, spread]))
        estimate, _ = judge._estimates("cost", drawn, None, 0.0, 0.95)
        widths.append(estimate.upper - estimate.value)
    assert widths[0] > 0
    drawn = np.sqrt(widths[1] ** 2 - widths[0] ** 2)
    assert drawn == pytest.approx(50 * 2.132, rel=1e-3)  # Student's t for the 4 degrees of freedom of five draws


def test_every_draw_has_features_of_its_own_and_as_many_as_its_rows_carry():
    fitted = Judge(LOG, REFERENCE).fitted
    units = [each.features.weights for each in (fitted, *fitted.others)]
    assert len({weights.tobytes() for weights in units}) == DRAWS
    assert len(LOG) // ROWS_PER_FEATURE < COUNT


# Support


def one_step_log(rows=400, seed=0):
    """Every episode is one step: what is done there costs its square, and actions near 0 are logged."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(rows, 1))
    actions = np.clip(0.1 * rng.standard_normal((rows, 1)), -1, 1)
    return Dataset.from_arrays(
        observations=states, next_observations=states, actions=actions, rewards=np.ones(rows),
        costs=1 + 4 * actions[:, 0] ** 2, terminations=np.ones(rows, bool), truncations=np.zeros(rows, bool),
        action_low=[-1.0], action_high=[1.0],
    )  # fmt: skip


def test_actions_in_first_states_count_for_support_and_those_after_a_termination_do_not():
    judge = Judge(one_step_log(), one_step_log(seed=1))
    logged, far = (judge(lambda s, a=a: np.full((len(s), 1), a), 2.25) for a in (0.0, 1.0))
    assert logged.judgeable
    assert logged.support.foreign_on_path == 0.0
    assert not far.judgeable
    assert far.support.foreign_on_path == pytest.approx(1.0)
    assert far.verdict == "cannot tell"
    assert not far.return_is_bounded

    log = judge.log
    nothing = judge.fitted.evaluate(idle(log.observations)[:, :1], idle(log.episode_starts)[:, :1])
    wild = np.full((len(log), 1), 1.0, np.float32)  # "next" actions, after the end of every episode
    support = judge.coverage.of(lambda s: s, wild, 0 * wild, nothing)
    assert (support.foreign, support.foreign_on_path) == (0.0, 0.0)


def test_each_pair_counts_by_how_often_the_policy_plays_it():
    """Two steps an episode: the first states count 1 in all, the second states the discount."""
    rng, episodes = np.random.default_rng(0), 200
    second = np.tile([False, True], episodes)
    states = rng.normal(size=(2 * episodes, 1)) + 10.0 * second[:, None]
    actions = 0.1 * rng.standard_normal((2 * episodes, 1))
    log = Dataset.from_arrays(
        observations=states, next_observations=np.where(second[:, None], states, np.roll(states, -1, 0)),
        actions=actions, rewards=np.ones(len(states)), costs=np.ones(len(states)), terminations=second,
        truncations=np.zeros(len(states), bool), action_low=[-1.0], action_high=[1.0],
    )  # fmt: skip
    judge = Judge(log, log, discount=0.5)
    ahead, first = np.zeros((len(log), 1), np.float32), np.zeros((episodes, 1), np.float32)
    values = judge.fitted.evaluate(ahead, first)
    values = replace(values, weights=np.where(second, 0.5, 1.0) / episodes)
    for early, late, share in ((1.0, 0.0, 1 / 1.5), (0.0, 1.0, 0.5 / 1.5)):
        found = judge.coverage.of(lambda s: s, ahead + late, first + early, values)
        assert found.foreign_on_path == pytest.approx(share, abs=0.02)


# What is said, and what is asked


def test_a_long_horizon_is_cut_off_where_nothing_is_left_to_discount():
    assert steps_that_count(0.9) == 175  # 0.9^174 = 1.1e-8, 0.9^175 = 9.8e-9
    short, long = (Judge(LOG, REFERENCE, discount=0.8, horizon=horizon) for horizon in (50, 10**6))
    assert (long.horizon, long.steps, long.fitted.horizon) == (10**6, steps_that_count(0.8), steps_that_count(0.8))
    assert short.steps == 50
    found = long(idle, 5.0)
    assert found.horizon == 10**6
    assert found.cost.value == pytest.approx(Judge(LOG, REFERENCE, discount=0.8, horizon=400)(idle).cost.value)


def test_an_estimate_below_0_of_what_is_positive_counts_as_0():
    below = bounded(-2.0, 5.0, positive=True)
    assert (below.value, below.lower, below.upper) == (0.0, 0.0, 5.0)
    free = bounded(-2.0, 5.0, positive=False)
    assert (free.value, free.lower, free.upper) == (-2.0, -7.0, 3.0)


def test_json_has_no_numbers_that_it_does_not_know():
    found = finite_or_none({"a": float("nan"), "b": [1.0, (float("inf"), "x")], "c": None})
    assert found == {"a": None, "b": [1.0, [None, "x"]], "c": None}
    judged = Judge(LOG, REFERENCE)(idle)
    apart = replace(judged, support=replace(judged.support, nearest=float("nan"), distance=float("inf")))
    read = json.loads(json.dumps(apart.to_dict(), allow_nan=False))
    assert read["support"]["nearest"] is read["support"]["distance"] is None
    assert read["cost"]["value"] == judged.cost.value


def test_a_confidence_is_never_rounded_to_certainty():
    assert [percent(x) for x in (0.95, 0.999, 0.99999)] == ["95%", "99.9%", "99.999%"]
    console = Console(record=True, width=200)
    print_judgements([Judge(LOG, REFERENCE)(idle, 1e6, confidence=0.999)], console)
    assert "each at 99.9%" in console.export_text()


def test_where_nothing_cost_anything_it_is_said_how_often_something_may():
    """Of 20 episodes: 1 - 0.05^(1/20) = 13.9 %, the exact binomial bound."""
    judged = Judge(LOG, REFERENCE)(idle)
    assert (judged.episodes, judged.costly, costless_line(judged)) == (20, True, [])
    free = [replace(log, costs=np.zeros_like(log.costs)) for log in (LOG, REFERENCE)]
    (line,) = costless_line(Judge(*free)(idle, 1.0))
    assert "no step of the 20 judging episodes cost anything" in line
    assert "at most 13.9% of such episodes do (at 95%)" in line


@pytest.mark.parametrize("horizon", [0, -3, 2.5, float("nan"), True])
def test_a_horizon_is_a_whole_number_of_steps(horizon):
    with pytest.raises(InvalidSetting, match="horizon must be a whole number of steps of at least 1"):
        Judge(LOG, REFERENCE, horizon=horizon)


@pytest.mark.parametrize("confidence", ["0.9", None, 0.4, 1])
def test_a_confidence_is_a_number_from_a_half_to_below_one(confidence):
    with pytest.raises(InvalidSetting, match=r"confidence must lie between 0\.5 and 1"):
        Judge(LOG, REFERENCE)(idle, 1.0, confidence=confidence)


def test_choose_asks_for_a_limit_that_is_one():
    with pytest.raises(InvalidSetting, match="limit must be a finite cost"):
        choose({"one": idle}, LOG, None)


def test_train_does_not_judge_at_a_limit_for_other_episodes_than_the_logs(log_file, tmp_path, capsys):
    words = ["train", str(log_file), "--method", "bc", "--limit", "0.1", "--limit-kind", "step", "--steps", "2"]
    assert main([*words, "--horizon", "500", "--out", str(tmp_path / "run")]) == 0
    told = capsys.readouterr().err
    assert (
        "the limit is meant for 500 steps, and policies are judged over the log's 120: no episode is set aside" in told
    )
    assert not (tmp_path / "run" / "judgement.json").exists()
    assert main([*words, "--horizon", "500", "--holdout", "0.2", "--out", str(tmp_path / "other")]) == 2
    assert "leave --horizon or --holdout out" in capsys.readouterr().err
