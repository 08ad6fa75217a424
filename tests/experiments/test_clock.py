"""How long a cell takes is known though its process is killed."""

import subprocess
import sys
import time

import pytest

from ringfence.experiments.clock import FILE, Clock, spent_before
from tests.experiments.test_runner import until

KILLED = """
import os, signal, sys, time
from pathlib import Path
from ringfence.experiments.clock import Clock, spent_before
path = Path(sys.argv[1])
with Clock(path, every=0.05):
    while spent_before(path) < 0.3:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def run(tmp_path):
    """A run directory in which training has begun."""
    (tmp_path / "metrics.jsonl").touch()
    return tmp_path


def test_the_seconds_of_a_killed_attempt_count(run):
    assert subprocess.run([sys.executable, "-c", KILLED, str(run)], timeout=60).returncode == -9
    noted = spent_before(run)
    assert noted >= 0.3
    with Clock(run) as clock:
        pass
    assert noted <= clock.seconds < noted + 60


def test_what_is_noted_on_the_way_is_not_counted_twice(run):
    began = time.monotonic()
    with Clock(run, every=0.01) as clock:
        until(lambda: spent_before(run) > 0.1)
    assert clock.seconds <= time.monotonic() - began
    noted = (run / FILE).read_text()
    time.sleep(0.05)
    assert (run / FILE).read_text() == noted  # it has stopped


def test_an_attempt_that_fails_is_noted_when_it_fails(run):
    with pytest.raises(ValueError, match="a fault"), Clock(run):
        raise ValueError("a fault")
    assert spent_before(run) > 0


def test_a_run_that_has_not_begun_keeps_its_directory_empty(tmp_path):
    with Clock(tmp_path, every=0.01):
        time.sleep(0.1)
    with pytest.raises(ValueError, match="refused"), Clock(tmp_path):
        raise ValueError("refused")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"seconds": null}'])
def test_a_damaged_note_counts_as_none(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert spent_before(tmp_path) == 0.0
