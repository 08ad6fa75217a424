"""What is drawn and said of a run compares like with like."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from ringfence.data import episode_table
from ringfence.reports.run import _plot_beside_log, _plot_training, plot_run, print_run
from ringfence.training import Configuration, Member, Run, Schedule
from ringfence.training.configuration import LogRecord
from tests.logs import narrow_log

LOG = narrow_log(rows=600)  # episodes of 50 steps
MEMBER = Member(3, 9.0)


def run_with(evaluations=(), *, cost=20.0, horizon=LOG.horizon):
    configuration = Configuration(
        method="cpq",
        settings={"discount": 0.99, "tau": 0.02},
        members=(MEMBER,),
        schedule=Schedule(100),
        log=LogRecord("narrow", len(LOG), LOG.fingerprint, horizon),
    )
    where = {"stage": "policy", "step": 100, "overall_step": 120, "seed": 3, "limit": 9.0}
    return Run(configuration, [{**where, "qc_start": cost, "qr_start": 100.0}], [{**where, **e} for e in evaluations])


def test_beside_logged_episodes_a_critics_endless_sum_is_drawn_over_their_horizon():
    axes = Figure().subplots()
    _plot_beside_log(run_with(), LOG, axes)
    episodes, policy = (collection.get_offsets() for collection in axes.collections)
    share = 1 - 0.99**50  # of an endless sum at a steady pace, what falls into 50 steps
    assert policy.tolist() == [pytest.approx([20.0 * share, 100.0 * share])]
    np.testing.assert_allclose(episodes[:, 0], episode_table(LOG, 0.99).discounted_costs)
    assert "over 50 steps" in axes.get_xlabel()
    assert "over 50 steps" in axes.get_ylabel()


def test_the_table_says_that_expected_sums_have_no_end(tmp_path):
    console = Console(record=True, width=200, file=open(tmp_path / "out", "w"))  # noqa: SIM115
    print_run(run_with(), console)
    text = console.export_text()
    assert (
        "over an infinite horizon; over the log's horizon of 50 steps they are 0.395 times as much at a steady pace"
        in text
    )


def test_expected_sums_stand_in_the_table_over_the_logs_horizon_too():
    console = Console(record=True, width=200, file=io.StringIO())
    print_run(run_with([{**SIMULATED, "share_over_limit": 0.0, "episode_cost": 1.0}]), console)
    text = console.export_text()
    share = 1 - 0.99**50
    for heading in ("expected cost, infinite horizon", "expected cost, 50 steps", "expected return, 50 steps"):
        assert heading in text
    assert f"{20 * share:.4g}" in text
    assert f"{100 * share:.4g}" in text
    assert "simulated episodes of up to 480 steps" in text


def test_where_episodes_cover_almost_all_of_a_sum_the_table_has_it_once():
    """1,000 steps at 0.99 are all but 0.00004 of a sum over an infinite horizon."""
    console = Console(record=True, width=200, file=io.StringIO())
    print_run(run_with(horizon=1000), console)
    text = console.export_text()
    assert "expected return, infinite horizon" in text
    assert "expected cost, 1000 steps" not in text


def test_a_policy_left_of_the_limit_that_breaks_it_later_says_so_in_the_picture():
    """A sum of 20 over an infinite horizon is 7.9 over 50 steps, inside a limit of 9: the verdict is outside."""
    axes = Figure().subplots()
    _plot_beside_log(run_with(), LOG, axes)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "policy, seed 3 (expected; OUTSIDE over an infinite horizon: 20)" in labels
    assert run_with().verdict.judgement == "outside"


@pytest.mark.parametrize("cost", [8.0, 30.0])
def test_a_policy_on_one_side_of_the_limit_is_drawn_without_a_word_about_later(cost):
    """8 over an infinite horizon is inside a limit of 9 for good; 30 is 11.8 over 50 steps, to be seen outside."""
    axes = Figure().subplots()
    _plot_beside_log(run_with(cost=cost), LOG, axes)
    assert "policy, seed 3 (expected)" in [text.get_text() for text in axes.get_legend().get_texts()]


SIMULATED = {"return": 5.0, "return_std": 1.0, "discounted_cost": 3.0, "discounted_cost_std": 1.0, "length": 480.0}


def test_curves_of_a_simulation_say_how_long_its_episodes_are():
    axes = Figure().subplots()
    _plot_training(run_with([{**SIMULATED, "share_over_limit": 0.0}]), axes, "discounted_cost")
    assert axes.get_title() == "discounted cost, simulated episodes of up to 480 steps"
    assert [line.get_ydata()[0] for line in axes.lines] == [3.0, 9.0]  # the cost, and the limit


@pytest.mark.parametrize("evaluations", [1, 2])
def test_a_single_evaluation_is_drawn_as_a_point(evaluations):
    """A line through one point has no length."""
    rows = [{**SIMULATED, "share_over_limit": 0.0, "step": 100 * (1 + i)} for i in range(evaluations)]
    axes = Figure().subplots()
    _plot_training(run_with(rows), axes, "return")
    assert axes.lines[0].get_marker() == ("o" if evaluations == 1 else "None")


def test_the_picture_is_written_whole(tmp_path):
    path = plot_run(run_with([{**SIMULATED, "share_over_limit": 0.0}]), LOG, tmp_path / "result.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["result.png"]
