"""A real process, really killed. Where is decided by its own file operations, so the machine's speed does not matter."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ringfence
from ringfence.cli import main
from ringfence.files import TEMPORARY
from tests.logs import narrow_log

ROOT = Path(__file__).parents[2]
SETTINGS = ["--set", "hidden=[16,16]", "batch_size=32", "cvae_steps=100", "--steps", "200"]
SCHEDULE = ["--log-every", "50", "--checkpoint-every", "50"]


def killed(number, pattern, run, *words):
    """Run `ringfence train` until its n-th operation on the run's files that matches the pattern."""
    attack = [sys.executable, "-m", "tests.campaigns.killing", str(number), str(run), pattern]
    command = [*attack, "train", *map(str, words)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == -signal.SIGKILL, ran.stderr


def temporaries(run):
    """What a kill left half-written."""
    return [file for file in run.rglob("*") if TEMPORARY.fullmatch(file.name)]


@pytest.mark.slow
def test_a_run_killed_again_and_again_resumes_to_exactly_the_same_policy(tmp_path):
    ringfence.save(narrow_log(rows=600), tmp_path / "log.h5")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fresh = [str(tmp_path / "log.h5"), "--limit", "5", *SETTINGS, *SCHEDULE]
    assert main(["train", *fresh, "--out", str(whole)]) == 0
    killed(1, "rename .*config", cut, *fresh, "--out", cut)  # before it has a configuration
    assert not (cut / "config.json").exists()
    assert temporaries(cut)
    killed(2, "rename .*json", cut, *fresh, "--out", cut)  # before the first checkpoint counts
    killed(6, "open .*metrics", cut, "--resume", cut)  # in the policy stage, between two checkpoints
    killed(1, "rename .*metrics", cut, "--resume", cut)  # while it goes back to the last checkpoint
    killed(1, "rename .*policy", cut, "--resume", cut)  # at the very end
    assert temporaries(cut)
    assert main(["train", "--resume", str(cut)]) == 0
    assert not temporaries(cut)
    for name in ("policy.safetensors", "metrics.jsonl", "verdict.json"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_ctrl_c_saves_says_how_to_go_on_and_leaves_a_usable_policy(tmp_path):
    ringfence.save(narrow_log(rows=600), tmp_path / "log.h5")
    run = tmp_path / "run"
    words = [tmp_path / "log.h5", "--limit", "5", *SETTINGS[:-1], "10000000", *SCHEDULE, "--out", run]
    command = [sys.executable, "-m", "ringfence", "train", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    checkpoints = run / "checkpoints"
    while process.poll() is None and not list(checkpoints.glob("step-0000*[2-9]??.json")):
        time.sleep(0.05)  # until the policy stage, which begins after 100 steps, has saved
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"--resume {run}" in err
    assert "Traceback" not in err
    saved = ringfence.Run.load(run)
    assert 0 < saved.policy.metadata["steps_done"] < saved.policy.metadata["steps_planned"] == 10_000_000
    assert saved.metrics
