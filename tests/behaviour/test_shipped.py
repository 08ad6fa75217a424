"""The policies in the package are the ones the docs and results speak of."""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from ringfence import tasks
from ringfence.behaviour.shipped import BEHAVIOURS, shipped_policy
from ringfence.data.dataset import Dataset
from ringfence.errors import UnknownName
from ringfence.evaluation import evaluate
from ringfence.reports.behaviour import episode_points, markdown_table, plot_dataset

RESULTS = Path(__file__).parents[2] / "results" / "behaviour"
ALL = [(task, behaviour) for task in tasks.ROBOTS for behaviour in BEHAVIOURS]


@pytest.mark.parametrize(("task", "behaviour"), ALL)
def test_a_shipped_policy_says_how_it_was_made_and_is_the_one_that_was_measured(task, behaviour):
    policy = shipped_policy(task, behaviour)
    assert policy.metadata["task"] == task
    assert policy.metadata["method"] == {"unsafe": "ppo", "safe": "cpo"}[behaviour]
    assert policy.metadata["limit"] == 30.0
    np.testing.assert_allclose(np.exp(policy.tensors["log_std"]), policy.metadata["std"], rtol=1e-5)
    measured = json.loads((RESULTS / f"{task}-{behaviour}.json").read_text())
    assert measured["sha256"] == policy.checksum
    assert measured["sampled"]["episodes"] == 100


@pytest.mark.parametrize("task", tasks.ROBOTS)
def test_the_unsafe_policy_is_over_the_limit_and_earns_more_than_the_safe_one_inside_it(task):
    unsafe, safe = (json.loads((RESULTS / f"{task}-{b}.json").read_text())["sampled"]["summary"] for b in BEHAVIOURS)
    assert unsafe["discounted cost"]["mean"] > 30 >= safe["discounted cost"]["mean"]
    assert unsafe["return"]["mean"] > safe["return"]["mean"]


def test_the_shipped_policies_are_small():
    folder = files("ringfence.behaviour") / "policies"
    assert sum(len(file.read_bytes()) for file in folder.iterdir()) < 1_000_000


def test_the_docs_show_the_measured_table():
    docs = (RESULTS.parents[1] / "docs" / "behaviour.md").read_text()
    table = (RESULTS / "table.md").read_text().strip()
    assert table in docs
    rows = [json.loads((RESULTS / f"{task}-{behaviour}.json").read_text()) for task, behaviour in ALL]
    assert markdown_table(rows) == table


@pytest.mark.slow
@pytest.mark.parametrize(("task", "behaviour"), ALL)
def test_fresh_episodes_agree_with_the_measured_ones(task, behaviour):
    measured = json.loads((RESULTS / f"{task}-{behaviour}.json").read_text())["sampled"]["summary"]["discounted cost"]
    fresh = evaluate(shipped_policy(task, behaviour), task, episodes=5, seed=77, deterministic=False)
    # Five episodes: their mean lies within three standard errors, and another processor may round differently.
    assert abs(fresh.discounted_costs.mean() - measured["mean"]) < 3 * measured["std"] / 5**0.5 + 0.3


def test_an_unknown_policy_lists_those_there_are():
    with pytest.raises(UnknownName, match="unsafe and safe for hopper-torque"):
        shipped_policy("ant-torque", "safe")
    with pytest.raises(UnknownName, match="unsafe and safe"):
        shipped_policy("hopper-torque", "medium")


def small_log():
    """Source a: an episode of 2 steps that terminates, one of 3 (the horizon). Source b: one cut off after 1."""
    ends = np.array([0, 1, 0, 0, 1, 1], bool)
    return Dataset.from_arrays(
        observations=np.zeros((6, 1)),
        next_observations=np.zeros((6, 1)),
        actions=np.zeros((6, 1)),
        rewards=[1, 2, 3, 4, 5, 6],
        costs=[1, 1, 0, 2, 0, 9],
        terminations=ends & (np.arange(6) == 1),
        truncations=ends & (np.arange(6) > 1),
        source=[0, 0, 0, 0, 0, 1],
        source_names=("a", "b"),
        metadata={"horizon": 3, "limit": 1.2, "discount": 0.5},
    )


def test_the_picture_shows_whole_episodes_by_source(tmp_path):
    points = episode_points(small_log(), 0.5)
    np.testing.assert_allclose(points["a"], [[1 + 0.5, 3], [0.5 * 2, 12]])
    assert len(points["b"]) == 0
    plot_dataset(small_log(), tmp_path / "log.png")
    assert (tmp_path / "log.png").read_bytes().startswith(b"\x89PNG")
