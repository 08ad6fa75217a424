"""The loop: populations, limits as data, resuming, stopping."""

import json
import shutil
from dataclasses import fields
from typing import get_args, get_type_hints

import numpy as np
import pytest

import ringfence
from ringfence import CBPL, CPQ
from ringfence.algorithms import METHODS
from ringfence.errors import CheckpointError, InvalidSetting, NonFiniteLoss, WouldOverwrite
from ringfence.training import Member, Plan, RunDirectory, run
from ringfence.training.checkpoint import steps_saved
from ringfence.training.rundir import policy_file
from tests.logs import narrow_log

LOG = narrow_log(rows=600)
TINY = CPQ(hidden=(8, 8), batch_size=16, cvae_steps=20, ood_samples=3)
SCHEDULE = {"log_every": 10, "evaluate_every": 20, "checkpoint_every": 10}
pytestmark = pytest.mark.usefixtures("quick_compilation")


def plan(members=((0, 5.0),), steps=40, method=TINY):
    return Plan(method, tuple(Member(*m) for m in members), steps, **SCHEDULE)


def numbers(result):
    return result.metrics


def same_tensors(a, b):
    return all(np.array_equal(a.tensors[name], b.tensors[name]) for name in a.tensors)


def test_the_same_seed_gives_the_same_numbers_and_another_seed_gives_others():
    first, again = (run(LOG, plan(), progress=False) for _ in range(2))
    other = run(LOG, plan(members=((1, 5.0),)), progress=False)
    assert numbers(first) == numbers(again)
    assert same_tensors(first.policy, again.policy)
    assert not same_tensors(first.policy, other.policy)


def test_the_numbers_do_not_depend_on_how_the_steps_are_cut_into_calls(monkeypatch):
    first = run(LOG, plan(), progress=False)
    monkeypatch.setattr("ringfence.training.loop.CHUNK_SECONDS", 1e-9)
    assert numbers(run(LOG, plan(), progress=False)) == numbers(first)


def test_a_population_of_seeds_and_limits_gives_what_its_members_give_alone():
    members = ((0, 5.0), (1, 2.0))
    together = run(LOG, plan(members=members), progress=False)
    for i, member in enumerate(members):
        alone = run(LOG, plan(members=(member,)), progress=False)
        for name, tensor in alone.policy.tensors.items():
            np.testing.assert_allclose(together.policies[i].tensors[name], tensor, rtol=1e-3, atol=2e-4)
        mine = [row for row in together.metrics if (row["seed"], row["limit"]) == member]
        for a, b in zip(mine, alone.metrics, strict=True):
            assert a["overall_step"] == b["overall_step"]
            if "qc_data" in a:
                assert a["qc_data"] == pytest.approx(b["qc_data"], rel=1e-2, abs=1e-3)


def test_another_limit_is_other_data_for_the_same_program():
    from ringfence.training.population import compile_programs

    run(LOG, plan(), progress=False)
    before = compile_programs.cache_info().misses
    run(LOG, plan(members=((0, 1.0),)), progress=False)
    assert compile_programs.cache_info().misses == before


def test_metrics_show_what_can_go_wrong():
    row = run(LOG, plan(), progress=False).metrics[-1]
    wanted = "indicator ood_rate alpha kl_data kl_policy qr_data qr_policy qc_data qc_policy sample_cost_to_go"
    assert set(wanted.split()) <= set(row)


def test_evaluations_happen_on_schedule_with_the_policy_so_far():
    seen = []

    def evaluate(policy, member):
        seen.append((member, policy(np.zeros(3)).shape))
        return {"return": 1.0, "discounted_cost": 2.0}

    result = run(LOG, plan(steps=50), evaluate=evaluate, progress=False)
    assert [row["step"] for row in result.evaluations] == [20, 40, 50]
    assert seen == [(Member(0, 5.0), (2,))] * 3


# Files


def test_a_run_directory_tells_its_story(tmp_path):
    out = tmp_path / "run"
    result = ringfence.train(LOG, TINY, limits=[5.0], steps=20, seeds=(0, 1), out=out, progress=False, log_every=10)
    config = json.loads((out / "config.json").read_text())
    assert config["method"] == "cpq"
    assert config["members"] == [[0, 5.0], [1, 5.0]]
    assert config["log"]["fingerprint"] == LOG.fingerprint
    assert set(config["versions"]) >= {"ringfence", "jax", "numpy", "python"}
    assert len((out / "metrics.jsonl").read_text().splitlines()) == len(result.metrics)
    for seed, policy in enumerate(result.policies):
        loaded = ringfence.Policy.load(out / f"policy-seed{seed}.safetensors")
        assert same_tensors(loaded, policy)
        assert loaded.metadata["limit"] == 5.0
        assert loaded.metadata["seed"] == seed


