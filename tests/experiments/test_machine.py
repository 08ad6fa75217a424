"""Where cells run: which options go together, and how many cells run side by side."""

import pytest

from ringfence.cli import main
from ringfence.errors import InvalidSetting
from ringfence.experiments import machine
from ringfence.experiments.machine import Machine
from tests.experiments.test_grid import file as file  # a grid

WRONG = {
    "ray's options without ray: address": (["--address", "auto"], "--engine ray"),
    "ray's options without ray: gpus": (["--gpus", "1"], "--engine ray"),
    "ray's options without ray: cpus": (["--cpus", "2"], "--engine ray"),
    "threads with ray": (["--engine", "ray", "--threads", "2"], "--engine local"),
    "cpus that are no number": (["--engine", "ray", "--cpus", "nan"], "--cpus is what each cell needs"),
    "cpus without end": (["--engine", "ray", "--cpus", "inf"], "--cpus is what each cell needs"),
    "cpus below 0": (["--engine", "ray", "--cpus", "-1"], "--cpus is what each cell needs"),
    "gpus below 0": (["--engine", "ray", "--gpus", "-1"], "--gpus is what each cell needs"),
    "neither a processor nor a gpu": (["--engine", "ray", "--cpus", "0"], "a share of a processor or of a GPU"),
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG)
def test_options_that_make_no_sense_are_refused_in_a_line(file, tmp_path, capsys, words, said):
    assert main(["sweep", str(file), "--out", str(tmp_path / "store"), "--dry-run", *words]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1


def test_the_number_of_workers_of_a_cluster_is_refused_in_a_run_and_an_estimate_in_a_dry_run(file, tmp_path, capsys):
    cluster = Machine("ray", workers=64, address="auto")
    assert cluster.slots == 64
    with pytest.raises(InvalidSetting, match=r"--workers is not for a cluster.*--dry-run"):
        cluster.open()
    words = ["--engine", "ray", "--address", "auto", "--workers", "64"]
    assert main(["sweep", str(file), "--out", str(tmp_path / "store"), *words]) == 2
    assert "--workers is not for a cluster" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()  # before anything is made


@pytest.mark.parametrize(
    ("made", "slots"),
    [
        (Machine(), 4),
        (Machine(workers=7), 7),
        (Machine("ray"), 4),
        (Machine("ray", cpus=2.0), 2),
        (Machine("ray", cpus=3.0), 1),
        (Machine("ray", cpus=8.0), 1),
        (Machine("ray", cpus=0.5), 8),
        (Machine("ray", cpus=2.0, workers=3), 3),
        (Machine("ray", address="auto"), 1),
    ],
)
def test_cells_run_side_by_side_as_far_as_their_processors_go(monkeypatch, made, slots):
    monkeypatch.setattr(machine, "available_cores", lambda: 4)
    assert made.slots == slots
