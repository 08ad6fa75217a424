"""The pages about runs and simulators do what they say."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np

import ringfence
from ringfence.cli import main
from ringfence.deploy import Policy
from tests.logs import narrow_log

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_simulator_of_the_page_runs_with_its_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_plant.py").write_text(blocks("your-own-simulator.md", "python")[0])
    tensors = {"actor.0.weight": np.zeros((1, 2)), "actor.0.bias": np.ones(2)}
    Policy.from_tensors("tanh-gaussian", tensors, [0.0], [1.0], [-1.0], [1.0], {"limit": 4.0}).save(
        "policy.safetensors"
    )
    for line in blocks("your-own-simulator.md", "bash")[0].splitlines():
        assert main(shlex.split(line)[1:]) == 0, line
        assert "my_plant:Plant" in capsys.readouterr().out
    sys.modules.pop("my_plant")


def test_the_run_of_the_page_can_be_read_as_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    method = ringfence.BC(limit=5.0, hidden=(8,), batch_size=16)
    ringfence.train(narrow_log(rows=300), method, steps=5, out="runs/mine", progress=False)
    exec(compile(blocks("runs.md", "python")[0], "runs.md", "exec"), {})
    assert "bc 5" in capsys.readouterr().out
    named = re.findall(r"^\| `([\w.]+)`", (DOCS / "runs.md").read_text(), re.MULTILINE)
    expected = {"evaluations.jsonl", "warnings.jsonl"}  # only where there is something to say
    by_the_command_line = {"result.png", "report.html", "judgement.json"}
    assert {name for name in named if not (Path("runs/mine") / name).exists()} <= expected | by_the_command_line