def test_nothing_that_exists_is_overwritten(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("precious")
    with pytest.raises(WouldOverwrite, match="choose another --out"):
        ringfence.train(LOG, TINY, limits=[5.0], steps=5, out=tmp_path / "run", progress=False)
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["thesis.txt"]


class Killed(Exception):
    pass


def killed_at(step):
    """An observer that ends the run as a kill would, at a line of metrics."""

    def observe(row):
        if row["overall_step"] == step:
            raise Killed

    return observe


def start(path, **options):
    directory = RunDirectory(path)
    with directory.locked():
        directory.create(plan().configuration(LOG))
    return run(LOG, plan(), directory=directory, progress=False, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    return path, start(path)


@pytest.mark.parametrize("step", [10, 20, 30, 60])
def test_a_killed_run_resumes_to_the_numbers_of_one_that_was_not(tmp_path, whole, step):
    with pytest.raises(Killed):
        start(tmp_path / "run", observe=killed_at(step))
    resumed = run(LOG, plan(), directory=RunDirectory(tmp_path / "run"), resume=True, progress=False)
    assert same_tensors(resumed.policy, whole[1].policy)
    assert numbers(resumed) == numbers(whole[1])
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == (whole[0] / "metrics.jsonl").read_text()


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_with_a_warning(tmp_path, whole):
    with pytest.raises(Killed):
        start(tmp_path / "run", observe=killed_at(50))
    folder = tmp_path / "run" / "checkpoints"
    newest = folder / f"step-{steps_saved(folder)[-1]:09d}.safetensors"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match="checksum"):
        resumed = run(LOG, plan(), directory=RunDirectory(tmp_path / "run"), resume=True, progress=False)
    assert same_tensors(resumed.policy, whole[1].policy)


def test_checkpoints_that_are_all_damaged_are_an_error_and_nothing_is_lost(tmp_path):
    start(tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("*.json"):
        file.write_text("{")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(CheckpointError, match="damaged"):
        run(LOG, plan(), directory=RunDirectory(tmp_path / "run"), resume=True, progress=False)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path):
    start(tmp_path / "run")
    other = plan(method=CPQ(hidden=(9,), batch_size=16, cvae_steps=20, ood_samples=3))
    with pytest.raises(CheckpointError, match=r"belongs to another run: hyperparameters.hidden is \[8, 8\], not \[9\]"):
        run(LOG, other, directory=RunDirectory(tmp_path / "run"), resume=True, progress=False)


def test_only_the_newest_two_checkpoints_are_kept(whole):
    assert steps_saved(whole[0] / "checkpoints") == [50, 60]


def test_resuming_through_the_api_needs_the_same_log(tmp_path):
    ringfence.save(LOG, tmp_path / "log.npz")
    out = tmp_path / "run"
    ringfence.train(tmp_path / "log.npz", TINY, limits=[5.0], steps=20, out=out, progress=False)
    assert ringfence.resume(out, progress=False).policy(np.zeros(3)).shape == (2,)
    shutil.move(tmp_path / "log.npz", tmp_path / "old.npz")
    ringfence.save(narrow_log(rows=600, seed=1), tmp_path / "log.npz")
    with pytest.raises(CheckpointError, match="fingerprint"):
        ringfence.resume(out, progress=False)


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ringfence.resume(tmp_path)


# Stopping


def test_a_loss_that_is_not_finite_stops_the_run_before_it_is_saved(tmp_path):
    explosive = CPQ(hidden=(8, 8), batch_size=16, cvae_steps=20, ood_samples=3, learning_rate=1e30)
    directory = RunDirectory(tmp_path / "run")
    with directory.locked():
        directory.create(plan(method=explosive).configuration(LOG))
    with pytest.raises(NonFiniteLoss, match="NaN or infinite"):
        run(LOG, plan(method=explosive), directory=directory, progress=False)
    assert steps_saved(directory.checkpoints) == []


def test_an_interrupt_saves_and_the_run_can_go_on(tmp_path, whole):
    import os
    import signal

    def interrupt(row):
        if row["overall_step"] == 30:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = start(tmp_path / "run", observe=interrupt)
    assert stopped.interrupted
    resumed = run(LOG, plan(), directory=RunDirectory(tmp_path / "run"), resume=True, progress=False)
    assert not resumed.interrupted
    assert same_tensors(resumed.policy, whole[1].policy)


# Requests that make no sense


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"steps": 0}, "steps"),
        ({"seeds": ()}, "at least one seed"),
        ({"seeds": (1, 1)}, "twice"),
        ({"holdout": 1 - 1e-9}, "holdout is a share"),
        ({"holdout": "half"}, "holdout is a share"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(settings, word):
    with pytest.raises(InvalidSetting, match=word):
        ringfence.train(LOG, TINY, limits=[5.0], progress=False, **settings)


def test_training_without_a_limit_is_refused():
    with pytest.raises(InvalidSetting, match="limit"):
        ringfence.train(LOG, TINY, steps=5, progress=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"discount": 1.0},
        {"batch_size": 0},
        {"episode_end": "later"},
        {"anchor": -1},
        {"limit": -3.0},
        {"recovery_weight": float("nan")},
        {"hidden": 5},
        {"hidden": (8.5,)},
        {"hidden": (0,)},
        {"batch_size": 8.5},
        {"restart": 1},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(settings):
    with pytest.raises(InvalidSetting, match=next(iter(settings))):
        (CBPL if "restart" in settings else CPQ)(**settings)


@pytest.mark.parametrize("name", METHODS)
def test_no_setting_of_any_method_can_be_nan_or_infinite(name):
    """Every field that holds a number, found by its type: a new one is covered without being told."""
    hints = get_type_hints(METHODS[name])
    numbers = [f.name for f in fields(METHODS[name]) if float in (hints[f.name], *get_args(hints[f.name]))]
    assert "learning_rate" in numbers
    for field in numbers:
        for value in (float("nan"), float("inf"), -float("inf")):
            with pytest.raises(InvalidSetting, match=field):
                METHODS[name](**{field: value})


def test_policy_files_are_named_by_what_tells_them_apart():
    a, b, c = Member(0, 5.0), Member(1, 5.0), Member(0, 7.5)
    assert policy_file(a, [a]) == "policy.safetensors"
    assert policy_file(b, [a, b]) == "policy-seed1.safetensors"
    assert policy_file(c, [a, c]) == "policy-limit7.5.safetensors"
