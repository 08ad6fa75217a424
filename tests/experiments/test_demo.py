"""What the demonstration says of its own numbers."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ringfence import CPQ
from ringfence.data import Dataset, save
from ringfence.errors import WouldOverwrite
from ringfence.evaluation import Evaluation
from ringfence.experiments.demo import DISCOUNT, FULL, QUICK, alike, run_demo
from ringfence.reports.demo import CLONE, OURS, PACED, conclusions, print_comparison, steady_costs
from tests.logs import narrow_log

ROOT = Path(__file__).parents[2]


def evaluation(earned, discounted, cost):
    """One episode of 1000 steps."""
    return Evaluation("task", *(np.array([x]) for x in (earned, earned, cost, discounted, 1000)), 30.0, 0.99)


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((1200.0, 29.0, 290.0), "limit 30: CPQ keeps it (29.0), and earns 1.20 times what cloning earns."),
        ((900.0, 29.0, 310.0), "0.310 a step over the whole episode, more than the limit's pace of 0.300"),
        ((1200.0, 31.0, 290.0), "limit 30: CPQ does not keep it (31.0)."),
    ],
)
def test_the_demo_says_of_each_limit_whether_it_was_kept_and_what_was_earned(ours, said):
    clone = evaluation(1000.0, 25.0, 250.0)
    for name in (OURS, PACED):
        (sentence,) = conclusions([("unsafe", None, clone), (CLONE, 30.0, clone), (name, 30.0, evaluation(*ours))])
        assert said.replace("CPQ", name) in sentence


def test_a_steady_cost_is_what_it_adds_up_to():
    """0.25 a step at a discount of 0.99 is 25, however long the episode is."""
    two = Evaluation(
        "task", *(np.ones(2) for _ in range(2)), np.array([250.0, 100.0]), np.ones(2), np.array([1000, 400]), 30.0, 0.99
    )
    np.testing.assert_allclose(steady_costs(two), [25.0, 25.0])


def test_the_table_says_over_how_many_steps():
    console = Console(file=StringIO(), width=200)
    two = Evaluation("task", *(np.array([1.0, 2.0]) for _ in range(4)), np.array([700, 1000]), 30.0, 0.99)
    print_comparison([("unsafe", None, two), (CLONE, 30.0, two), (OURS, 30.0, two)], console)
    assert "task: means of 2 episodes of up to 1000 steps" in console.file.getvalue()


def test_limits_that_admit_the_same_episodes_share_a_clone():
    """The sources cost 35 and 55 an episode: 40 and 50 admit the first, 60 admits both."""
    length, costs = 4, np.array([35.0, 55.0])
    steps = np.zeros((2, length))
    steps[:, 0] = costs
    log = Dataset.from_arrays(
        observations=np.arange(2.0 * length)[:, None],
        actions=np.linspace(-1, 1, 2 * length)[:, None],
        rewards=np.zeros(2 * length),
        costs=steps.ravel(),
        episode=np.repeat([0, 1], length),
        source=np.repeat([0, 1], length),
        source_names=("safe", "unsafe"),
    )
    assert alike(log, (40.0, 50.0, 60.0)) == [(40.0, 50.0), (60.0,)]


def test_the_demo_is_as_long_as_that_of_the_results():
    """15,000 steps: 3 / (0.02 x 0.01), what the critics need, and so what its own verdict asks for."""
    shown = json.loads((ROOT / "results" / "demo" / "results.json").read_text())
    assert shown["scale"] == vars(FULL)
    assert FULL.steps == round(3 / (CPQ().tau * (1 - DISCOUNT)))


def test_a_quick_demo_is_not_taken_for_the_beginning_of_a_full_one(tmp_path, monkeypatch):
    monkeypatch.setattr("ringfence.experiments.demo.learn", lambda *_, **__: pytest.fail("it goes on with it"))
    save(narrow_log(rows=QUICK.rows), tmp_path / "log.h5")
    with pytest.raises(WouldOverwrite, match="holds a demo with a log of 4,000 rows, not of 200,000"):
        run_demo(tmp_path)
