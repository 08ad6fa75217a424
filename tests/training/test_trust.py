"""A run is what it says: identity, lock, damage, going on for longer."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import jax.numpy as jnp
import numpy as np
import pytest

import ringfence
from ringfence import BC, CPQ, Run
from ringfence.errors import CheckpointError, InvalidSetting, NonFiniteLoss, RunInUse, WouldOverwrite
from ringfence.files import digest
from ringfence.training import RunDirectory, computation
from ringfence.training.checkpoint import load_newest, save_checkpoint, steps_saved
from ringfence.training.rundir import JUDGEMENT_FILE
from tests.logs import narrow_log

LOG = narrow_log(rows=600)
TINY = BC(hidden=(8,), batch_size=16)
STAGED = CPQ(hidden=(8, 8), batch_size=16, cvae_steps=20, ood_samples=3)  # compiled once with `test_loop.py`
SCHEDULE = {"log_every": 10, "evaluate_every": 20, "checkpoint_every": 10, "progress": False}
pytestmark = pytest.mark.usefixtures("quick_compilation")


def train(out, steps=40, method=TINY, limit=5.0, **options):
    return ringfence.train(LOG, method, limits=[limit], steps=steps, out=out, **{**SCHEDULE, **options})


def resume(out, **options):
    return ringfence.resume(out, LOG, progress=False, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "run").path


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


# A run's identity


def test_a_log_whose_sources_changed_would_set_other_episodes_aside_and_is_refused(tmp_path):
    log = narrow_log(rows=600, with_source=True)
    ringfence.train(log, TINY, limits=[5.0], steps=10, out=tmp_path / "run", holdout=0.3, **SCHEDULE)
    other = replace(log, source=None, source_names=())
    assert other.fingerprint == log.fingerprint
    with pytest.raises(CheckpointError, match="other sources than when the run began"):
        ringfence.resume(tmp_path / "run", other, steps=20, progress=False)
    assert ringfence.resume(tmp_path / "run", log, steps=20, progress=False).finished


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"seeds": (1,)}, r"members is \[\[1, 5.0\]\], not \[\[0, 5.0\]\]"),
        ({"limit": 7.0}, r"members is \[\[0, 7.0\]\]"),
        ({"method": BC(hidden=(8,), batch_size=16, learning_rate=1e-3)}, "hyperparameters.learning_rate is 0.001"),
    ],
)
def test_checkpoints_of_another_run_are_refused_with_the_reason(copy, tmp_path, other, reason):
    train(tmp_path / "other", **other)
    shutil.rmtree(copy / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", copy / "checkpoints")
    with pytest.raises(CheckpointError, match=f"belongs to another run: {reason}"):
        resume(copy)


@pytest.mark.parametrize(
    "path",
    [
        ("hyperparameters", "learning_rate", 0.5),
        ("hyperparameters", "learning_rate", float("nan")),
        ("hyperparameters", "hidden", 5),
        ("hyperparameters", "discount", 2),
        ("members", 0, [1, 5.0]),
        ("members", 0, [0, -5.0]),
        ("members", 0, [-1, 5.0]),
        ("members", 0, "05"),
        ("schedule", "steps", 80),
        ("schedule", "steps", float("inf")),
        ("schedule", "log_every", 0),
        ("log", "horizon", "fifty"),
        ("versions", "jax", "0"),
        ("computed_by", 0, {}),
    ],
)
def test_a_configuration_that_was_edited_is_refused(copy, path):
    content = json.loads((copy / "config.json").read_text())
    section, key, value = path
    content[section][key] = value
    (copy / "config.json").write_text(json.dumps(content))
    for read in (Run.load, resume):
        with pytest.raises(CheckpointError, match=r"config\.json (was changed|is damaged or was edited)"):
            read(copy)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["extras"].update(holdout="x"), "holdout must be a number"),
        (lambda c: c["extras"].update(holdout=[0.2]), "holdout must be a number"),
        (lambda c: c["extras"].update(horizon=0), "horizon must be at least 1 step"),
        (lambda c: c["extras"].update(horizon=7.5), "horizon must be at least 1 step"),
        (lambda c: c.update(computed_by=[]), "computed_by is empty"),
        (lambda c: c["log"].update(origin={"source": "log.h5", "options": 5}), "is damaged or was edited"),
        (
            lambda c: c["log"].update(origin={"source": "log.h5", "options": {"cost": "os:system"}}),
            "options has 'cost'",
        ),
        (lambda c: c["log"].update(horizon=7), "states another horizon"),
        (lambda c: c["schedule"].update(steps=20), "has 40 steps behind it, more than the 20 planned"),
    ],
)
def test_a_configuration_that_was_edited_with_its_checksum_is_refused_for_what_it_says(copy, change, said):
    content = json.loads((copy / "config.json").read_text())
    change(content)
    content["sha256"] = digest({name: value for name, value in content.items() if name != "sha256"})
    (copy / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=said):
        resume(copy)


@pytest.mark.parametrize("content", [b"[]", b"{}", b"null", b"3", b'{"format": 2}', b"\xff\xfe", b"", b"[" * 100_000])
def test_a_configuration_that_is_none_is_refused(copy, content):
    (copy / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Run.load(copy)


@pytest.mark.parametrize("key", ["method", "hyperparameters", "members", "schedule", "log", "extras", "computed_by"])
def test_a_configuration_that_lacks_a_part_says_which(copy, key):
    content = json.loads((copy / "config.json").read_text())
    del content[key]
    (copy / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=f"lacks '{key}'"):
        Run.load(copy)


def test_another_computation_is_refused_unless_it_is_allowed(copy, monkeypatch):
    monkeypatch.setattr(computation.kernels, "computation", lambda: "abacus")
    with pytest.raises(
        CheckpointError, match=r"this machine computes .*products is 'abacus', not '[\w/]+'.*--other-computation"
    ):
        resume(copy)
    assert resume(copy, other_computation=True).finished
    assert [entry["products"] == "abacus" for entry in Run.load(copy).configuration.computed_by] == [False, True]
    resume(copy)  # what was allowed once is recorded


@pytest.mark.parametrize("package", ["jaxlib", "numpy", "optax"])
def test_another_version_of_what_computes_is_another_computation(copy, monkeypatch, package):
    monkeypatch.setattr(computation, "version", lambda name: "0.0.1" if name == package else metadata.version(name))
    with pytest.raises(CheckpointError, match=rf"{package} is '0\.0\.1', not '.*--other-computation"):
        resume(copy)
    assert resume(copy, other_computation=True).finished
    resume(copy)


# Numbers that are not finite


def test_a_checkpoint_with_a_number_that_is_not_finite_is_never_written(tmp_path):
    good = {"w": jnp.ones(3), "step": jnp.zeros(1, jnp.int32)}
    save_checkpoint(tmp_path, 1, good, {"step": 1})
    for bad in (jnp.nan, jnp.inf):
        with pytest.raises(NonFiniteLoss, match="w"):
            save_checkpoint(tmp_path, 2, good | {"w": jnp.array([1.0, bad, 1.0])}, {"step": 2})
    assert steps_saved(tmp_path) == [1]
    assert load_newest(tmp_path, lambda _: good)[1] == {"step": 1}


def test_a_run_that_diverges_between_two_lines_of_metrics_writes_no_bad_checkpoint(tmp_path):
    explosive = BC(hidden=(8,), batch_size=16, learning_rate=1e30)
    with pytest.raises(NonFiniteLoss, match="became NaN or infinite by policy step 5") as stopped:
        train(tmp_path / "run", method=explosive, log_every=40, checkpoint_every=5)
    assert steps_saved(tmp_path / "run" / "checkpoints") == []
    assert "checkpoint" not in str(stopped.value)  # there is none to be kept
    assert not list((tmp_path / "run").glob("policy*"))


def test_a_run_that_diverges_in_a_later_stage_keeps_the_good_checkpoints_and_says_so(tmp_path):
    # Without feedback there are no clones, which learn at the actor's rate in the first stage
    explosive = replace(STAGED, actor_learning_rate=1e38, feedback=0.0)
    with pytest.raises(NonFiniteLoss, match=r"the last good checkpoint is kept in .*start a new run"):
        train(tmp_path / "run", method=explosive, log_every=40, checkpoint_every=5)
    kept = steps_saved(tmp_path / "run" / "checkpoints")
    assert kept[-1] == explosive.cvae_steps  # the detector's end
    with pytest.raises(NonFiniteLoss):
        resume(tmp_path / "run")
    assert steps_saved(tmp_path / "run" / "checkpoints") == kept


# One process at a time


def test_a_run_in_use_is_refused_and_left_alone(copy):
    before = (copy / "metrics.jsonl").read_bytes()
    with RunDirectory(copy).locked(), pytest.raises(RunInUse, match=f"in use by process {os.getpid()}"):
        resume(copy)
    assert (copy / "metrics.jsonl").read_bytes() == before
    assert resume(copy).finished


def test_a_killed_owner_leaves_no_lock(copy):
    code = "import sys; from ringfence.training import RunDirectory\n"
    code += "with RunDirectory(sys.argv[1]).locked(): print(1, flush=True); input()"
    owner = subprocess.Popen([sys.executable, "-c", code, str(copy)], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    owner.stdout.readline()
    with pytest.raises(RunInUse):
        resume(copy)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert resume(copy).finished


# What a kill leaves


def test_a_run_killed_while_it_began_can_begin_again(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".config.0123456789ab.tmp.json").write_text('{"form')
    (out / ".lock").write_text("process 1")
    with pytest.raises(CheckpointError, match="stopped before it began: start it again with --out"):
        resume(out)
    assert train(out).finished
    assert not list(out.glob(".*.tmp*"))


def test_a_run_that_lost_its_configuration_is_not_said_to_have_never_begun(copy):
    """`--out` would refuse it: there is something in it to lose."""
    (copy / "config.json").unlink()
    with pytest.raises(CheckpointError, match="it was a run and has lost it: restore it"):
        resume(copy)
    with pytest.raises(WouldOverwrite):
        train(copy)


def test_what_killed_runs_left_half_written_is_removed_and_nothing_else(copy):
    ours = [
        copy / ".policy.0123456789ab.tmp.safetensors",
        copy / "checkpoints" / ".step-000000040.0123456789ab.tmp.json",
    ]
    theirs = [copy / "notes.tmp", copy / ".hidden", copy / "checkpoints" / "step-best.json"]
    orphan = copy / "checkpoints" / "step-000000050.safetensors"  # its manifest was never written
    for file in (*ours, *theirs, orphan):
        file.write_text("x")
    assert resume(copy).finished
    assert not any(file.exists() for file in (*ours, orphan))
    assert all(file.exists() for file in theirs)


def test_a_damaged_line_is_named_and_costs_that_line_alone(copy):
    lines = (copy / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    damaged = [
        lines[0],
        lines[1].replace(b"actor_loss", b"actor_l\xffss"),
        lines[2].replace(b'"step": 30', b'"step": 31'),
        lines[3],
    ]
    (copy / "metrics.jsonl").write_bytes(b"".join(damaged))
    with pytest.warns(UserWarning, match=r"line (2|3) of .*metrics\.jsonl is damaged"):
        run = Run.load(copy)
    assert [row["step"] for row in run.metrics] == [10, 40]
    assert len(run.damage) == 2
    assert [row["step"] for row in resume(copy, steps=50).metrics] == [10, 40, 50]
    assert (copy / "metrics.jsonl").read_bytes().startswith(b"".join(damaged))  # nothing was thrown away


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """A run with a cost critic and with a warning: its detector is blind."""
    return train(tmp_path_factory.mktemp("staged") / "run", method=STAGED).path


@pytest.mark.parametrize("stream", ["metrics", "warnings"])
@pytest.mark.parametrize("kept", [None, 0, 1])
def test_lines_that_are_lost_are_counted_and_the_verdict_says_so(staged, tmp_path, stream, kept):
    run = shutil.copytree(staged, tmp_path / "run")
    file = run / f"{stream}.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    if kept is None:
        file.unlink()
    else:
        file.write_bytes(b"".join(lines[: min(kept, len(lines) - 1)]))
    gone = len(lines) - min(kept or 0, len(lines) - 1)
    for _ in range(2):  # and it is not forgotten
        found = resume(run)
        assert found.damage == (f"{gone} line(s) of {file} are lost",)
        assert "damaged or lost" in found.verdict.words
        assert "has no cost critic" not in found.verdict.words
        assert (found.verdict.judgement, found.verdict.steps) != ("inside", 0)
        assert json.loads((run / "verdict.json").read_text())[0]["words"] == found.verdict.words
    assert "line(s)" in resume(run, steps=60).damage[0]


def test_a_file_that_cannot_be_read_is_named(copy):
    (copy / "metrics.jsonl").unlink()
    (copy / "metrics.jsonl").mkdir()
    for read in (Run.load, resume):
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl cannot be read \(Is a directory\)"):
            read(copy)


def test_a_last_line_that_a_kill_cut_off_is_no_damage(copy):
    with open(copy / "metrics.jsonl", "ab") as file:
        file.write(b'{"stage": "pol')
    assert Run.load(copy).damage == ()


# Going on for longer


@pytest.mark.parametrize("first", [40, 45])
def test_a_run_goes_on_for_longer_to_the_numbers_of_one_planned_so(tmp_path, first):
    """45 lies between two lines of metrics and two checkpoints: its end must leave no trace."""
    train(tmp_path / "grown", steps=first, method=STAGED)
    grown = resume(tmp_path / "grown", steps=70)
    whole = train(tmp_path / "whole", steps=70, method=STAGED)
    assert grown.metrics == whole.metrics
    assert grown.policy.checksum == whole.policy.checksum
    for file in ("metrics.jsonl", "verdict.json", "warnings.jsonl"):
        contents = [(tmp_path / run / file) for run in ("grown", "whole")]
        assert len({path.read_bytes() if path.exists() else None for path in contents}) == 1
    assert Run.load(tmp_path / "grown").configuration.schedule.steps == 70


def test_a_run_cannot_become_shorter(copy):
    with pytest.raises(InvalidSetting, match="planned for 40 steps: it can go on for longer, not for 30"):
        resume(copy, steps=30)


def test_a_method_that_plans_by_its_steps_cannot_go_on_for_longer(copy, monkeypatch):
    monkeypatch.setattr(BC, "depends_on_steps", True, raising=False)
    with pytest.raises(InvalidSetting, match="a run of 40 cannot become one of 50; start a new one"):
        resume(copy, steps=50)
    assert resume(copy, steps=40).finished


# What an interrupted run leaves


def test_what_was_said_of_another_policy_goes_with_it(copy):
    said = [copy / name for name in (JUDGEMENT_FILE, "result.png", "report.html")]
    for file in said:
        file.write_text("of the policy after 40 steps")
    resume(copy)
    assert all(file.exists() for file in said)
    resume(copy, steps=50)
    assert not any(file.exists() for file in said)
    assert json.loads((copy / "verdict.json").read_text())[0]["steps"] == 50


def interrupted_at(step, out, method=STAGED):
    directory = RunDirectory(out)
    plan = ringfence.training.Plan(method, (ringfence.training.Member(0, 5.0),), 40, 10, 20, 10)

    def interrupt(row):
        if row["overall_step"] == step:
            os.kill(os.getpid(), signal.SIGINT)

    with directory.locked():
        directory.create(plan.configuration(LOG))
        return ringfence.training.run(LOG, plan, directory=directory, progress=False, observe=interrupt)


def test_nothing_is_called_a_policy_before_the_policy_stage_has_begun(tmp_path):
    run = interrupted_at(10, tmp_path / "run")
    assert run.interrupted
    assert run.policies == Run.load(tmp_path / "run").policies == []
    assert not list((tmp_path / "run").glob("policy*"))
    with pytest.raises(CheckpointError, match="has no policy yet"):
        _ = run.policy


def test_a_policy_says_how_many_steps_of_how_many_it_had(tmp_path):
    run = interrupted_at(40, tmp_path / "run")
    assert [run.policy.metadata[name] for name in ("steps_done", "steps_planned")] == [20, 40]
    assert not Run.load(tmp_path / "run").finished
    assert "stopped after 20 of 40 steps" in run.verdict.words
    finished = ringfence.resume(tmp_path / "run", LOG, progress=False)
    assert [finished.policy.metadata[name] for name in ("steps_done", "steps_planned")] == [40, 40]


# Requests


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True])
def test_a_seed_that_is_none_is_refused(tmp_path, seed):
    from ringfence.training import Member, Plan

    with pytest.raises(InvalidSetting, match="seed must be a whole number from 0 to 4294967295"):
        train(tmp_path / "run", seeds=[seed])
    assert not (tmp_path / "run").exists()
    Plan(TINY, (Member(2**32 - 1, 5.0),))


def test_the_largest_seed_trains_a_policy_of_its_own(tmp_path):
    runs = [ringfence.train(LOG, TINY, limits=[5.0], seeds=[s], steps=2, progress=False) for s in (0, 2**32 - 1)]
    a, b = (run.policy(np.zeros(3)) for run in runs)
    assert (a != b).any()
