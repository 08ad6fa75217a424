"""A run as an object, from memory and from its directory."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import ringfence
from ringfence import CPQ, Run
from ringfence.errors import CheckpointError, InvalidSetting
from ringfence.training.record import is_judgement
from tests.logs import narrow_log

LOG = narrow_log(rows=600)
TINY = CPQ(hidden=(8, 8), batch_size=16, cvae_steps=20, ood_samples=3)
SCHEDULE = {"log_every": 10, "evaluate_every": 20, "checkpoint_every": 10}
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return ringfence.train(LOG, TINY, limits=[5.0, 7.0], steps=40, out=out, progress=False, **SCHEDULE)


def test_a_loaded_run_is_the_run_that_was_trained(trained):
    loaded = Run.load(trained.path)
    assert loaded.configuration == trained.configuration
    assert (loaded.metrics, loaded.evaluations, loaded.warnings) == (trained.metrics, [], trained.warnings)
    assert loaded.verdicts == trained.verdicts
    assert [p.checksum for p in loaded.policies] == [p.checksum for p in trained.policies]
    assert loaded.finished
    assert loaded.damage == ()
    assert {row["limit"] for row in loaded.rows_of(loaded.members[1])} == {7.0}


def test_reading_a_run_needs_no_jax(trained):
    code = f"import sys, ringfence; run = ringfence.Run.load({str(trained.path)!r}); run.verdicts, run.policies\n"
    code += "assert 'jax' not in sys.modules, 'jax was imported'"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_run_in_memory_has_the_same_object_without_files():
    run = ringfence.train(LOG, TINY, limits=[5.0], steps=5, progress=False)
    assert run.path is None
    assert run.policy(np.zeros(3)).shape == (2,)
    assert run.verdict.steps == 5


@pytest.mark.parametrize(
    "asked", [{"horizon": 0}, {"horizon": 2.5}, {"horizon": 50.0}, {"episodes": 0}, {"episodes": 2.5}], ids=str
)
def test_what_a_run_could_not_be_read_again_with_is_refused_before_it_begins(asked, tmp_path):
    ((name, number),) = asked.items()
    with pytest.raises(InvalidSetting, match=f"{name} must be a whole number from 1 to .*, not {number}"):
        ringfence.train(LOG, TINY, limits=[5.0], steps=5, out=tmp_path / "run", progress=False, **asked)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cost": "math:fsum"}, "'math:fsum' is for the steps of a simulated task, and none is given"),
        ({"tensorboard": True}, "give it with out="),
    ],
)
def test_what_would_have_no_effect_is_refused(asked, said):
    with pytest.raises(InvalidSetting, match=said):
        ringfence.train(LOG, TINY, limits=[5.0], steps=5, progress=False, **asked)


def test_the_verdict_is_kept_beside_the_policies(trained):
    stored = json.loads((trained.path / "verdict.json").read_text())
    assert [v["limit"] for v in stored] == [5.0, 7.0]
    assert [v["judgement"] for v in stored] == [v.judgement for v in trained.verdicts]
    assert trained.verdicts[1].words in (trained.path / "verdict.txt").read_text()


SAID = {"policy": "safe clone", "gain": 1.0, "expected_return": 3.0, "expected_cost": 4.0}


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (SAID, True),
        ({**SAID, "expected_cost": "4"}, False),  # a file that somebody edited
        ({**SAID, "policy": 7}, False),
        ({"policy": "safe clone"}, False),
        ("safe clone", False),
        (None, False),
    ],
)
def test_the_verdict_names_the_policy_that_its_file_says_was_chosen(trained, said, named):
    artifacts = [replace(a, metadata={**a.metadata, "handed_out": said}) for a in trained.artifacts]
    run = Run(trained.configuration, trained.metrics, [], trained.warnings, artifacts=artifacts)
    assert all(("clone of the log's safe episodes" in verdict.words) == named for verdict in run.verdicts)


def test_a_verdict_does_not_need_the_policy_file(trained, tmp_path):
    copied = shutil.copytree(trained.path, tmp_path / "run")
    for file in copied.glob("policy*.safetensors"):
        file.write_bytes(b"damaged")
    assert Run.load(copied).verdict.judgement == trained.verdict.judgement


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        Run.load(tmp_path)


ESTIMATE = {"value": 1.0, "lower": 0.5, "upper": 1.5}
JUDGEMENT = {"returned": ESTIMATE, "cost": ESTIMATE, "sentence": "", "advice": "", "support": {}, "limit": 3.0}


@pytest.mark.parametrize(
    "damaged", [{**JUDGEMENT, "cost": 3}, {**JUDGEMENT, "returned": {"value": 1.0}}, {"limit": 3.0}, 7]
)
def test_a_judgement_of_which_a_part_is_missing_counts_as_none(damaged):
    assert is_judgement(JUDGEMENT)
    assert not is_judgement(damaged)
