"""What the demonstration says of its own numbers."""

import numpy as np
import pytest

from ringfence import CPQ
from ringfence.evaluation import Evaluation
from ringfence.experiments.demo import DISCOUNT, FULL, LIMIT, SEEDS
from ringfence.reports.demo import conclusion
from ringfence.training import Member, Plan
from ringfence.training.verdict import critic_steps
from tests.logs import narrow_log


def evaluations(**policies):
    """Evaluations of one episode a seed, from (return, discounted cost) of each seed."""
    return {
        name: [
            Evaluation("task", *(np.array([x]) for x in (r, r, c, c, 1000)), limit=30.0, discount=0.99)
            for r, c in seeds
        ]
        for name, seeds in policies.items()
    }


CLONE = [(1000.0, 25.0), (1010.0, 26.0)]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ([(1195.0, 29.0), (1215.0, 30.0)], "earns 20% more than the best of the others that keep it (clone, 1005)"),
        ([(900.0, 29.0), (909.0, 28.0)], "earns 10% less than"),
        ([(990.0, 29.0), (1005.0, 28.0)], "earns as much as"),  # the seeds overlap
        ([(1195.0, 29.0), (1215.0, 33.0)], "CPQ does not keep the limit here: 31.0 against 30"),
    ],
)
def test_the_conclusion_compares_cpq_with_the_best_other_policy_inside_the_limit(ours, said):
    assert said in conclusion(evaluations(unsafe=[(5000.0, 60.0)], clone=CLONE, CPQ=ours))


def test_without_another_policy_inside_the_limit_none_is_compared():
    assert "nothing else keeps it" in conclusion(evaluations(unsafe=[(5000.0, 60.0)], CPQ=[(10.0, 20.0)]))


def test_the_demo_trains_for_as_long_as_its_own_verdict_asks():
    plan = Plan(CPQ(discount=DISCOUNT), tuple(Member(seed, LIMIT) for seed in SEEDS), FULL.steps)
    assert FULL.steps >= critic_steps(plan.configuration(narrow_log(rows=100)))
