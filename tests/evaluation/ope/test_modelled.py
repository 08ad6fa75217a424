"""Judges that have a model of the plant: a small one, fitted for a moment."""

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.logs import narrow_log

from ringfence.evaluation.ope import calibration, dynamics
from ringfence.evaluation.ope.calibration import SourceCheck
from ringfence.evaluation.ope.judge import Judge
from ringfence.reports.judgement import details

LOG, REFERENCE = (narrow_log(rows=1500, with_source=True, seed=seed) for seed in (0, 1))


judge_module = sys.modules[Judge.__module__]  # `ope.judge` is a function


def idle(observations, _=None):
    return np.zeros((len(observations), 2), np.float32)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(judge_module, "LEAST_ROWS", 1)
    monkeypatch.setattr(judge_module, "fit_dynamics", partial(dynamics.fit_dynamics, members=2, steps=20))
    monkeypatch.setattr(calibration, "network_clones", partial(calibration.network_clones, steps=20))
    return monkeypatch


def calm(monkeypatch):
    """No plant is noisy, and none terminates often."""
    monkeypatch.setattr(dynamics, "NOISY", np.inf)
    monkeypatch.setattr(dynamics, "RARELY", 1.0)


def test_a_noisy_plant_is_judged_without_a_model_and_the_judgement_names_the_columns(quick):
    judging = Judge(LOG, REFERENCE)  # the states of this log are drawn anew in each step
    judged = judging(idle, 1e6)
    assert judging.dynamics is None
    assert judged.modelled is None
    assert judged.noisy == ("obs_0", "obs_1", "obs_2")
    assert any("a good part of the changes of obs_0, obs_1, obs_2" in line for line in details(judged))
    calm(quick)
    judged = Judge(LOG, REFERENCE)(idle, 1e6)
    assert judged.modelled is not None
    assert judged.noisy == ()
    assert not any("without a model of the plant" in line for line in details(judged))


def test_the_model_is_checked_as_policies_are_judged_by_the_middle_of_both_ends(quick):
    calm(quick)
    names = LOG.source_names
    judging = Judge(LOG, REFERENCE, behaviours=dict.fromkeys(names, idle))
    rolled = judging.dynamics.roll_out(idle, judging.horizon, judging.discount)
    for check in judging.calibration.checks:
        for signal in ("return", "cost"):
            wanted = np.mean(rolled.ends(signal))
            assert getattr(check, "modelled_cost" if signal == "cost" else "modelled_return") == pytest.approx(wanted)


def test_the_error_that_forbids_a_judgement_is_that_of_what_decides(quick):
    calm(quick)
    judging = Judge(LOG, REFERENCE)
    evidence = judging.evidence(idle)
    wrong = SourceCheck("a", 100, 10.0, 20.0, 1.0, 1.0, 10.0, 20.0, modelled_return=10.0, modelled_cost=40.0)
    for check, judgeable in ((wrong, False), (replace(wrong, modelled_cost=20.0, estimated_cost=40.0), True)):
        judging.calibration = replace(judging.calibration, checks=(check,))
        judged = judging.judgement(evidence, None, 0.95, "idle")
        assert ("error of" not in judged.reason) == judgeable


def test_the_bounds_by_the_model_hold_the_uncertainty_of_the_states_that_roll_outs_start_in(quick):
    calm(quick)
    judging = Judge(LOG, REFERENCE)
    values, rolled, support, _ = judging.evidence(idle)
    one = rolled.costs[:1] * 0 + 1
    costs = 2.0 + np.arange(one.shape[2], dtype=np.float32) * one  # alike in all plants, different from start to start
    apart = replace(
        rolled, observations=rolled.observations[:1], actions=rolled.actions[:1], rewards=one, costs=costs, alive=one,
        perhaps_alive=one, at_longest=one, known=one, disturbed=None,
    )  # fmt: skip
    cost, _ = judging._estimates("cost", values, apart, support.distance, 0.95)
    of_starts = costs[0, 0].std(ddof=1) / one.shape[2] ** 0.5
    measured = judging.calibration.modelled_spread("cost", cost.value, support.distance)
    assert cost.upper - cost.value == pytest.approx(1.6449 * np.hypot(measured, of_starts), rel=1e-4)


def test_a_tail_is_that_of_modelled_episodes_where_these_scatter_more(quick):
    calm(quick)
    judging = Judge(LOG, REFERENCE)
    evidence = judging.evidence(idle)
    usual = judging.judgement(evidence, None, 0.95, "idle")
    costs = evidence.rolled.costs.copy()
    costs[0, :, ::2] += 50.0  # every second roll-out costs 50 more in its first step
    wild = replace(evidence.rolled, costs=costs, disturbed=None)
    judged = judging.judgement(evidence._replace(rolled=wild), None, 0.95, "idle")
    assert judged.worst_tenth == pytest.approx(judged.cost.value + np.sort(wild.scatter)[-4:].mean(), rel=0.02)
    assert judged.worst_tenth > judged.cost.value + 24 > usual.worst_tenth


def test_a_source_without_a_whole_reference_episode_is_named():
    first = LOG.source == 0
    starts = np.flatnonzero(first[LOG.episode_starts])
    of_one = REFERENCE.select_episodes(np.flatnonzero(REFERENCE.source[REFERENCE.episode_starts] == 0))
    assert 0 < len(starts) < len(LOG.episode_starts)
    judged = Judge(LOG, of_one)(idle, 1e6)
    assert judged.unchecked == LOG.source_names[1:]
    assert any("not checked, because they have no whole reference episode" in line for line in details(judged))
