"""A real process, really killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import ringfence
from tests.logs import narrow_log

COMMAND = [sys.executable, "-m", "ringfence", "train"]
SETTINGS = ["--set", "hidden=[16,16]", "batch_size=32", "cvae_steps=300", "--steps", "6000"]
SCHEDULE = ["--log-every", "100", "--checkpoint-every", "200"]


def start(*words):
    return subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for_work(process, run):
    """Until the run has logged something, or ended."""
    for _ in range(1200):
        if process.poll() is not None or ((run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size):
            return
        time.sleep(0.05)


@pytest.mark.slow
def test_a_run_killed_at_random_moments_resumes_to_exactly_the_same_policy(tmp_path):
    ringfence.save(narrow_log(rows=600), tmp_path / "log.h5")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fresh = [tmp_path / "log.h5", "--limit", "5", *SETTINGS, *SCHEDULE]
    assert start(*fresh, "--out", whole).wait() == 0

    rng, kills = random.Random(time.time_ns()), 0
    process = start(*fresh, "--out", cut)
    for _ in range(4):
        wait_for_work(process, cut)
        time.sleep(rng.uniform(0.0, 1.5))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        process.stderr.close()
        process = start("--resume", cut)
    assert process.wait() == 0
    assert kills > 0

    checksums = {ringfence.Policy.load(run / "policy.safetensors").checksum for run in (whole, cut)}
    assert len(checksums) == 1
    assert (cut / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
    assert not [name for name in os.listdir(cut) if name.endswith(".tmp")]


@pytest.mark.slow
def test_ctrl_c_saves_says_how_to_go_on_and_leaves_a_usable_policy(tmp_path):
    ringfence.save(narrow_log(rows=600), tmp_path / "log.h5")
    run = tmp_path / "run"
    long = [tmp_path / "log.h5", "--limit", "5", *SETTINGS[:-1], "10000000", *SCHEDULE]
    process = start(*long, "--out", run)
    wait_for_work(process, run)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"--resume {run}" in err
    assert "Traceback" not in err
    ringfence.Policy.load(run / "policy.safetensors")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows
