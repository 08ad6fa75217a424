"""A guard takes the policy out of the loop when it should, gives it back when it may, and never fails itself.

The plant here has a temperature and a pressure. The policy's action is tanh(pressure), its cost-to-go 10 x temperature,
and the detector's score of (s, a) is (2 a)^2 / 2, all by hand.
"""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.artifacts import MEAN, NETWORKS, SCORES, STD, random_artifact, random_observations
from tests.equations.kernel_sets import SETS, kernels_of

import ringfence
from ringfence.deploy import Artifact, Guard, Network, Policy, drift, read_guard_log
from ringfence.deploy.guard_compiled import CompiledScores
from ringfence.deploy.guard_scores import Scores
from ringfence.deploy.reference import guard_tensors, stillness, with_reference
from ringfence.errors import InvalidSetting, UnknownName, UnreadableFile
from ringfence.kernels.library import Library, built

S, SA = ("observation",), ("observation", "action")
NETWORK_LIST = (
    Network("actor", S, "tanh-gaussian"),
    Network("cost", SA, "value"),
    Network("encoder", SA, "latent-gaussian"),
)
TENSORS = {
    "actor.0.weight": [[0, 0], [1, 0]],
    "actor.0.bias": [0, 0],
    "cost.0.weight": [[10], [0], [0]],
    "cost.0.bias": [0],
    "encoder.0.weight": [[0, 0], [0, 0], [2, 0]],
    "encoder.0.bias": [0, 0],
    "threshold": [1.0],  # reached at |a| = 1 / sqrt(2)
}
FACTS = {
    "observation_names": ("temperature", "pressure"),
    "observation_low": [-10.0, -2.0],
    "observation_high": [10.0, 2.0],
    "limit": 50.0,
    "discount": 0.5,
}
ARTIFACT = Artifact("tanh-gaussian", {n.name: n for n in NETWORK_LIST}, TENSORS, [0, 0], [1, 1], [-1], [1], **FACTS)
FALLBACK = 0.25
NOMINAL = np.array([1.0, 0.3], np.float32)


def guard_of(artifact=ARTIFACT, fallback=FALLBACK, **options):
    return Guard(artifact, fallback, **options)


def sources(guard, observations, costs=None):
    costs = [None] * len(observations) if costs is None else costs
    return [guard.decide(o, c).source for o, c in zip(observations, costs, strict=True)]


def rules_of(decision):
    return [reason.rule for reason in decision.reasons]


# Rules


def test_where_nothing_is_wrong_the_policy_acts():
    decision = guard_of().decide(NOMINAL)
    assert decision.action == Policy(ARTIFACT)(NOMINAL) == pytest.approx(np.tanh(0.3))
    assert decision.trusted
    assert decision.reasons == ()
    assert decision.scores["cost_to_go"] == pytest.approx(10.0)
    assert decision.scores["detector_score"] == pytest.approx(2 * np.tanh(0.3) ** 2, rel=1e-5)


@pytest.mark.parametrize(("temperature", "fires"), [(10.9, False), (11.1, True), (-10.9, False), (-11.1, True)])
def test_a_column_may_lie_5_percent_beyond_the_range_of_the_log(temperature, fires):
    decision = guard_of(rules={"cost_to_go": None}).decide([temperature, 0.0])
    assert decision.trusted is not fires
    if fires:
        (reason,) = decision.reasons
        assert (reason.rule, reason.column) == ("range", "temperature")
        assert reason.threshold == pytest.approx(np.sign(temperature) * 11.0)
        assert "temperature is" in str(reason)
        assert decision.action == FALLBACK


@pytest.mark.parametrize(
    ("rule", "bad", "value", "threshold"),
    [("cost_to_go", [5.1, 0.0], 51.0, 50.0), ("detector", [0.0, 1.5], 2 * np.tanh(1.5) ** 2, 1.0)],
)
def test_a_score_above_its_threshold_hands_over_when_it_lasts(rule, bad, value, threshold):
    guard = guard_of(rules={"patience": 3})
    assert sources(guard, [bad, bad, NOMINAL, bad, bad, bad]) == ["policy"] * 5 + ["fallback"]
    (reason,) = guard.last.reasons
    assert reason.rule == rule
    assert reason.value == pytest.approx(value, rel=1e-5)
    assert reason.threshold == threshold


