"""Policies that a run keeps on the way."""

import shutil

import numpy as np
import pytest

import ringfence
from ringfence import BC, Run
from ringfence.errors import CheckpointError, InvalidSetting
from ringfence.training import Member, Plan
from tests.logs import narrow_log

LOG = narrow_log(rows=600)
TINY = BC(hidden=(8, 8), batch_size=16)
SCHEDULE = {"log_every": 10, "checkpoint_every": 25, "progress": False}
pytestmark = pytest.mark.usefixtures("quick_compilation")


def train(out, steps=60, **options):
    return ringfence.train(LOG, TINY, limits=[5.0, 7.0], steps=steps, out=out, **SCHEDULE, **options)


def same(artifact, other):
    return all(np.array_equal(value, other.tensors[name]) for name, value in artifact.tensors.items())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "run", keep_every=15)


def test_they_are_the_policies_of_shorter_runs_and_the_end_is_not_among_them(trained, tmp_path):
    loaded = Run.load(trained.path)
    assert list(loaded.kept) == [15, 30, 45]
    assert [a.steps_done for artifacts in loaded.kept.values() for a in artifacts] == [15, 15, 30, 30, 45, 45]
    shorter = train(tmp_path / "shorter", steps=15)
    assert all(map(same, loaded.kept[15], shorter.artifacts))
    assert not same(loaded.kept[30][0], loaded.kept[15][0])
    assert shorter.kept == {}


def test_a_run_that_is_resumed_keeps_the_same(trained, tmp_path):
    """Without its checkpoints it is made again, and then it goes on to 90 steps."""
    copy = shutil.copytree(trained.path, tmp_path / "run")
    before = {file.relative_to(copy): file.read_bytes() for file in (copy / "kept").rglob("*.safetensors")}
    shutil.rmtree(copy / "checkpoints")
    shutil.rmtree(copy / "kept" / "step-000000030")
    ringfence.resume(copy, LOG, progress=False)
    assert {file: (copy / file).read_bytes() for file in before} == before
    longer = ringfence.resume(copy, LOG, steps=90, progress=False)
    assert list(longer.kept) == [15, 30, 45, 60, 75]
    assert all(map(same, longer.kept[60], trained.artifacts))


def test_a_step_that_was_half_written_is_left_out_and_one_of_another_run_refused(trained, tmp_path):
    copy = shutil.copytree(trained.path, tmp_path / "run")
    half = copy / "kept" / "step-000000045"
    (half / "policy-limit7.safetensors").unlink()
    (copy / "kept" / "step-notes").mkdir()
    assert list(Run.load(copy).kept) == [15, 30]
    shutil.copy(half / "policy-limit5.safetensors", half / "policy-limit7.safetensors")
    with pytest.raises(CheckpointError, match=r"policy-limit7\.safetensors was not made by this run"):
        _ = Run.load(copy).kept


@pytest.mark.parametrize("every", [0, -1, 2.5, True, "20"])
def test_a_number_of_steps_that_is_none_is_refused(every):
    with pytest.raises(InvalidSetting, match="keep_every must be a whole number"):
        Plan(TINY, (Member(0, 5.0),), 60, keep_every=every)


def test_a_run_in_memory_has_nowhere_to_keep_them():
    with pytest.raises(InvalidSetting, match="give it with out="):
        train(None, keep_every=20)


def test_a_last_stage_of_another_name_is_refused():
    class Renamed(BC):
        def stages(self, steps):
            [stage] = super().stages(steps)
            return (ringfence.algorithms.interface.Stage("actor", stage.steps, stage.update),)

    with pytest.raises(InvalidSetting, match="the last stage of bc is called 'actor'"):
        Plan(Renamed(), (Member(0, 5.0),), 60)
