"""Training a behaviour policy can be killed, resumed and repeated."""

import json
import math
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from ringfence.behaviour import train as training
from ringfence.behaviour.segments import NumpyActor
from ringfence.behaviour.train import train_behaviour
from ringfence.deploy import Policy
from ringfence.errors import InvalidSetting, WouldOverwrite
from tests.behaviour.wheel import TASK, Wheel

SMALL = {"steps": 1200, "hidden": (8,), "envs": 2, "segment": 100}
pytestmark = pytest.mark.usefixtures("quick_compilation")


class Killed(Exception):
    pass


def killed_before_second_checkpoint(monkeypatch):
    """At the worst moment: the curve has been written, the checkpoint that goes with it has not."""
    save = training.save_checkpoint

    def save_once(folder, done, *rest):
        if done > 2:
            raise Killed
        save(folder, done, *rest)

    monkeypatch.setattr(training, "save_checkpoint", save_once)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ppo", "cpo"])
def test_a_killed_training_resumes_to_the_same_policy_and_curve(method, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_EVERY", 2)
    whole = train_behaviour(TASK, method, out=tmp_path / "whole", **SMALL)
    with monkeypatch.context() as patch:
        killed_before_second_checkpoint(patch)
        with pytest.raises(Killed):
            train_behaviour(TASK, method, out=tmp_path / "killed", **SMALL)
    resumed = train_behaviour(TASK, method, out=tmp_path / "killed", **SMALL)
    assert Policy.load(resumed).checksum == Policy.load(whole).checksum
    curves = [(path.parent / "curve.jsonl").read_text() for path in (whole, resumed)]
    assert curves[0] == curves[1]
    assert [json.loads(line)["steps"] for line in curves[0].splitlines()] == [200, 400, 600, 800, 1000, 1200]


def test_a_finished_training_is_not_done_again(tmp_path):
    path = train_behaviour(TASK, "ppo", out=tmp_path / "run", **SMALL)
    before = path.stat().st_mtime_ns
    assert train_behaviour(TASK, "ppo", out=tmp_path / "run", **SMALL).stat().st_mtime_ns == before


def test_another_training_or_other_files_are_not_overwritten(tmp_path):
    train_behaviour(TASK, "ppo", out=tmp_path / "run", **SMALL)
    with pytest.raises(WouldOverwrite, match="other settings"):
        train_behaviour(TASK, "ppo", out=tmp_path / "run", seed=1, **SMALL)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("...")
    with pytest.raises(WouldOverwrite, match="not empty"):
        train_behaviour(TASK, "ppo", out=tmp_path / "mine", **SMALL)


@pytest.mark.slow
def test_the_policy_file_is_the_trained_actor_with_its_settings(tmp_path, monkeypatch):
    kept = {}
    original = training.to_policy

    def to_policy(actor, moments, *rest):
        kept["mean"] = NumpyActor.of(actor, moments)
        return original(actor, moments, *rest)

    monkeypatch.setattr(training, "to_policy", to_policy)
    policy = Policy.load(train_behaviour(TASK, "cpo", out=tmp_path / "run", limit=7.0, std=0.25, **SMALL))
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(policy(observations), kept["mean"](observations), rtol=1e-6)
    np.testing.assert_allclose(np.exp(policy.tensors["log_std"]), 0.25)
    stated = {key: policy.metadata[key] for key in ("task", "method", "limit", "std", "seed", "discount")}
    assert stated == {"task": "wheel", "method": "cpo", "limit": 7.0, "std": 0.25, "seed": 0, "discount": 0.99}


@pytest.mark.slow
def test_a_warm_start_takes_over_actor_and_normaliser(tmp_path):
    first = train_behaviour(TASK, "ppo", out=tmp_path / "first", **SMALL)
    still = {**SMALL, "steps": 200, "delta": 1e-12}  # a trust region of nothing: the actor cannot move
    second = train_behaviour(TASK, "cpo", out=tmp_path / "second", warm_start=first.parent, std=0.2, **still)
    observations = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(Policy.load(second)(observations), Policy.load(first)(observations), atol=1e-3)
    assert Policy.load(second).metadata["warm start"] == "first"
    with pytest.raises(InvalidSetting, match="another network"):
        train_behaviour(TASK, "cpo", out=tmp_path / "x", warm_start=first.parent, **{**SMALL, "hidden": (4,)})


class GearedWheel(Wheel):
    """The same wheel, whose torque is the action less 1, over 3."""

    action_space = gymnasium.spaces.Box(-2.0, 4.0, (1,))

    def step(self, action):
        return super().step((action - 1) / 3)


def test_a_policy_uses_the_whole_range_of_actions_of_its_task(tmp_path):
    geared = replace(TASK, name="geared", maker=GearedWheel)
    still = {**SMALL, "steps": 200, "segment": 40, "minibatches": 4}
    plain, scaled = (
        Policy.load(train_behaviour(task, "ppo", out=tmp_path / task.name, **still)) for task in (TASK, geared)
    )
    assert (scaled.artifact.action_low.item(), scaled.artifact.action_high.item()) == (-2, 4)
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(scaled(observations), 1 + 3 * plain(observations), rtol=1e-4)


def test_a_task_whose_actions_have_no_bounds_is_refused(tmp_path):
    class Unbounded(Wheel):
        action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))

    with pytest.raises(InvalidSetting, match="without bounds"):
        train_behaviour(replace(TASK, maker=Unbounded), "ppo", out=tmp_path / "x", **SMALL)
    assert not (tmp_path / "x").exists()


def test_ppo_takes_fewer_rows_than_minibatches(tmp_path):
    few = {"steps": 20, "hidden": (4,), "envs": 1, "segment": 20}
    assert train_behaviour(TASK, "ppo", out=tmp_path / "run", **few).exists()


def test_a_training_of_no_steps_is_refused(tmp_path):
    with pytest.raises(InvalidSetting, match="at least 1, not 0"):
        train_behaviour(TASK, "ppo", out=tmp_path / "x", **{**SMALL, "steps": 0})
    assert not (tmp_path / "x").exists()


def test_unknown_methods_and_settings_are_refused(tmp_path):
    with pytest.raises(InvalidSetting, match="'ppo' or 'cpo'"):
        train_behaviour(TASK, "sac", out=tmp_path / "x")
    with pytest.raises(InvalidSetting, match="no such setting"):
        train_behaviour(TASK, "ppo", out=tmp_path / "x", temperature=1.0)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("setting", [{"limit": math.nan}, {"limit": math.inf}, {"limit": -1.0}, {"std": math.nan}])
def test_limits_and_deviations_that_are_no_positive_numbers_are_refused_before_any_work(tmp_path, setting):
    [(name, value)] = setting.items()
    with pytest.raises(InvalidSetting, match=f"{name} must be a finite number above 0, not {value}"):
        train_behaviour(TASK, "cpo", out=tmp_path / "x", **setting)
    assert not (tmp_path / "x").exists()