def test_the_cost_of_an_episode_is_discounted_and_its_budget_ends_with_it():
    """30 + 0.5 x 30 = 45 is inside 50; with 0.25 x 30 it is 52.5."""
    guard = guard_of()
    assert sources(guard, [NOMINAL] * 4, [None, 30.0, 30.0, 30.0]) == ["policy"] * 3 + ["fallback"]
    assert guard.last.scores["spent"] == pytest.approx(52.5)
    assert sources(guard, [NOMINAL] * 50, [0.0] * 50) == ["fallback"] * 50  # what is spent stays spent
    guard.reset()
    assert guard.decide(NOMINAL).trusted


def test_columns_that_go_together_in_the_log_and_do_not_now_are_noticed():
    x = np.linspace(-2, 2, 500)
    rows = np.stack([x, x + 0.01 * np.sin(40 * x)], 1).astype(np.float32)

    class Log:
        observations, terminations, truncations = rows, np.zeros(500, bool), np.zeros(500, bool)

    guard = guard_of(with_reference(ARTIFACT, Log), rules={"detector": None, "patience": 3})
    assert sources(guard, [[1.0, 1.0]] * 3) == ["policy"] * 3
    assert sources(guard, [[1.0, 0.8]] * 3) == ["policy", "policy", "fallback"]
    assert rules_of(guard.last) == ["together"]


def test_a_sensor_that_repeats_itself_longer_than_the_log_ever_did_is_stuck():
    """The log's temperature stood still for 6 steps: 12 are allowed. Its pressure never changed, and may go on so."""
    artifact = replace(
        ARTIFACT,
        tensors={**ARTIFACT.tensors, "guard_stillness": np.array([6.0, 500.0])},
        observation_low=[-10, 0.3],
        observation_high=[10, 0.3],
    )
    assert sources(guard_of(artifact), [NOMINAL] * 13) == ["policy"] * 12 + ["fallback"]
    guard = guard_of(artifact)
    sources(guard, [NOMINAL] * 13)
    assert [(r.rule, r.column) for r in guard.last.reasons] == [("stuck", "temperature")]


@pytest.mark.parametrize("bad", [np.nan, np.inf, None, "off", 10**400])
def test_a_missing_value_hands_over_at_once_and_is_named(bad):
    decision = guard_of().decide([bad, 0.3])
    assert decision.source == "fallback"
    assert [(r.rule, r.column) for r in decision.reasons] == [("missing", "temperature")]


def test_columns_are_taken_by_name_and_one_that_is_not_there_is_missing():
    guard = guard_of()
    assert guard({"pressure": 0.3, "flow": 7.0, "temperature": 1.0}) == pytest.approx(np.tanh(0.3))
    decision = guard.decide({"temperature": 1.0, "presure": 0.3})
    assert [(r.rule, r.column) for r in decision.reasons] == [("missing", "pressure")]


@pytest.mark.parametrize("named", [dict, pd.Series])
def test_a_row_of_a_table_is_taken_by_name_whatever_its_order(named):
    guard = guard_of()
    assert guard(named({"pressure": 0.3, "temperature": 1.0})) == guard(NOMINAL)
    decision = guard.decide(named({"temperature": 1.0, "presure": 0.3}))
    assert [(r.rule, r.column) for r in decision.reasons] == [("missing", "pressure")]


def test_a_series_without_names_is_a_vector_and_what_is_masked_is_missing():
    assert guard_of()(pd.Series(NOMINAL)) == guard_of()(NOMINAL)
    decision = guard_of().decide(np.ma.array([1.0, 0.3], mask=[False, True]))
    assert [(r.rule, r.column) for r in decision.reasons] == [("missing", "pressure")]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "reading", [np.array([1e300, 0.3]), [1e300, 0.3], {"temperature": 1e300, "pressure": 0.3}], ids=type
)
def test_a_number_beyond_float32_is_missing_even_where_warnings_are_errors(reading):
    decision = guard_of().decide(reading)
    assert [(r.rule, r.column) for r in decision.reasons] == [("missing", "temperature")]


@pytest.mark.parametrize("bad", [[1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]], 3.0, [], object()])
def test_an_observation_of_another_shape_hands_over(bad):
    decision = guard_of().decide(bad)
    assert decision.source == "fallback"
    assert rules_of(decision) == ["missing"]


@pytest.mark.parametrize("cost", [np.nan, -1.0, "much"])
def test_a_cost_that_is_none_counts_as_a_missing_sensor(cost):
    guard = guard_of()
    assert [(r.rule, r.column) for r in guard.decide(NOMINAL, cost).reasons] == [("missing", "cost")]
    assert guard.last.scores["spent"] == 0.0


