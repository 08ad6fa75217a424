"""What a log is said to contain, and what the user is warned of."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from ringfence.data import Dataset, summarise
from ringfence.errors import InvalidSetting, WouldOverwrite
from ringfence.limits import Limit
from ringfence.reports.log import plot_summary, print_summary
from tests.data.example_logs import columns, full_dataset


def constant_cost_log(costs=(1.0, 2.0, 3.0, 4.0), steps=10, **changes):
    """One episode per entry, with that cost in every step; walks through distinct states; rewards of 1."""
    rows = len(costs) * steps
    path = np.random.default_rng(0).normal(size=(rows + 1, 2))
    log = {
        "observations": path[:-1],
        "next_observations": path[1:],
        "actions": np.random.default_rng(1).uniform(-0.9, 0.9, (rows, 1)),
        "rewards": np.ones(rows),
        "costs": np.repeat(costs, steps),
        "terminations": np.arange(rows) % steps == steps - 1,
        "truncations": np.zeros(rows, bool),
    }
    return Dataset.from_arrays(**log | changes)


def warnings_of(dataset, limit=None, discount=0.99):
    return "\n".join(summarise(dataset, discount, limit).warnings)


def test_sums_over_episodes_are_what_arithmetic_says():
    summary = summarise(constant_cost_log(), 0.9)
    steps = (1 - 0.9**10) / (1 - 0.9)  # the discounted length of ten steps
    assert summary.all_episodes.costs.mean == pytest.approx(10 * 2.5)
    assert summary.all_episodes.costs.median == pytest.approx(25)
    assert summary.all_episodes.discounted_costs.min == pytest.approx(steps, rel=1e-6)
    assert summary.all_episodes.discounted_costs.max == pytest.approx(4 * steps, rel=1e-6)
    assert summary.all_episodes.discounted_returns.mean == pytest.approx(steps, rel=1e-6)
    assert summary.all_episodes.lengths.std == 0
    assert (summary.episodes, summary.terminated, summary.truncated, summary.unfinished) == (4, 4, 0, 0)


def test_episodes_that_are_too_short_for_the_discounted_sum_are_warned_of_with_the_share_that_they_cover():
    """Fifty steps have 1 + 0.99 + ... + 0.99^49 of the 100 of a sum without an end."""
    cut = {"terminations": np.zeros(200, bool), "truncations": np.arange(200) % 50 == 49}
    share = sum(0.99**t for t in range(50)) / 100
    assert f"covers {share:.0%} of a discounted sum" in warnings_of(constant_cost_log(steps=50, **cut))
    assert "of a discounted sum" not in warnings_of(constant_cost_log(steps=50))


def test_ends_are_counted_by_kind():
    summary = summarise(Dataset.from_arrays(**columns(35)))
    assert (summary.terminated, summary.truncated, summary.unfinished) == (2, 1, 1)


def test_the_limit_divides_the_episodes():
    steps = (1 - 0.9**10) / (1 - 0.9)
    summary = summarise(constant_cost_log(), 0.9, Limit.of(2.5, "step", discount=0.9, horizon=10))
    assert summary.limit.discounted == pytest.approx(2.5 * steps)
    assert summary.limit.per_episode == pytest.approx(25)
    assert (summary.limit.episodes_inside, summary.limit.share_of_episodes_inside) == (2, 0.5)
    assert summary.limit.inside.costs.max == pytest.approx(20)
    assert summary.limit.outside.costs.min == pytest.approx(30)


def test_a_limit_at_another_discount_is_refused():
    with pytest.raises(InvalidSetting, match=r"0\.9"):
        summarise(constant_cost_log(), 0.99, Limit(1.0, discount=0.9))


def test_sources_are_summed_apart():
    log = constant_cost_log(source=np.repeat(["a", "b"], 20))
    a, b = summarise(log).sources
    assert (a.name, a.episodes, a.costs.mean) == ("a", 2, pytest.approx(15))
    assert (b.name, b.episodes, b.costs.mean) == ("b", 2, pytest.approx(35))


def test_a_summary_is_plain_json():
    text = json.dumps(summarise(full_dataset(), 0.99, Limit(3.0)).to_dict(), allow_nan=False)
    assert json.loads(text)["limit"]["per_episode"] is None


def test_a_limit_below_every_logged_cost_is_warned_of_with_the_least_cost():
    least = summarise(constant_cost_log()).all_episodes.discounted_costs.min
    text = warnings_of(constant_cost_log(), Limit(1.0))
    assert "no episode stays inside the limit of 1 " in text
    assert f"{least:.4g}" in text


def test_a_limit_that_does_nothing_is_warned_of():
    assert "the limit does nothing" in warnings_of(constant_cost_log(), Limit(1e6))


def test_a_limit_that_few_keep_is_warned_of():
    assert "only 1 of 30 episodes" in warnings_of(constant_cost_log([0.1] + [1] * 29), Limit(2.0))


def walk(rows, rng):
    path = rng.normal(size=(rows + 1, 2))
    return {"observations": path[:-1], "next_observations": path[1:]}


CASES = {
    "every cost is 0": {"costs": np.zeros(40)},
    "5 rewards are negative (the least is -2)": {"rewards": np.r_[np.full(5, -2.0), np.ones(35)]},
    "the rewards are very large (their mean size is 1e+09)": {"rewards": np.full(40, 1e9)},
    "the costs are very small (their mean size is 2e-06)": {"costs": np.full(40, 2e-6)},
    "only 4 episodes": {},
    "the last episode (5 rows) is unfinished": {"terminations": np.arange(40) % 10 == 4},
    "all rows come from one source ('ppo')": {"source": ["ppo"] * 40},
    "never change: obs_1": {
        "observations": np.column_stack([np.arange(40), np.ones(40)]),
        "next_observations": np.column_stack([np.arange(1, 41), np.ones(40)]),
    },
    "observation obs_1 lies between 1.7e+09 and 1.7000399e+09": {
        "observations": np.column_stack([np.arange(40), 1.7e9 + np.arange(40) * 1024]),
        "next_observations": np.column_stack([np.arange(1, 41), 1.7e9 + np.arange(1, 41) * 1024]),
    },
    "lie at their bounds": {"actions": np.sign(np.random.default_rng(0).normal(size=(40, 1)))},
    "repeat an earlier row": {
        "observations": np.tile(np.arange(20.0), 2)[:, None],
        "next_observations": np.tile(np.arange(1, 21.0), 2)[:, None],
        "actions": np.tile(np.linspace(-0.5, 0.5, 20), 2)[:, None],
    },
    "the rows may be shuffled": walk(40, np.random.default_rng(5)) | {"next_observations": np.zeros((40, 2))},
    "the last 6 rows are 0 in every column": {
        name: np.r_[np.full((34, *shape), 0.5), np.zeros((6, *shape))]
        for name, shape in {"observations": (2,), "actions": (1,), "rewards": ()}.items()
    }
    | {"costs": (1, 1, 1, 0)},
    "longest has 10 steps": {"terminations": np.zeros(40), "truncations": np.arange(40) % 10 == 9},
}


@pytest.mark.parametrize("text", CASES)
def test_what_is_odd_about_a_log_is_said(text):
    assert text in warnings_of(constant_cost_log(**CASES[text]))


def ended(episodes, terminated, steps=10):
    """Ends of so many episodes, of which the first ones terminate and the others are truncated."""
    last, early = np.arange(episodes * steps) % steps == steps - 1, np.arange(episodes * steps) < terminated * steps
    return {"terminations": last & early, "truncations": last & ~early}


def test_nothing_is_said_of_a_log_without_oddities():
    assert warnings_of(constant_cost_log(np.linspace(0, 2, 30), **ended(30, 14)), Limit(10.0)) == ""


def test_where_most_episodes_terminate_the_user_is_asked_what_that_means():
    found = summarise(constant_cost_log(np.linspace(0, 2, 30), **ended(30, 15)), 0.99, Limit(10.0))
    assert "50% of the episodes terminate" in "\n".join(found.warnings)


def test_a_deterministic_controller_is_recognised_and_a_noisy_one_is_not():
    rng = np.random.default_rng(0)
    rows = 8_000
    states = walk(rows, rng)
    actions = np.tanh(states["observations"] @ np.array([[0.5], [-1.0]])) * 0.8
    ends = {"terminations": np.arange(rows) % 100 == 99, "rewards": np.ones(rows), "costs": np.ones(rows)}
    text = "as if one policy had chosen them"
    assert text in warnings_of(Dataset.from_arrays(**states, **ends, actions=actions))
    noisy = np.clip(actions + rng.normal(0, 0.3, actions.shape), -1, 1)
    assert text not in warnings_of(Dataset.from_arrays(**states, **ends, actions=noisy))


def test_the_printed_summary_shows_the_limit_and_survives_odd_names():
    console = Console(file=io.StringIO(), width=120)
    dataset = constant_cost_log(name="[bold]odd[/x]", source=["[a]"] * 20 + ["b"] * 20)
    print_summary(summarise(dataset, 0.99, Limit(15.0)), console)
    text = console.file.getvalue()
    assert "[bold]odd[/x]: 40 rows" in text
    assert "[a]" in text
    assert "kept by 1 of 4 episodes (25.0%)" in text
    assert "0.15 per step" in text


def test_each_column_is_printed_with_its_name_unit_and_range():
    log = constant_cost_log(observation_names=("Tc [K]", "flow"), action_names=("valve",), units={"Tc [K]": "K"})
    console = Console(file=io.StringIO(), width=120)
    print_summary(summarise(log), console)
    rows = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in console.file.getvalue().splitlines()]
    for index, (name, unit) in enumerate([("Tc [K]", "K"), ("flow", "")]):
        values = log.observations[:, index]
        assert ["observations", name, unit, f"{values.min():.4g}", f"{values.max():.4g}"] in rows
    assert ["actions", "valve", "", f"{log.actions.min():.4g}", f"{log.actions.max():.4g}"] in rows
    assert ["action bounds", "valve", "", "-1", "1"] in rows


def test_of_very_many_columns_the_first_are_printed():
    rows = 10
    path = np.random.default_rng(0).normal(size=(rows + 1, 50))
    log = constant_cost_log((1.0,), observations=path[:-1], next_observations=path[1:])
    console = Console(file=io.StringIO(), width=120)
    print_summary(summarise(log), console)
    text = console.file.getvalue()
    assert "obs_39" in text
    assert "obs_40" not in text
    assert "and 10 more" in text


@pytest.mark.parametrize("dataset", [full_dataset(), constant_cost_log()], ids=["sources", "plain"])
def test_the_figure_is_written_once(tmp_path, dataset):
    path = tmp_path / "log.png"
    plot_summary(dataset, path, 0.99, Limit(15.0))
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(WouldOverwrite):
        plot_summary(dataset, path)
    plot_summary(dataset, path, overwrite=True)


def test_the_picture_names_the_log_and_its_sources_as_the_user_does(tmp_path):
    log = constant_cost_log(source=["_auto"] * 20 + ["pays $x_$"] * 20, name="from $5 to $9")
    plot_summary(log, tmp_path / "log.svg")
    drawn = (tmp_path / "log.svg").read_text()
    for text in ("_auto (2)", "pays $x_$ (2)", "from $5 to $9: what each episode earned and cost"):
        assert f"{text} -->" in drawn  # above the outlines of a text stands the text
