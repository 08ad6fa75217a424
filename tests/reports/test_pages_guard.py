"""The page of a guard's log: who acted, why not the policy, and whether the plant has moved."""

from dataclasses import replace

import numpy as np
import pytest

from ringfence.cli import main
from ringfence.deploy import Artifact, Guard, Network, Policy, read_guard_log
from ringfence.deploy.guard_lines import encode
from ringfence.errors import InvalidSetting
from ringfence.reports.html.guard_numbers import guard_numbers
from ringfence.reports.html.guard_page import guard_page
from ringfence.reports.html.render import write_page
from tests.reports.pages import HOSTILE, columns, content, objects, read

# The cost-to-go is ten times the temperature; the limit is 50, so that it is reached at 5.
NETWORKS = {
    n.name: n
    for n in (Network("actor", ("observation",), "tanh-gaussian"), Network("cost", ("observation", "action"), "value"))
}
TENSORS = {
    "actor.0.weight": [[0, 0], [1, 0]],
    "actor.0.bias": [0, 0],
    "cost.0.weight": [[10], [0], [0]],
    "cost.0.bias": [0],
}
FACTS = {
    "observation_names": ("temperature", "pressure"), "units": {"temperature": "K"}, "limit": 50.0, "discount": 0.5,
    "observation_low": [-10.0, -2.0], "observation_high": [10.0, 2.0],
}  # fmt: skip
ARTIFACT = Artifact("tanh-gaussian", NETWORKS, TENSORS, [0, 0], [1, 1], [-1], [1], **FACTS)
RULES = {"patience": 2, "release_after": 3}


def day(path, artifact=ARTIFACT, **options):
    """Two episodes of ten steps. The first nominal; in the second the pressure is missing in steps 2 and 3, so that the
    fallback acts from step 2 until three quiet steps have passed: steps 2 to 5."""
    guard = Guard(artifact, 0.25, rules=RULES, log=path, **options)
    for episode in range(2):
        guard.reset()
        for step in range(10):
            pressure = np.nan if episode == 1 and step in (2, 3) else 0.1 * step
            guard([1.0 + 0.01 * step, pressure], cost=0.0)
    guard.close()
    return path


def test_a_hand_over_lasts_until_the_policy_acts_again(tmp_path):
    found = guard_numbers(day(tmp_path / "guard.jsonl"))
    (stretch,) = found.hand_overs
    assert (stretch.episode, stretch.step, stretch.at, stretch.why) == (1, 2, 12, "missing: pressure")
    assert stretch.steps == int((~found.trusted).sum()) == 4
    assert (found.steps, found.episodes, found.broken) == (20, 2, {"missing": 2})
    np.testing.assert_allclose(found.scores["cost_to_go"][:3], [10.0 / 50, 10.1 / 50, 10.2 / 50], rtol=1e-5)
    assert np.isnan(found.scores["cost_to_go"][12])  # the policy could not be asked


def test_an_episode_that_begins_ends_a_hand_over(tmp_path):
    guard = Guard(ARTIFACT, 0.25, rules=RULES, log=tmp_path / "guard.jsonl")
    for _ in range(2):
        guard.reset()
        for _ in range(3):
            guard([np.nan, 0.0])
    assert [(h.episode, h.steps) for h in guard_numbers(tmp_path / "guard.jsonl").hand_overs] == [(0, 3), (1, 3)]


def test_scores_are_shares_of_the_threshold_that_held_at_the_time(tmp_path):
    """The cost-to-go is 10 in every step. The guard has a limit of 50, and after its second start one of 20."""
    for limit in (50.0, 20.0):
        guard = Guard(replace(ARTIFACT, limit=limit), 0.25, rules=RULES, log=tmp_path / "guard.jsonl")
        guard([1.0, 0.0])
        guard.close()
    found = guard_numbers(tmp_path / "guard.jsonl")
    np.testing.assert_allclose(found.scores["cost_to_go"], [10 / 50, 10 / 20], rtol=1e-5)
    assert "by 2 starts of a guard with a limit of 50, then 20." in guard_page(found).lead