def test_rules_can_be_switched_and_one_without_a_threshold_is_off():
    assert guard_of().active == ("missing", "range", "detector", "cost_to_go", "budget")
    assert guard_of(rules={"detector": None, "budget": None}).active == ("missing", "range", "cost_to_go")
    bare = Policy.from_tensors("tanh-gaussian", {k: TENSORS[k] for k in list(TENSORS)[:2]}, [0, 0], [1, 1], [-1], [1])
    assert guard_of(bare).active == ("missing",)
    assert sources(guard_of(rules={"cost_to_go": 2.0}), [[9.0, 0.0]] * 4) == ["policy"] * 4  # 90 of 100


def test_a_policy_for_a_range_of_limits_is_given_what_is_left_of_the_budget():
    limited = {
        "networks": {**ARTIFACT.networks, "actor": Network("actor", (*S, "limit"), "tanh-gaussian")},
        "tensors": {**ARTIFACT.tensors, "actor.0.weight": np.array([[0, 0], [0, 0], [1, 0]])},
        "limit_range": (10.0, 50.0),
    }
    guard = guard_of(replace(ARTIFACT, **limited), rules={"detector": None})
    assert guard(NOMINAL) == pytest.approx(np.tanh(1.0))  # all of 50, the top of the range
    # 35 are spent, 15 are left of a sum that the next cost enters at half its size: as much as 30 from here on
    assert guard(NOMINAL, cost=35.0) == pytest.approx(np.tanh(0.0), abs=1e-6)


# Hysteresis


def test_the_policy_comes_back_after_enough_quiet_steps_in_a_row():
    rules = {"release_after": 3, "patience": 1}
    guard = guard_of(rules=rules)
    hot, nearly = [5.1, 0.0], [4.6, 0.0]  # 46 is inside 50, and not below 0.9 x 50 = 45
    assert sources(guard, [hot, NOMINAL, NOMINAL, NOMINAL]) == ["fallback"] * 3 + ["policy"]
    assert sources(guard, [hot, NOMINAL, NOMINAL, nearly, NOMINAL, NOMINAL]) == ["fallback"] * 6
    assert sources(guard, [NOMINAL, nearly]) == ["policy"] * 2


# The actuator


def test_actions_stay_inside_bounds_and_rate_whoever_chooses_them():
    guard = guard_of(fallback=lambda o: 99.0, rules={"rate": 0.5, "detector": None})
    first = guard.decide([0.0, 0.0])
    assert first.corrected == ()
    second = guard.decide([np.nan, 0.0])
    assert second.action == first.action + 0.5
    assert second.corrected == ("bounds", "rate")
    assert guard([np.nan, 0.0]) == pytest.approx(1.0)


def test_the_fallback_may_be_a_constant_a_function_or_a_policy():
    blind = [np.nan, 0.3]
    assert guard_of(fallback=[0.5])(blind) == 0.5
    assert guard_of(fallback=lambda observation: observation[1])(blind) == pytest.approx(0.3)
    other = Policy.from_tensors(
        "tanh-gaussian", {"actor.0.weight": np.zeros((2, 2)), "actor.0.bias": [0.5, 0]}, [0, 0], [1, 1], [-1], [1]
    )
    assert guard_of(fallback=other)([99.0, 0.0]) == pytest.approx(np.tanh(0.5))


def test_a_fallback_for_a_range_of_limits_needs_one_before_the_loop_starts():
    actor = Network("actor", ("observation", "limit"), "tanh-gaussian")
    tensors = {"actor.0.weight": [[0, 0], [0, 0], [1, 0]], "actor.0.bias": [0, 0]}
    other = Policy(
        Artifact("tanh-gaussian", {"actor": actor}, tensors, [0, 0], [1, 1], [-1], [1], limit_range=(10.0, 30.0))
    )
    with pytest.raises(InvalidSetting, match="every limit from 10 to 30: say which"):
        guard_of(fallback=other)
    decision = guard_of(fallback=other.at_limit(30.0)).decide([99.0, 0.0])
    assert decision.source == "fallback"
    assert decision.action == pytest.approx(np.tanh(1.0))


def explode(observation):
    raise RuntimeError("the fallback broke")


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def explode_without_words(observation):
    raise Unspeakable


