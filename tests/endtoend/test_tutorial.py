"""Every command and every example of docs/tutorial.md and docs/deploy.md is run, in order, in one directory."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ringfence.cli import main
from ringfence.deploy import Policy

DOCS = Path(__file__).parents[2] / "docs"
# What makes a command short enough for a test; the words of the page stay as they are.
SHORT = {
    "collect": ["--size", "3600", "--workers", "1"],
    "train": ["--steps", "6", "--set", "hidden=[8]", "batch_size=16", "cvae_steps=6"],
    "evaluate": ["--episodes", "2"],
}


def blocks(page):
    return re.findall(r"```(bash|python|c)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def run_page(page):
    for language, text in blocks(page):
        if language == "c":
            Path("main.c").write_text(text)
        elif language == "python":
            exec(compile(text, page, "exec"), {})
        else:
            for line in text.strip().splitlines():
                run_command(line)


def shortened(words):
    """The command with the settings of SHORT in place of its own: a setting may not be given twice."""
    short = SHORT.get(words[0], [])
    if "--set" in short and "--set" in words:
        given = words.index("--set")
        after = next((i for i in range(given + 1, len(words)) if words[i].startswith("--")), len(words))
        words = words[:given] + words[after:]
    return [*words, *short]


def run_command(line):
    words = shlex.split(line)
    if words[0] == "ringfence":
        assert main(shortened(words[1:])) == 0, line
    else:
        subprocess.run(words, check=True, timeout=60)


@pytest.mark.slow
def test_every_command_and_example_runs(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    run_page("tutorial.md")
    printed = capfd.readouterr().out
    action = Policy.load("runs/reactor/policy.safetensors")([0.57, 346.0, 0.0, 301.0, 350.0])
    [in_c] = re.findall(r"coolant change \[K\]: (\S+), score", printed)
    np.testing.assert_allclose(float(in_c), action[0], rtol=1e-4)
    assert "steps by the policy; broken rules" in printed
    assert "Where it acts unlike the operators" in Path("runs/reactor/report.html").read_text()
    assert "temperature [K]" in Path("guard.html").read_text()
    shutil.copy("runs/reactor/policy.safetensors", "policy.safetensors")
    run_page("deploy.md")


def test_the_tutorial_goes_from_the_log_to_the_export_and_its_pictures_are_there():
    lines = [line for language, text in blocks("tutorial.md") if language == "bash" for line in text.splitlines()]
    verbs = [line.split()[1] for line in lines if line.startswith("ringfence ")]
    assert verbs == ["collect", "inspect", "train", "judge", "report", "evaluate", "report", "export", "export"]
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (DOCS / "tutorial.md").read_text())
    assert len(pictures) == 4  # the log, the page of the run, the reactor with and without the guard, the guard's page
    assert all((DOCS / picture).is_file() for picture in pictures)


def test_the_tutorial_says_what_its_run_gave():
    text = " ".join((DOCS / "tutorial.md").read_text().split())
    names = ("verdict", "judgement", "evaluation")
    given = [json.loads((DOCS.parent / "results" / "tutorial" / f"{name}.json").read_text()) for name in names]
    (verdict,), (judgement,), measured = given[0], given[1], given[2]["summary"]
    for sentence in (
        f'Here it is "{verdict["judgement"]}": the critic expects a discounted cost of {verdict["cost"]:.1f}',
        f'They say "{judgement["verdict"]}": an expected discounted cost of at most {judgement["cost"]["upper"]:.2f}',
        f"Its discounted cost is {measured['discounted cost']['mean']:.1f} on average",
        f"it returns {measured['return']['mean']:.1f} an episode",
    ):
        assert sentence in text


@pytest.mark.parametrize("page", ["tutorial.md", "deploy.md"])
def test_the_numbers_of_a_page_are_those_of_the_results(page):
    table = (DOCS.parent / "results" / "guard" / "results.md").read_text()
    assert table.strip() in (DOCS / page).read_text()