def test_the_page_says_who_acted_why_not_and_what_to_do(tmp_path):
    found = read(
        write_page(guard_page(guard_numbers(day(tmp_path / "guard.jsonl"), Policy(ARTIFACT))), tmp_path / "page.html")
    )
    assert "The policy acted in 80 % of the steps" in found.text
    assert "It was taken out 1 time, for 4 steps in all" in found.text
    assert found.tables["hand-overs"][1][1:] == ["1", "2", "4", "missing: pressure"]
    missing = next(row for row in found.tables["rules"] if row[0] == "missing")
    assert missing[3:5] == ["2", "10 %"]
    assert missing[5].startswith("look at the sensor")
    assert found.tables["drift"][2][-1] == "10 %"  # pressure was missing in 2 of 20 steps
    assert "pressure was missing in 10.0% of the steps" in found.text


def test_a_score_far_above_its_threshold_leaves_the_others_readable(tmp_path):
    """The cost-to-go is ten times the temperature and the limit 50: at a temperature of 100 it is 20 times the limit."""
    guard = Guard(ARTIFACT, 0.25, rules={"range": None}, log=tmp_path / "guard.jsonl")
    for temperature in (1.0, 2.0, 100.0):
        guard([temperature, 0.0])
    page = write_page(guard_page(guard_numbers(tmp_path / "guard.jsonl")), tmp_path / "page.html")
    (upwards,) = [r for r in objects(content(page)["figures"][0], "DataRange1d") if "end" in r]
    assert upwards["end"] == 3.0
    assert "The figure ends at 3 times a threshold; the greatest score is 20 times it" in read(page).text
    nominal = write_page(guard_page(guard_numbers(day(tmp_path / "day.jsonl"))), tmp_path / "nominal.html")
    assert "The figure ends" not in read(nominal).text


def test_columns_are_drawn_over_time_with_the_range_of_the_log(tmp_path):
    page = write_page(guard_page(guard_numbers(day(tmp_path / "guard.jsonl"))), tmp_path / "page.html")
    figures = content(page)["figures"]
    assert len(figures) == 4  # the scores, two columns, one action
    temperature = [columns(source) for source in objects(figures[1], "ColumnDataSource")]
    assert any(np.allclose(c.get("y", [])[:3], [1.0, 1.01, 1.02]) for c in temperature if len(c.get("y", ())) == 20)
    assert [line["location"] for line in objects(figures[1], "Span")] == [-10.0, 10.0]
    (box,) = objects(figures[1], "BoxAnnotation")
    assert (box["left"], box["right"]) == (11.5, 15.5)
    assert "temperature [K]" in read(page).text


def test_names_out_of_a_guards_log_are_text(tmp_path):
    artifact = replace(ARTIFACT, observation_names=(HOSTILE, "pressure"), units={})
    page = write_page(guard_page(guard_numbers(day(tmp_path / "guard.jsonl", artifact))), tmp_path / "page.html")
    assert read(page).tags.count("script") == 3
    assert HOSTILE in read(page).text


def test_the_verb_compares_with_the_policy_and_a_log_of_events_says_what_it_lacks(tmp_path, capsys):
    ARTIFACT.save(tmp_path / "policy.safetensors")
    log, out = day(tmp_path / "guard.jsonl"), tmp_path / "page.html"
    assert main(["report", str(log), "--log", str(tmp_path / "policy.safetensors"), "--out", str(out)]) == 0
    assert "mean in the log" in read(out).text
    events = day(tmp_path / "events.jsonl", record="events")
    assert (
        main(["report", str(events), "--log", str(tmp_path / "policy.safetensors"), "--out", str(out), "--overwrite"])
        == 0
    )
    assert "drift needs a guard with record='steps'" in read(out).text
    assert "recorded events alone" in read(out).text


def test_a_guards_log_without_steps_is_refused(tmp_path):
    Guard(ARTIFACT, 0.25, log=tmp_path / "guard.jsonl").close()
    with pytest.raises(InvalidSetting, match="no steps yet"):
        guard_numbers(tmp_path / "guard.jsonl")
    lines = list(read_guard_log(day(tmp_path / "guard.jsonl")))
    other = {**lines[0], "observation_names": ["a", "b"]}
    (tmp_path / "mixed.jsonl").write_text("".join(map(encode, [*lines, other])))
    with pytest.raises(InvalidSetting, match="different columns"):
        guard_numbers(tmp_path / "mixed.jsonl")
