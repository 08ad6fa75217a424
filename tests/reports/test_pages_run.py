"""The page of a run: the verdict first, one horizon, where the policy differs, and the command that makes it again."""

import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest

import ringfence
from ringfence.cli import build_parser, main
from ringfence.cli.options import parse_columns
from ringfence.data import Dataset, save
from ringfence.deploy import Policy
from ringfence.reports.html import compare_runs
from ringfence.reports.html.again import command_of, reading_words
from ringfence.reports.html.change_parts import _largest, in_words
from ringfence.reports.html.differences import differences, profile
from ringfence.reports.html.render import write_page
from ringfence.reports.html.run_page import run_page
from ringfence.training import Configuration, Member, Run, Schedule
from ringfence.training.configuration import LogRecord
from tests.logs import narrow_log
from tests.reports.pages import content, objects, read

SMALL = {"hidden": (8,), "batch_size": 16, "cvae_steps": 10, "ood_samples": 2}
LOG = replace(
    narrow_log(rows=1000, with_source=True), observation_names=("heat [K]", "flow", "load"), units={"flow": "l/s"}
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "mine"
    method = ringfence.CPQ(limit=9.0, **SMALL)
    return ringfence.train(LOG, method, steps=20, log_every=5, out=out, holdout=0.4, progress=False)


@pytest.fixture(scope="module")
def page(run):
    return write_page(run_page(Run.load(run.path), LOG), run.path / "page.html")


def test_the_verdict_comes_first_with_its_interval_and_reason(run, page):
    text = read(page).text
    judgement = run.judgements[0]
    said = [text.index(words) for words in (run.verdict.words, judgement.reason, "What it earns and what it costs")]
    assert said == sorted(said)
    assert f"Verdict of training: {run.verdict.judgement}" in text
    assert f"Judged by episodes set aside: {judgement.verdict}" in text
    assert f"between {judgement.cost.lower:.4g} and {judgement.cost.upper:.4g}" in text
    assert judgement.advice in text


def test_policy_and_sources_stand_on_the_same_horizon(run, page):
    rows = {(row[0], row[1].split(",")[0]): row for row in read(page).tables["expectations"][1:]}
    share = 1 - 0.99**50  # of an endless sum at a steady pace
    assert float(rows["policy", "the critics"][5]) == pytest.approx(share * run.metrics[-1]["qc_start"], rel=1e-3)
    assert float(rows["policy", "episodes set aside"][6]) == pytest.approx(run.judgements[0].cost.upper, rel=1e-3)
    half = slice(0, 500)  # what the first source wrote: ten episodes of 50 steps
    discounted = (0.99 ** np.arange(50) * LOG.costs[half].reshape(10, 50)).sum(1).mean()
    assert float(rows["gentle", "in the log"][5]) == pytest.approx(discounted, rel=1e-3)


def simulated_run(run, cost=12.0, **simulated):
    last = {**run.metrics[-1], "qc_start": cost, "qr_start": 60.0}
    where = {name: last[name] for name in ("stage", "step", "overall_step", "seed", "limit")}
    row = {**where, "length": 400.0, "return": 500.0, "return_std": 1.0, "discounted_return": 90.0,
           "discounted_cost": 33.0, "discounted_cost_std": 2.0, "share_over_limit": 1.0, **simulated}  # fmt: skip
    return Run(run.configuration, [*run.metrics[:-1], last], [row], artifacts=run.artifacts)


def test_a_longer_simulation_stands_beside_the_log_over_as_many_steps(run, tmp_path):
    first = {"first_steps": 50, "first_discounted_return": 40.0, "first_discounted_cost": 11.0}
    made = simulated_run(run, **first, first_share_over_limit=0.5)
    page = read(write_page(run_page(made, LOG), tmp_path / "page.html"))
    (row,) = [row for row in page.tables["expectations"] if row[1].startswith("simulation")]
    assert (row[1], row[3], row[5], row[7]) == ("simulation, the first 50 of 400 steps", "40", "11", "50 %")
    assert "of 400 steps on average" in page.text


def test_the_page_says_over_how_many_steps_its_numbers_are(run, page):
    found = read(page)
    share = f"{1 - 0.99**50:.3g}"
    endless = f"The critics' sum over an infinite horizon; over 50 steps it is {share} times as much at a steady pace."
    assert found.text.count(endless) == 2  # the cost and the return over training
    axes = [label["text"] for label in objects(content(page), "PlainText")]
    assert "discounted cost over 50 steps" in axes
    assert "discounted return over 50 steps" in axes


@pytest.mark.parametrize(("cost", "later"), [(12.0, True), (8.0, False), (30.0, False)])
def test_a_policy_left_of_the_limit_that_breaks_it_later_says_so_on_the_page(run, cost, later, tmp_path):
    """The limit is 9. A sum of 12 over an infinite horizon is 4.7 over 50 steps; 8 stays inside, 30 is 11.8, outside."""
    text = read(write_page(run_page(simulated_run(run, cost), LOG), tmp_path / "page.html")).text
    assert ("by the critics outside it over an infinite horizon: policy costs 12" in text) is later
    assert ("outside it over an infinite horizon" in text) is later


def test_learning_and_health_are_drawn_with_names_and_the_limit(run, page):
    text = read(page).text
    for title in (
        "Cost that the critic expects",
        "Actions that count as safe",
        "(alpha)",
        "(KL)",
        "Cost: critic against what followed",
    ):
        assert title in text
    limits = [line["location"] for line in objects(content(page), "Span")]
    assert limits == [9.0, 9.0]  # beside the log, and over training
    for warning in run.warnings:
        assert warning["text"] in text


def test_curves_begin_at_step_0_and_the_indicator_is_drawn_from_0_to_1(page):
    ranges = [list(objects(figure, "DataRange1d")) for figure in content(page)["figures"]]
    assert sum(any(r.get("start") == 0 for r in pair) for pair in ranges) >= 6
    assert sum(any((r.get("start"), r.get("end")) == (-0.02, 1.02) for r in pair) for pair in ranges) == 1


@pytest.mark.parametrize(("judged", "differ"), [("inside", True), ("outside", False), ("cannot tell", False)])
def test_when_critic_and_judgement_differ_the_page_says_what_to_make_of_it(run, judged, differ, tmp_path):
    """The critic expects 12 of a limit of 9."""
    last = {**run.metrics[-1], "qc_start": 12.0}
    judgement = replace(run.judgements[0], verdict=judged)
    other = Run(run.configuration, [*run.metrics[:-1], last], artifacts=run.artifacts)
    other.judgements = [judgement]
    assert other.verdict.judgement == "outside"
    text = read(write_page(run_page(other, LOG), tmp_path / "page.html")).text
    assert ("plan for the worse of the two" in text) == differ


@pytest.mark.parametrize("seeds", [2, 4])
def test_several_policies_have_a_table_of_verdicts_and_of_many_the_page_counts(seeds, tmp_path):
    members = tuple(Member(seed, 9.0) for seed in range(seeds))
    where = {"stage": "policy", "step": 20_000, "overall_step": 20_000, "limit": 9.0, "qr_start": 50.0}
    rows = [
        {**where, "seed": seed, "qc_start": 8.0 + 2 * (seed == 1)} for seed in range(seeds)
    ]  # the second is outside
    settings = {"discount": 0.99, "tau": 0.02}
    log = LogRecord("narrow", len(LOG), LOG.fingerprint, LOG.horizon)
    simulated = {"length": 400.0, "return": 500.0, "return_std": 1.0, "discounted_return": 90.0, "share_over_limit": 1.0,
                 "discounted_cost": 10.0, "discounted_cost_std": 2.0}  # fmt: skip
    several = Run(
        Configuration("cpq", settings, members, Schedule(20_000), log),
        rows,
        [{**where, "seed": 1, **simulated}],
        artifacts=[shifted_policy(LOG, np.array([0.1 * seed, 0.0])) for seed in range(seeds)],
    )
    page = write_page(run_page(several, LOG), tmp_path / "page.html")
    found = read(page)
    assert [row[:3] for row in found.tables["verdicts"][1:3]] == [["0", "9", "inside"], ["1", "9", "outside"]]
    by = [row[4] for row in found.tables["verdicts"][1:3]]
    assert by == ["cost critic, over an infinite horizon", "simulation, to the end of its episodes"]
    assert (f"{seeds - 1} of {seeds} policies inside the limit" in found.text) == (seeds == 4)
    assert ("Seed 1, verdict of training: outside" in found.text) == (seeds == 2)
    assert "seed 1: action_0" in found.text  # a choice for each policy and action
    assert len(content(page)["variants"]) == 2 * seeds


# Where it differs


def shifted_policy(log, shift):
    """A policy that always sends the middle of the range plus `shift`, in the user's units."""
    half = (log.action_high - log.action_low) / 2
    bias = np.concatenate([np.arctanh(shift / half), np.zeros(len(half))])
    tensors = {"actor.0.weight": np.zeros((log.observations.shape[1], len(bias))), "actor.0.bias": bias}
    zeros, ones = np.zeros(log.observations.shape[1]), np.ones(log.observations.shape[1])
    return Policy.from_tensors("tanh-gaussian", tensors, zeros, ones, log.action_low, log.action_high).artifact


def two_column_log():
    """An action that follows the first observation, and costs nothing to foresee: action = observation."""
    observations = np.stack([np.linspace(-1, 1, 100), np.ones(100)], 1)
    return Dataset.from_arrays(
        observations=observations, actions=observations[:, :1], rewards=np.zeros(100), costs=np.zeros(100),
        episode=np.arange(100) // 20, next_observations=observations, action_low=[-1.0], action_high=[1.0],
    )  # fmt: skip


def test_changes_are_those_between_the_logged_action_and_the_policys():
    log = two_column_log()
    found = differences(log, shifted_policy(log, np.array([0.5])))
    (action,) = found.actions
    change = 0.5 - log.actions[:, 0]
    assert (action.logged, action.policy) == (pytest.approx(0.0, abs=1e-6), pytest.approx(0.5, abs=1e-6))
    assert action.size == pytest.approx(np.abs(change).mean(), rel=1e-5)
    assert action.relative == pytest.approx(np.abs(change).mean() / 2, rel=1e-5)
    assert action.notable == pytest.approx(np.mean(np.abs(change) > 0.2))
    first, second = found.profiles
    assert first.telling > 0.4  # of an action that is the first observation
    assert second.telling == 0.0  # which says nothing
    assert [(row.row, row.episode, row.step) for row in found.largest[:3]] == [(0, 0, 0), (1, 0, 1), (20, 1, 0)]
    assert found.foreign is None  # it has no detector


def test_a_profile_has_the_mean_of_every_bin():
    values = np.repeat([1.0, 2.0, 3.0], 10)
    logged = np.concatenate([np.full(10, 5.0), np.arange(10.0), np.zeros(10)])
    found = profile(values, logged, 2 * values, 0, 0)
    assert found.at.tolist() == [1, 2, 3]
    assert found.logged.tolist() == [5, 4.5, 0]
    assert found.policy.tolist() == [2, 4, 6]
    np.testing.assert_allclose(found.low, [5, 0.9, 0])  # the 10 % quantile of 0, ..., 9


def test_the_page_shows_changes_by_name_and_unit_and_switches_between_actions(page):
    found, data = read(page), content(page)
    assert "against flow [l/s]" in found.text
    assert [row[0] for row in found.tables["changes"][1:]] == ["action_0", "action_1"]
    assert len(found.tables["largest"]) == 13
    assert [variant["labels"]["action-axis"] for variant in data["variants"]] == ["action_0", "action_1"]
    assert set(data["variants"][0]["sources"]) == {"profile-0", "profile-1", "profile-2"}


def test_of_many_observations_a_changed_row_shows_those_that_matter_with_units_and_says_so():
    """Ten columns that never change, and last the one that the logged action follows."""
    values = np.linspace(-1, 1, 100)[:, None]
    observations = np.hstack([np.ones((100, 10)), values])
    log = Dataset.from_arrays(
        observations=observations, actions=values, rewards=np.zeros(100), costs=np.zeros(100),
        episode=np.arange(100) // 20, next_observations=observations, action_low=[-1.0], action_high=[1.0],
        observation_names=[f"still {i}" for i in range(10)] + ["flow"], action_names=["valve"],
        units={"flow": "l/s", "valve": "mm"},
    )  # fmt: skip
    found = differences(log, shifted_policy(log, np.array([0.5])))
    table = _largest(found, log)
    assert "flow [l/s]" in table.headings
    assert sum(heading.startswith("still") for heading in table.headings) == 9
    assert {"valve [mm], logged", "valve [mm], policy"} <= set(table.headings)
    assert "Of the observations the 10 on which the change depends most; 1 more are left out." in table.caption
    assert "The change goes most with flow [l/s]:" in in_words(found, log)[0]


def test_without_its_log_the_page_says_so_and_shows_the_rest(run):
    text = read(write_page(run_page(Run.load(run.path), None, "it was in memory"), run.path / "without.html")).text
    assert "cannot be compared with it: it was in memory" in text
    assert run.verdict.words in text
    assert "Where it acts unlike" not in text


# The command that makes it again


def test_a_run_of_several_computations_names_each_of_them(run, tmp_path):
    loaded = Run.load(run.path)
    (first,) = loaded.configuration.computed_by
    name, value = next(iter(first.items()))
    several = first, {**first, name: "another"}, first
    changed = Run(replace(loaded.configuration, computed_by=several), path=loaded.path)
    text = read(write_page(run_page(changed, LOG), tmp_path / "page.html")).text
    assert f"{value}, then another, then {value}" in text
    assert text.count(", then another") == 1


def configuration(**changes):
    given = {
        "method": "cpq",
        "settings": {**ringfence.CPQ().__dict__, "hidden": [64, 64], "anchor": 2.0, "discount": 0.95},
        "members": (Member(3, 9.5), Member(4, 9.5)),
        "schedule": Schedule(700, log_every=50),
        "log": LogRecord(
            "plant", 10, "f", 5, {"source": "my plant.csv", "options": {"csv_delimiter": ";", "action_low": [-2.0]}}
        ),
        "extras": {"task": "hopper-torque", "cost": None, "episodes": 4, "tensorboard": True, "holdout": 0.25}
        | {"keep_every": 200},
    }
    return Configuration(**{**given, **changes})


def test_the_command_asks_for_the_same_run():
    command = shlex.split(command_of(configuration()))
    options = vars(build_parser().parse_args(command[1:]))
    assert command[:3] == ["ringfence", "train", "my plant.csv"]
    expected = {
        "limit": 9.5, "method": "cpq", "steps": 700, "seeds": [3, 4], "discount": 0.95,
        "set": ["hidden=[64, 64]", "anchor=2.0"],
        "task": "hopper-torque", "episodes": 4, "log_every": 50, "keep_every": 200, "holdout": 0.25,
        "tensorboard": True, "csv_delimiter": ";",
        "action_low": [-2.0],
    }  # fmt: skip
    assert {name: options[name] for name in expected} == expected
    assert "evaluate_every" not in options  # the defaults are left out


def test_columns_of_ones_own_are_named_again():
    from dataclasses import asdict

    mapping = parse_columns(["rewards=profit", 'observations=speed,"angle, ""left"""', "costs="])
    words = reading_words({"columns": asdict(mapping)})
    assert words[0] == "--columns"
    assert parse_columns(words[1:]) == mapping


def test_several_limits_in_one_run_are_for_python():
    assert command_of(configuration(members=(Member(0, 1.0), Member(0, 2.0)))) is None


# The command line


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the command line, beside its log."""
    folder = tmp_path_factory.mktemp("trained")
    save(LOG, folder / "log.parquet")
    words = ["train", str(folder / "log.parquet"), "--limit", "9", "--method", "bc", "--steps", "5", "--holdout", "0"]
    assert main([*words, "--out", str(folder / "run"), "--set", "hidden=[8]", "batch_size=16"]) == 0
    return folder


def test_train_leaves_a_page_and_report_makes_it_again(trained, tmp_path):
    page, log = trained / "run" / "report.html", trained / "log.parquet"
    found = read(page).text
    assert f"ringfence train {log} --limit 9.0 --method bc --steps 5" in found
    assert "Where it acts unlike the operators" in found
    log.rename(tmp_path / "moved.parquet")
    assert main(["report", str(trained / "run")]) == 0
    assert "cannot be compared with it" in read(page).text
    assert main(["report", str(trained / "run"), "--log", str(tmp_path / "moved.parquet")]) == 0
    assert "Where it acts unlike the operators" in read(page).text
    (tmp_path / "moved.parquet").rename(log)


def test_a_limit_on_a_page_of_runs_is_converted_at_the_discount_of_the_runs(trained, tmp_path, monkeypatch):
    """0.3 a step over the log's 50 steps, at 0.9: 0.3 (1 - 0.9^50) / 0.1."""
    words = ["--method", "bc", "--limit", "3", "--steps", "2", "--set", "hidden=[4]", "discount=0.9"]
    for name in ("one", "two"):
        assert main(["train", str(trained / "log.parquet"), *words, "--out", str(tmp_path / name)]) == 0
    limits = []
    numbers = compare_runs.runs_numbers
    monkeypatch.setattr(
        compare_runs,
        "runs_numbers",
        lambda paths, log, limit, why: (limits.append(limit), numbers(paths, log, limit))[1],
    )
    paths = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert main(["report", *paths, "--limit", "0.3", "--limit-kind", "step", "--out", str(tmp_path / "page.html")]) == 0
    assert limits == [pytest.approx(0.3 * (1 - 0.9**50) / 0.1)]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--discount", "0.5"], "--discount: a page of a run has no use for it"),
        (["--limit", "3"], "has a limit of its own"),
        (["--limit-kind", "step"], "give the --limit too"),
        (["--csv-decimal", ","], "--csv-decimal: only for a LOG that is named"),
    ],
)
def test_a_page_of_a_run_refuses_what_it_cannot_honour(trained, capsys, words, named):
    assert main(["report", str(trained / "run"), *words]) == 2
    assert named in capsys.readouterr().err


def test_without_bokeh_training_succeeds_and_says_so_in_a_line(trained, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "bokeh"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bokeh", None)
    (trained / "run" / "report.html").unlink()
    assert main(["train", "--resume", str(trained / "run")]) == 0
    assert "note: no page was written: a page needs Bokeh: pip install bokeh\n" in capsys.readouterr().err
    assert not (trained / "run" / "report.html").exists()
    assert main(["report", str(trained / "log.parquet")]) == 2