@pytest.mark.parametrize(
    "fallback",
    [explode, explode_without_words, lambda o: np.nan, lambda o: [1.0, 2.0], lambda o: "open", lambda o: None],
)
def test_when_the_fallback_fails_too_the_last_good_action_is_repeated(fallback):
    guard = guard_of(fallback=fallback)
    assert guard([np.nan, 0.0]) == 0.0  # the middle: there is no good action yet
    assert guard.last.source == "middle"
    good = guard_of(fallback=fallback)(NOMINAL)
    guard = guard_of(fallback=fallback)
    guard(NOMINAL)
    decision = guard.decide([np.nan, 0.0])
    assert (decision.action, decision.source) == (good, "last")
    assert rules_of(decision) == ["missing", "fallback"]
    guard = guard_of(fallback=fallback, last_resort="middle")
    guard(NOMINAL)
    assert guard([np.nan, 0.0]) == 0.0


@pytest.mark.parametrize("fails", [explode, lambda o: np.array([np.nan]), lambda o: None, lambda o: "open"])
def test_a_policy_that_fails_hands_over(fails):
    class Broken(Policy):
        def __call__(self, observation, *, limit=None):
            return fails(observation)

    guard = guard_of(Broken(ARTIFACT))
    assert (guard(NOMINAL), rules_of(guard.last)) == (FALLBACK, ["policy"])


class BrokenBus(dict):
    def get(self, name):
        raise OSError("the bus is down")


def test_readings_that_cannot_be_read_hand_over():
    guard = guard_of()
    assert guard(NOMINAL) != FALLBACK
    assert guard(BrokenBus()) == FALLBACK
    assert [str(reason) for reason in guard.last.reasons] == ["fault: (OSError: the bus is down)"]


def test_a_defect_of_the_guard_itself_does_not_stop_the_loop(monkeypatch):
    guard = guard_of(fallback=explode)
    good = guard(NOMINAL)
    monkeypatch.setattr(guard, "_watch", explode)
    assert guard(NOMINAL) == good
    assert rules_of(guard.last) == ["fault", "fallback"]


def test_the_last_resort_respects_the_rate_too():
    guard = guard_of(fallback=explode, last_resort="middle", rules={"rate": 0.1, "detector": None})
    first = guard([0.0, 2.0])
    decision = guard.decide([np.nan, 0.0])
    assert decision.source == "middle"
    assert decision.action == pytest.approx(first - 0.1)
    assert decision.corrected == ("rate",)


numbers = st.one_of(st.floats(width=32), st.none(), st.text(max_size=3), st.integers(-(10**400), 10**400))
anything = st.one_of(
    st.lists(numbers, max_size=4),
    st.dictionaries(st.sampled_from(["temperature", "pressure", "flow"]), numbers),
    numbers,
    st.lists(st.lists(numbers, max_size=2), max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.tuples(anything, numbers, anything), min_size=1, max_size=8), rate=st.sampled_from([None, 0.1])
)
def test_whatever_it_is_given_it_answers_with_an_action(steps, rate):
    replies = iter([])
    guard = guard_of(fallback=lambda o: next(replies), rules={"rate": rate})
    for observation, cost, reply in steps:
        replies = iter([reply])
        action = guard(observation, cost=cost)
        assert action.shape == (1,)
        assert np.isfinite(action).all()
        assert -1 <= action[0] <= 1


def test_what_the_caller_does_with_an_action_does_not_reach_the_guard():
    guard = guard_of(fallback=explode)
    good = guard(NOMINAL).copy()
    guard(NOMINAL)[:] = np.nan
    with pytest.raises(ValueError, match="read-only"):
        guard.last.action[:] = np.nan
    assert guard([np.nan, 0.0]) == good


# What is wrong before the loop


def test_what_cannot_work_is_refused_when_the_guard_is_made():
    for fallback in (7.0, [0.1, 0.2], np.nan, None, "stop", random_artifact("tanh-gaussian")):
        with pytest.raises(InvalidSetting, match="fallback"):
            guard_of(fallback=fallback)
    with pytest.raises(UnknownName, match="no rule 'ranges'; there are range,"):
        guard_of(rules={"ranges": None})
    for rules in ({"range": -1}, {"detector": "high"}, {"rate": 0}, {"rate": [1, 2]}, {"patience": 0}):
        with pytest.raises(InvalidSetting):
            guard_of(rules=rules)
    with pytest.raises(InvalidSetting, match="'last' or 'middle'"):
        guard_of(last_resort="first")
    with pytest.raises(InvalidSetting, match="'steps'"):
        guard_of(record="all")
    for rules in ({"rate": "fast"}, {"rate": True}, {"patience": True}):
        with pytest.raises(InvalidSetting, match=next(iter(rules))):
            guard_of(rules=rules)
    for limit in (np.nan, np.inf, -1.0, "low", [3.0], True):
        with pytest.raises(InvalidSetting, match="limit must be a number of at least 0"):
            guard_of(limit=limit)
    for policy in (3, None):
        with pytest.raises(InvalidSetting, match="the policy must be a Policy, an Artifact or a file, not"):
            guard_of(policy)


