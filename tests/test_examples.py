"""The examples in docstrings are run."""

import doctest
from importlib import import_module

import pytest

MODULES = [
    "ringfence.limits",
    "ringfence.api",
    "ringfence.algorithms.cpq_default",
    "ringfence.deploy.drift",
    "ringfence.deploy.policy",
    "ringfence.deploy.reference",
    "ringfence.evaluation.rollout",
    "ringfence.tasks.build",
    "ringfence.behaviour.shipped",
    "ringfence.values",
]
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_give_what_they_say(name):
    result = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
