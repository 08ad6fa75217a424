"""Every command and every example of the README is run."""

import re
import shlex
from functools import partial
from pathlib import Path

import pytest

import ringfence
from ringfence.algorithms import METHODS
from ringfence.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
pytestmark = pytest.mark.usefixtures("quick_compilation")
# What makes a command short enough for a test; the words of the README stay as they are.
SHORT = {
    "collect": ["--size", "2000"],
    "train": ["--steps", "6", "--set", "hidden=[8]", "batch_size=16", "cvae_steps=6"],
    "evaluate": ["--episodes", "2"],
    "demo": ["--quick"],
    "theory": ["--cases", "10", "--logs", "2"],
}


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands():
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line]


def test_the_readme_starts_with_its_two_commands():
    assert [line for line in commands() if line.startswith("make")][:2] == ["make demo", "make test"]
    for line in commands():
        assert line.split()[0] in ("make", "ringfence", "pip"), line


@pytest.mark.parametrize("target", sorted({line.split()[1] for line in commands() if line.startswith("make")}))
def test_every_make_target_of_the_readme_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


@pytest.mark.slow
def test_every_command_of_the_readme_runs(folder, monkeypatch, capsys):
    """In order, in one directory, as a reader would: later commands use what earlier ones made."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("ringfence.behaviour.datasets.builtin_dataset.__defaults__", (2000, 0))
    for line in commands():
        if line.startswith("ringfence"):
            words = shlex.split(line)[1:]
            shorter = ["--steps", "8"] * ("--steps" in words) if "--resume" in words else SHORT.get(words[0], [])
            assert main([*words, *shorter]) == 0, line
            capsys.readouterr()


@pytest.mark.slow
def test_every_python_example_of_the_readme_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    if not Path("my_logs.parquet").exists():
        main(["collect", "--task", "halfcheetah-torque", "--size", "2000", "--out", "my_logs.parquet"])
    monkeypatch.setattr(
        ringfence, "CPQ", partial(METHODS["cpq"], hidden=(8,), batch_size=16, cvae_steps=6), raising=False
    )
    from ringfence import api

    monkeypatch.setattr(ringfence, "train", partial(api.train, steps=6), raising=False)
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    assert Path("policy.safetensors").exists()
