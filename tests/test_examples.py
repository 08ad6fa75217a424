"""The examples in docstrings are run."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FILES = sorted(file for file in SOURCE.rglob("*.py") if ">>> " in file.read_text())
MODULES = [".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for file in FILES]
pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_there_are_examples():
    assert "ringfence.limits" in MODULES


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_give_what_they_say(name):
    result = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