def test_a_log_that_cannot_be_begun_is_refused_when_the_guard_is_made(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file" / "guard.jsonl"):
        with pytest.raises(InvalidSetting, match=r"cannot write the guard's log"):
            guard_of(log=place)


def test_a_policy_for_a_range_of_limits_needs_one_of_them():
    actor = Network("actor", (*S, "limit"), "tanh-gaussian")
    tensors = {**ARTIFACT.tensors, "actor.0.weight": np.zeros((3, 2))}
    networks = {**ARTIFACT.networks, "actor": actor}
    artifact = replace(ARTIFACT, networks=networks, tensors=tensors, limit=None, limit_range=(10.0, 50.0))
    assert guard_of(artifact, limit=20.0).decide(NOMINAL).trusted
    for limit in (None, 5.0, 60.0):
        with pytest.raises(InvalidSetting, match=r"10 (and|to) 50"):
            guard_of(artifact, limit=limit)


# Its log, and drift


def test_each_step_is_a_line_of_strict_json(tmp_path):
    guard = guard_of(log=tmp_path / "guard.jsonl")
    guard(NOMINAL)
    guard([np.nan, 99.0], cost=2.0)
    guard.reset()
    guard(NOMINAL)
    lines = list(read_guard_log(tmp_path / "guard.jsonl"))
    for text in (tmp_path / "guard.jsonl").read_text().splitlines():
        json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    opening, first, second, third = lines
    assert opening["observation_names"] == ["temperature", "pressure"]
    assert opening["policy"] == ARTIFACT.checksum
    assert opening["thresholds"]["cost_to_go"] == 50.0
    assert (first["trusted"], first["source"], first["reasons"]) == (True, "policy", [])
    assert second["observation"] == [None, 99.0]
    assert second["reasons"] == [{"rule": "missing", "column": "temperature"}]
    assert second["spent"] == 2.0
    assert [(line["episode"], line["step"]) for line in (first, second, third)] == [(0, 0), (0, 1), (1, 0)]


def test_a_log_of_events_leaves_out_what_is_trusted(tmp_path):
    guard = guard_of(log=tmp_path / "guard.jsonl", record="events", rules={"release_after": 1})
    sources(guard, [NOMINAL, [np.nan, 0.0], NOMINAL, NOMINAL])
    assert [line["step"] for line in read_guard_log(tmp_path / "guard.jsonl") if line["event"] == "step"] == [1, 2]
    with pytest.raises(InvalidSetting, match="events alone"):
        drift(tmp_path / "guard.jsonl", ARTIFACT)


def test_a_log_that_cannot_be_written_is_counted_and_nothing_stops(tmp_path):
    guard = guard_of(log=tmp_path / "guard.jsonl")
    guard._log._file.close()
    assert guard(NOMINAL) == Policy(ARTIFACT)(NOMINAL)
    assert guard.log_failures == 1


def test_a_line_cut_off_by_a_power_cut_is_left_out_and_other_damage_is_not(tmp_path):
    path = tmp_path / "guard.jsonl"
    guard_of(log=path)(NOMINAL)
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert [line["event"] for line in read_guard_log(path)] == ["start"]
    guard_of(log=path)(NOMINAL)  # goes on after it
    assert [line["event"] for line in read_guard_log(path)] == ["start", "start", "step"]
    path.write_text(whole + "garbage\n" + whole.splitlines(True)[1])
    with pytest.raises(UnreadableFile, match="line 3"):
        list(read_guard_log(path))
    for content in ("{}\n", ""):
        path.write_text(content)
        with pytest.raises(UnreadableFile, match="not a guard's log"):
            list(read_guard_log(path))


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_line_of_which_one_number_was_changed_is_refused(tmp_path, place):
    """No reader could tell 0.5 from 0.7 otherwise; the last line counts too, for it was not cut off."""
    path = tmp_path / "guard.jsonl"
    guard = guard_of(log=path)
    for _ in range(3):
        guard(NOMINAL)
    lines = path.read_text().splitlines(True)
    step = json.loads(lines[place])
    lines[place] = lines[place].replace(f'"observation": {step["observation"]}', '"observation": [0.125, 0.5]')
    path.write_text("".join(lines))
    with pytest.raises(UnreadableFile, match=f"line {place + 1}"):
        list(read_guard_log(path))


ODD = [None, True, -1.5, "x", [], {}, [[]], [None], 10**400, float("nan")]


@pytest.mark.parametrize("place", [0, 1])
def test_whatever_stands_in_a_line_without_a_checksum_is_understood_or_refused(tmp_path, place):
    """Logs of version 1: each key of a line in turn lost, or with another kind of value."""
    path = tmp_path / "guard.jsonl"
    guard = guard_of(log=path)
    for seen in (NOMINAL, [np.nan, 99.0], NOMINAL):
        guard(seen)
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    for line in lines:
        del line["crc32"]
    lines[0]["version"] = 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(list(read_guard_log(path))) == 4
    changed = [{name: v for name, v in lines[place].items() if name != key} for key in lines[place]]
    changed += [{**lines[place], key: value} for key in lines[place] for value in ODD]
    changed.append({**lines[place], "reasons": [{"column": "x"}]})
    refused = 0
    for line in changed:
        path.write_text("".join(json.dumps(each) + "\n" for each in (*lines[:place], line, *lines[place + 1 :])))
        try:
            drift(path, ARTIFACT)
        except (UnreadableFile, InvalidSetting):
            refused += 1
    assert refused > len(lines[place])


def test_drift_compares_what_the_guard_saw_with_the_log(tmp_path):
    """The temperature's values are those of the log plus 3: the largest difference of the two distribution functions, of
    10 and of 10 evenly spaced values, is 3 of 10; the pressure's are the log's own."""
    column = np.arange(10.0)

    class Log:
        observations = np.stack([column, column / 10], 1)
        observation_names = ("temperature", "pressure")

    guard = guard_of(log=tmp_path / "guard.jsonl", rules={"cost_to_go": None, "range": None, "detector": None})
    for value in column:
        guard([value + 3, value / 10])
    guard([np.nan, 0.5])
    found = drift(tmp_path / "guard.jsonl", Log)
    temperature, pressure = found.columns
    assert temperature.shift == pytest.approx(3 / column.std())
    assert temperature.distance == pytest.approx(0.3)
    assert temperature.outside == pytest.approx(0.3)
    assert temperature.missing == pytest.approx(1 / 11)
    assert pressure.outside == 0.0
    assert (found.steps, found.episodes, found.handed_over, found.broken) == (11, 1, 1, {"missing": 1})
    assert found.trusted == pytest.approx(10 / 11)
    assert any("temperature has moved by +1.0 standard deviations" in text for text in found.warnings)
    assert not any("pressure" in text for text in found.warnings)
    by_artifact = drift(tmp_path / "guard.jsonl", ARTIFACT)
    assert by_artifact.columns[0].shift == pytest.approx(7.5)
    assert by_artifact.columns[0].distance is None
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_guard_that_was_started_again_hands_over_again(tmp_path):
    """Both runs count their episodes from 0. The first ends with the fallback, the second begins with it: that is twice."""
    for readings in ([[1.0, 0.3], [np.nan, 0.3]], [[np.nan, 0.3], [1.0, 0.3]]):
        guard = guard_of(log=tmp_path / "guard.jsonl")
        for reading in readings:
            guard(reading)
        guard.close()
    found = drift(tmp_path / "guard.jsonl", ARTIFACT)
    assert (found.episodes, found.handed_over) == (2, 2)


def test_a_column_that_never_changes_in_the_log_has_no_deviation_to_be_counted_in(tmp_path):
    class Log:
        observations = np.array([[5.0, 0.0], [5.0, 1.0]])
        observation_names = ("temperature", "pressure")

    guard = guard_of(log=tmp_path / "guard.jsonl", rules={"range": None})
    guard([7.0, 0.5])
    first, *_ = drift(tmp_path / "guard.jsonl", Log).warnings
    assert first == "temperature was 7 on average; in the log it is always 5"
    constant = {"observation_low": [5.0, 0.0], "observation_high": [5.0, 1.0], "observation_mean": [5.0, 0.5]}
    by_artifact = drift(tmp_path / "guard.jsonl", replace(ARTIFACT, **constant))
    assert by_artifact.columns[0].shift == np.inf
    assert by_artifact.warnings[0] == first
    guard_of(log=tmp_path / "missing.jsonl")([np.nan, 0.5])
    assert drift(tmp_path / "missing.jsonl", Log).warnings[0] == "temperature was missing in 100.0% of the steps"


def test_drift_of_a_column_that_was_never_there_is_json_too(tmp_path):
    guard_of(log=tmp_path / "guard.jsonl")([np.nan, 0.3])
    found = drift(tmp_path / "guard.jsonl", ARTIFACT)
    assert found.warnings == ("temperature was missing in 100.0% of the steps",)
    (temperature, _) = json.loads(json.dumps(found.to_dict(), allow_nan=False))["columns"]
    assert (temperature["mean"], temperature["missing"]) == (None, 1.0)


# What the artifact knows of the log


def test_the_longest_stretch_of_equal_values_ends_with_the_episode():
    rng = np.random.default_rng(0)
    rows, ends = rng.integers(0, 2, (200, 3)).astype(float), rng.uniform(size=200) < 0.1
    expected = [1, 1, 1]
    for j in range(3):
        length = 1
        for i in range(1, 200):
            length = length + 1 if rows[i, j] == rows[i - 1, j] and not ends[i - 1] else 1
            expected[j] = max(expected[j], length)
    np.testing.assert_array_equal(stillness(rows, ends), expected)


# One observation at a time


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("hidden", [(), (7,), (64, 64), (256, 256)])
def test_one_observation_has_the_bits_that_it_has_in_a_batch(kind, hidden):
    policy = Policy(random_artifact(kind, SCORES, hidden=hidden))
    observations = random_observations(20)
    np.testing.assert_array_equal(np.stack([policy(row) for row in observations]), policy(observations))


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_guard_sends_the_bits_of_the_policy(kind):
    policy = Policy(random_artifact(kind, SCORES, hidden=(64, 64)))
    guard = Guard(
        policy,
        (policy.artifact.action_low + policy.artifact.action_high) / 2,
        rules={"detector": None, "cost_to_go": None},
    )
    for row in random_observations(20):
        np.testing.assert_array_equal(guard(row), policy(row))
        assert guard.last.trusted


@pytest.mark.parametrize("rules", [None, {"range": None}, {"stuck": None}])
def test_few_columns_are_judged_like_many(rules, monkeypatch):
    """Few columns are compared as Python's numbers, many by NumPy."""
    few = guard_of(rules=rules)
    monkeypatch.setattr("ringfence.deploy.guard_watch.FEW", 0)
    many = guard_of(rules=rules)
    rng = np.random.default_rng(0)
    for _ in range(300):
        row = rng.choice([-0.0, 0.0, 0.3, 10.0, 10.5, 12.0, np.nan], 2, p=[0.1, 0.3, 0.3, 0.1, 0.1, 0.05, 0.05])
        one, other = few.decide(row), many.decide(row)
        assert (one.action, one.reasons, one.trusted) == (other.action, other.reasons, other.trusted)


def compute_with(name, monkeypatch):
    """Let guards compute their scores with NumPy, or with the compiled library of this name."""
    library = Library("xla") if name == "numpy" else kernels_of(name)
    monkeypatch.setattr("ringfence.deploy.guard_compiled.chosen", lambda: library)


def limited(*inputs, **options):
    return Network("cost", (*inputs, "limit"), "value", scale=3.0, **options)


@pytest.mark.parametrize("hidden", [(), (7,), (64, 33), (16, 16, 16)])
@pytest.mark.parametrize(
    "networks",
    [
        SCORES,
        (Network("encoder", SA, "latent-gaussian", activation="tanh"), Network("cost", SA, "value", layer_norm=True)),
        (Network("encoder", SA[::-1], "latent-gaussian", layer_norm=True), limited(*SA, layer_norm=True)),
        (Network("encoder", SA, "latent-gaussian"), limited(*SA[::-1], layer_norm=True, activation="tanh")),
    ],
)
@pytest.mark.parametrize("computing", ["numpy", *SETS])
def test_the_scores_of_a_step_are_those_of_the_artifact(networks, hidden, computing, monkeypatch):
    """`Artifact` runs the networks as they are described; a guard runs them merged and rearranged, or compiled."""
    compute_with(computing, monkeypatch)
    rows = random_observations(500, seed=2)
    reference = guard_tensors((rows - MEAN) / STD, np.zeros(500, bool))
    facts = {"limit_range": (10.0, 50.0)} if "limit" in networks[1].inputs else {}
    artifact = random_artifact(
        "tanh-gaussian", networks, hidden=hidden, tensors=reference, limit=30.0, discount=1.0, **facts
    )
    guard = Guard(artifact, (artifact.action_low + artifact.action_high) / 2)
    assert type(guard._watch._scores) is (Scores if computing == "numpy" else CompiledScores)
    for row in rows[:20]:
        scores = guard.decide(row, cost=1.0).scores
        action, left = Policy(artifact)(row), {"limit": 30.0 - scores["spent"]} if facts else {}
        deviation = (row - MEAN) / STD - artifact.tensors["guard_centre"]
        together = ((deviation @ artifact.tensors["guard_whitening"].astype(float)) ** 2).sum()
        assert scores["together"] == pytest.approx(together, rel=1e-5)
        assert scores["detector_score"] == pytest.approx(artifact.detector_score(row, action), rel=1e-5, abs=1e-5)
        assert scores["cost_to_go"] == pytest.approx(artifact.cost_to_go(row, action, **left), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("computing", ["numpy", *SETS])
def test_latents_beyond_their_range_are_scored_like_those_at_its_end(computing, monkeypatch):
    """The log stds are 100 and -100, clipped to 4 and -8: KL = (e^8 - 1 - 8 + e^-16 - 1 + 16) / 2."""
    compute_with(computing, monkeypatch)
    tensors = {"encoder.0.weight": np.zeros((3, 4)), "encoder.0.bias": np.array([0.0, 0.0, 100.0, -100.0])}
    guard = guard_of(replace(ARTIFACT, tensors={**ARTIFACT.tensors, **tensors}))
    expected = (np.exp(8.0) + np.exp(-16.0) + 6.0) / 2
    assert guard.decide(NOMINAL).scores["detector_score"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("computing", ["numpy", *SETS])
def test_a_score_that_is_not_a_number_is_suspicious(computing, monkeypatch):
    """A hidden unit of the critic overflows to infinity, and infinity - infinity is NaN."""
    compute_with(computing, monkeypatch)
    tensors = {"cost.0.weight": np.full((3, 2), 3e38), "cost.0.bias": [0, 0], "cost.1.weight": [[1], [-1]]}
    artifact = replace(ARTIFACT, tensors={**ARTIFACT.tensors, **tensors, "cost.1.bias": [0]})
    with np.errstate(all="ignore"):
        decision = guard_of(artifact, rules={"patience": 1}).decide([1.0, 0.3])
    assert np.isnan(decision.scores["cost_to_go"])
    assert rules_of(decision) == ["cost_to_go"]
    assert decision.source == "fallback"


def test_a_library_without_the_scores_is_not_used(monkeypatch, tmp_path):
    """Such as one that was built by an older version, or is no library at all."""
    (tmp_path / "broken.so").write_bytes(b"")
    for path in (tmp_path / "broken.so", built("processor")):
        monkeypatch.setattr("ringfence.deploy.guard_compiled.chosen", lambda path=path: Library("avx2", path))
        assert guard_of().decide(NOMINAL).scores["cost_to_go"] == pytest.approx(10.0)


def test_a_policy_for_a_range_of_limits_has_for_one_observation_the_bits_that_it_has_in_a_batch():
    actor = Network("actor", ("limit", "observation"), "tanh-gaussian")
    policy = Policy(random_artifact("tanh-gaussian", (actor,), hidden=(64, 64), limit=20.0, limit_range=(10.0, 50.0)))
    observations = random_observations(5)
    for limit in (None, 35.0):
        alone = np.stack([policy(row, limit=limit) for row in observations])
        np.testing.assert_array_equal(alone, policy(observations, limit=limit))
    with pytest.raises(InvalidSetting, match="between 10 and 50"):
        policy(observations[0], limit=60.0)


def test_a_guard_needs_numpy_and_safetensors_alone():
    code = """if True:
        import sys, ringfence
        ringfence.Guard
        heavy = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
        print(sorted(name for name in heavy if not name.startswith(("_", "cython", "ringfence"))))
    """
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "['numpy', 'safetensors']"


def test_a_guard_does_not_load_what_only_sampling_needs():
    """NumPy loads `random` when it is named, be it in an annotation; a guard draws nothing."""
    code = "import sys, ringfence; ringfence.Guard; print('numpy.random' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.strip() == "False"


def test_the_guard_is_at_the_front_door():
    assert ringfence.Guard is Guard
