"""The door of the command line: whatever happens becomes one or two lines and an exit status."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import ringfence
from ringfence.cli import build_parser, faults, main
from ringfence.deploy import Policy
from tests.logs import narrow_log

TINY = ["--method", "bc", "--set", "hidden=[8]", "batch_size=16", "--steps", "20", "--log-every", "10"]
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "log.npz"
    ringfence.save(narrow_log(rows=300), path)
    return str(path)


def failed(capsys, status, *words):
    """What is said of a call that fails with this status: at most two lines, no traceback."""
    try:
        ended = main([str(word) for word in words])
    except SystemExit as refusal:  # how argparse refuses
        ended = refusal.code
    assert ended == status
    err = capsys.readouterr().err
    assert "Traceback" not in err
    said = [line for line in err.splitlines() if not line.startswith(("limit:", "note:", "warning:", "run:"))]
    assert len(said) <= 2, said
    return err


@pytest.fixture
def failing(monkeypatch):
    """Makes `ringfence methods` raise an error."""

    def raise_from_methods(error):
        def fail(name=None):
            raise error

        monkeypatch.setattr("ringfence.reports.methods.print_methods", fail)

    return raise_from_methods


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            OSError(28, "No space left on device", "metrics.jsonl"),
            1,
            "metrics.jsonl: No space left on device; free some",
        ),
        (OSError(27, "File too large", "policy"), 1, "ulimit -f"),
        (OSError(5, "Input/output error"), 1, "Input/output error"),
        (OSError(30, "Read-only file system", "/x"), 2, "/x: Read-only file system; the place is read-only"),
        (PermissionError(13, "Permission denied", "/x"), 2, "you may not write"),
        (
            IsADirectoryError(21, "Is a directory", ".x.0123456789ab.tmp", None, "run/x"),
            2,
            "error: run/x: Is a directory",
        ),
        (MemoryError(), 1, "not enough memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"), 1, "not enough memory"),
        (
            ZeroDivisionError("oh"),
            1,
            "unforeseen ZeroDivisionError: oh. Please report it at the project's issue tracker",
        ),
    ],
)
def test_any_error_is_told_with_a_status(capsys, failing, error, status, said):
    failing(error)
    assert said in failed(capsys, status, "methods")


def test_what_could_not_be_foreseen_keeps_its_traceback_in_a_file(capsys, failing, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(ZeroDivisionError("oh"))
    said = failed(capsys, 1, "methods")
    (file,) = tmp_path.iterdir()
    assert str(file) in said
    assert "ZeroDivisionError: oh" in file.read_text()


def test_a_debugging_variable_shows_the_traceback(capsys, failing, monkeypatch):
    monkeypatch.setenv("RINGFENCE_DEBUG", "1")
    failing(ZeroDivisionError("oh"))
    assert main(["methods"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_output_that_cannot_be_made_is_refused(capsys, log, tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file" / "run", tmp_path / ("x" * 300), "/proc/ringfence/run"):
        failed(capsys, 2, "train", log, "--limit", "7", "--out", out, *TINY)
    assert "is a file" in failed(capsys, 2, "train", log, "--limit", "7", "--out", tmp_path / "file", *TINY)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "-1"], "seed"),
        (["--seeds", str(2**32)], "seed"),
        (["--set", "hidden=5"], "hidden"),
        (["--set", "hidden=[8.5]"], "hidden"),
        (["--set", "learning_rate=NaN"], "learning_rate must be a finite number"),
        (["--set", "learning_rate=1e300"], "learning_rate must be a finite number"),  # infinite in float32
        (["--set", "learning_rate=1e-300"], "learning_rate must be a positive number"),  # 0 in float32
        (["--set", "learning_rate=1" + "0" * 400], "learning_rate must be a finite number"),
        (["--set", "discount=0.999999999"], "discount must be a number from 0 up to (but not) 1"),  # 1 in float32
        (["--set", "batch_size=1" + "0" * 400], "batch_size must be a whole number"),
        (["--steps", str(2**31)], "steps must be a whole number from 1 to 2147483647"),
        (["--limit", "1e300"], "limit must be a finite cost"),
        (["--set", "discount=0.5", "--discount", "0.9"], "give one of them"),
        (["--set", "limit=3"], "--limit"),
        (["--set", "learning_rate=1e-3", "--set", "learning_rate=1e-4"], "--set gives learning_rate twice"),
        (["--episodes", "0"], "episodes"),
        (["--log-every", "0"], "log_every"),
        (["--limit", "nan"], "limit"),
        (["--horizon", "0", "--limit-kind", "episode"], "horizon"),
        (["--other-computation"], "--resume"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(capsys, log, tmp_path, words, said):
    base = ["train", log, "--limit", "7", "--method", "bc", "--steps", "5", "--out", tmp_path / "run"]
    assert said in failed(capsys, 2, *base, *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", "LOG", "--plot", "picture.foo"], "a picture's name ends in .png"),
        (["evaluate", "p.safetensors", "--task", "reactor", "--plot", "picture"], "a picture's name ends in .png"),
        (["reproduce", "figure1", "--limits", "nan", "--out", "store"], "limit must be a finite cost"),
        (["reproduce", "figure2", "--limits", "30", "-1", "--out", "store"], "limit must be a finite cost"),
    ],
)
def test_what_cannot_be_drawn_or_bounded_is_refused_before_any_work(capsys, log, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ringfence.experiments.grid.LogSource.fingerprint", lambda source: pytest.fail("made a log"))
    assert said in failed(capsys, 2, *(log if word == "LOG" else word for word in words))


def test_networks_of_more_weights_than_can_be_drawn_are_refused(capsys, log, tmp_path):
    words = ["train", log, "--limit", "7", "--method", "bc", "--steps", "5", "--out", tmp_path / "run"]
    assert "use smaller networks" in failed(capsys, 2, *words, "--set", "hidden=[100000,100000]")


def test_a_refused_run_leaves_its_directory_to_a_better_one(capsys, log, tmp_path):
    """The size of networks is known to be too large only once they are made."""
    words = ["train", log, "--limit", "5", "--method", "bc", "--steps", "20", "--out", tmp_path / "run"]
    failed(capsys, 2, *words, "--set", "hidden=[1000000000]")
    assert main([str(word) for word in (*words, "--set", "hidden=[8]", "batch_size=16")]) == 0


def test_an_option_that_is_given_twice_has_the_words_of_both(log, tmp_path):
    """argparse alone would forget the first, and train with other settings than those that were typed."""
    words = ["train", log, "--limit", "7", "--method", "bc", "--steps", "5", "--out", str(tmp_path / "run")]
    twice = ["--set", "hidden=[8]", "--seeds", "3", "--set", "batch_size=16", "--seeds", "4", "5"]
    assert main([*words, *twice]) == 0
    run = ringfence.Run.load(tmp_path / "run")
    assert (run.configuration.settings["hidden"], run.configuration.settings["batch_size"]) == ([8], 16)
    assert [member.seed for member in run.members] == [3, 4, 5]
    parse = build_parser().parse_args
    assert parse(["inspect", "x.csv", "--columns", "costs=a", "--columns", "rewards=b"]).columns == [
        "costs=a",
        "rewards=b",
    ]
    assert parse(["reproduce", "figure1"]).seeds == [0, 1, 2]
    assert parse(["reproduce", "figure1", "--seeds", "7", "--seeds", "8"]).seeds == [7, 8]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("evaluate {policy} --task {task} --limit nan", "limit must be a finite number"),
        ("evaluate {policy} --task {task} --limit -3", "limit must be a finite number of at least 0"),
        ("evaluate {policy} --task {task} --discount nan", "discount must be a finite number"),
        ("evaluate {policy} --task {task} --seed -1", "--seed: a whole number from 0"),
        ("judge {policy} {log} --seed -1", "--seed: a whole number from 0"),
        ("theory --cases -1 --out {folder}/theory", "--cases: a whole number from 1"),
        ("theory --out {policy}", "File exists"),
        ("collect --task reactor --size 10 --out {folder}/log.xyz", "the name must end in"),
        ("collect --task reactor --size 10 --out {policy}/log.npz", "File exists"),
        ("collect --task reactor --size 10 --out /proc/log.npz", "/proc"),
    ],
)
def test_what_other_verbs_cannot_do_is_refused_before_the_work(capsys, log, tmp_path, words, said):
    tensors = {"actor.0.weight": np.zeros((1, 2)), "actor.0.bias": np.ones(2)}
    policy = Policy.from_tensors("tanh-gaussian", tensors, [0.0], [1.0], [-1.0], [1.0], {"limit": 4.0})
    named = {"policy": policy.save(tmp_path / "policy"), "log": log, "folder": tmp_path}
    given = words.format(**named, task="reactor").split()
    err = failed(capsys, 2, *given)
    assert said in err
    assert "collecting" not in err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["policy"]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("os:system", "os:system could not be made"),
        ("reactor", "the log has 3 observations and 2 actions, reactor has 5 and 1"),
    ],
)
def test_a_task_that_does_not_fit_is_refused_before_training(capsys, log, tmp_path, task, said):
    run = tmp_path / "run"
    assert said in failed(capsys, 2, "train", log, "--limit", "7", *TINY, "--task", task, "--out", run)
    assert not run.exists()


def test_a_log_that_has_moved_can_be_named(capsys, tmp_path, log):
    moved = tmp_path / "moved.npz"
    shutil.copy(log, moved)
    assert main(["train", str(moved), "--limit", "7", *TINY, "--out", str(tmp_path / "run")]) == 0
    moved.unlink()
    assert "name it: ringfence train LOG --resume" in failed(capsys, 2, "train", "--resume", tmp_path / "run")
    assert main(["train", log, "--resume", str(tmp_path / "run")]) == 0


def test_a_disk_that_is_full_behind_the_output_is_told():
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "ringfence", "methods"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ran.returncode == 1
    assert "No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        ("PYTHONIOENCODING=ascii {python} -m ringfence inspect {log} --limit 5", "300 rows"),
        ("{python} -m ringfence inspect {log} --limit 5 >&-", ""),
    ],
)
def test_an_output_in_ascii_or_closed_is_no_fault(log, shell, said):
    ended = subprocess.run(shell.format(python=sys.executable, log=log), shell=True, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert said in ended.stdout


def test_a_run_that_may_not_write_stops_with_a_line_and_goes_on_later(tmp_path, log):
    """The limit on the size of files stands in for a full disk: writing fails in the middle of a file."""
    command = ["bash", "-c", 'ulimit -f 2 && exec "$@"', "bash", sys.executable, "-m", "ringfence", "train"]  # 2 kB
    run = tmp_path / "run"
    env = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "0", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    words = [log, "--limit", "7", *TINY, "--out", str(run)]
    assert main(["train", *words[:-1], str(tmp_path / "whole")]) == 0
    ran = subprocess.run([*command, *words], capture_output=True, text=True, env=env)
    assert ran.returncode == 1
    assert "larger than this process may write" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert main(["train", "--resume", str(run)]) == 0
    assert (run / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_every_error_of_ours_counts_as_the_request_s():
    for kind in ringfence.RingfenceError.__subclasses__():
        assert faults.explained(kind("why"))[1] == 2
