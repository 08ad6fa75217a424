"""Mixed logs: exactly the rows asked for, the same whatever the number of processes."""

import subprocess
import sys

import numpy as np
import pytest

from ringfence.behaviour import collect as collecting
from ringfence.behaviour import datasets
from ringfence.behaviour.collect import collect, collect_dataset, rows_per_source
from ringfence.behaviour.pool import EpisodePool, pack, unpack
from ringfence.data.readers import load_file
from ringfence.deploy import Policy
from ringfence.errors import InvalidSetting, RingfenceError, UnknownName, WouldOverwrite, WrongShape
from ringfence.evaluation import evaluate
from ringfence.tasks import Task
from tests.behaviour.wheel import TASK


def hopper_policy(std, bias=0.0):
    tensors = {
        "actor.0.weight": np.zeros((11, 3)),
        "actor.0.bias": np.full(3, bias),
        "log_std": np.full(3, np.log(std)),
    }
    return Policy.from_tensors(
        "clipped-gaussian", tensors, np.zeros(11), np.ones(11), -np.ones(3), np.ones(3), {"std": std}
    )


@pytest.fixture
def pair():
    return [hopper_policy(0.5), hopper_policy(0.05, bias=0.1)]


def assert_same(one, two):
    columns = ("observations", "actions", "rewards", "costs", "next_observations", "terminations", "truncations")
    for column in (*columns, "source"):
        np.testing.assert_array_equal(getattr(one, column), getattr(two, column))
    assert one.metadata == two.metadata


@pytest.mark.slow
def test_the_number_of_workers_does_not_change_the_log(pair):
    logs = [collect_dataset("hopper-torque", 1500, policies=pair, workers=n, seed=3) for n in (1, 2, 3)]
    assert_same(logs[0], logs[1])
    assert_same(logs[0], logs[2])


def test_every_episode_starts_elsewhere(pair):
    log = collect_dataset("hopper-torque", 600, policies=pair, workers=1)
    starts = log.observations[log.episode_starts]
    assert len(starts) > 8
    assert len(np.unique(starts, axis=0)) == len(starts)


def test_another_seed_gives_another_log(pair):
    logs = [collect_dataset("hopper-torque", 200, policies=pair, workers=1, seed=s) for s in (0, 1)]
    assert not (logs[0].observations == logs[1].observations).any(axis=1).all()


def test_sources_have_exactly_their_shares_and_are_mixed_throughout(pair):
    log = collect_dataset("hopper-torque", 1000, policies=pair, shares=(1, 3), names=["wild", "calm"], workers=1)
    assert len(log) == 1000
    assert log.source_names == ("wild", "calm")
    np.testing.assert_array_equal(np.bincount(log.source), [250, 750])
    half = np.bincount(log.source[:500])
    assert abs(half[0] - 125) < 40


def test_rows_hold_the_executed_action_its_cost_and_the_chain_of_observations(pair):
    log = collect_dataset("hopper-torque", 600, policies=pair, workers=1)
    assert np.abs(log.actions).max() <= 1.0
    np.testing.assert_allclose(log.costs, np.abs(log.actions).mean(1), rtol=1e-5)
    ends = log.terminations | log.truncations
    inside = np.flatnonzero(~ends[:-1])
    np.testing.assert_array_equal(log.next_observations[inside], log.observations[inside + 1])
    assert ends[-1]
    wild = log.actions[log.source == 0]
    assert np.std(wild) > 5 * np.std(log.actions[log.source == 1])


def test_the_last_episode_of_a_share_is_cut_off_as_truncated_not_terminated():
    log = collect_dataset(TASK, 50, policies=[lambda o: np.zeros((len(o), 1))], workers=1)
    np.testing.assert_array_equal(np.flatnonzero(log.truncations), [19, 39, 49])
    assert not log.terminations.any()


def test_a_fall_is_terminated_and_a_time_limit_truncated():
    log = collect_dataset(TASK, 40, policies=[lambda o: np.ones((len(o), 1))], workers=1)
    assert log.terminations[:20].any()
    assert not (log.terminations & log.truncations).any()


def test_a_sampled_episode_of_the_log_is_that_of_an_evaluation(pair):
    """The collector and the evaluation mean the same by a policy's sampled episode."""
    log = collect_dataset("hopper-torque", 300, policies=pair[:1], workers=1, seed=5)
    seed = collecting.episode_seed(5, 0, 0)
    episode = evaluate(pair[0], "hopper-torque", episodes=1, seed=seed, deterministic=False, record=True).episodes[0]
    np.testing.assert_array_equal(log.actions[: len(episode)], episode.actions)


def test_the_file_reads_back_with_its_history(pair, tmp_path):
    paths = [policy.save(tmp_path / f"{name}.safetensors") for policy, name in zip(pair, "ab", strict=True)]
    out = collect("hopper-torque", 200, tmp_path / "log.h5", policies=paths, workers=1, seed=9)
    log = load_file(out)
    assert log.source_names == ("a", "b")
    stated = {key: log.metadata[key] for key in ("task", "seed", "discount", "limit", "cost")}
    assert stated == {"task": "hopper-torque", "seed": 9, "discount": 0.99, "limit": 30.0, "cost": "mean"}
    assert [p["std"] for p in log.metadata["policies"]] == [0.5, 0.05]
    assert [p["sha256"] for p in log.metadata["policies"]] == [p.checksum for p in pair]


def test_nothing_is_overwritten_and_nothing_runs_before_that_is_known(pair, tmp_path, monkeypatch):
    out = tmp_path / "log.h5"
    out.write_text("precious")
    monkeypatch.setattr(collecting, "collect_dataset", lambda *_, **__: pytest.fail("collected"))
    with pytest.raises(WouldOverwrite):
        collect("hopper-torque", 200, out, policies=pair)


def test_progress_reaches_the_size_asked_for(pair):
    seen = []
    collect_dataset("hopper-torque", 300, policies=pair, workers=1, progress=lambda *now: seen.append(now))
    assert seen[-1] == (300, 300)
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("size", "shares", "rows"), [(10, (1, 1), [5, 5]), (7, (1, 1), [4, 3]), (10, (1, 2, 1), [2, 6, 2])]
)
def test_shares_add_up_to_the_size(size, shares, rows):
    assert rows_per_source(size, shares, len(shares)) == rows


def test_requests_that_make_no_sense_are_refused(pair):
    for wrong in (
        {"size": 0},
        {"shares": (1,)},
        {"shares": (1, -1)},
        {"policies": []},
        {"workers": 0},
        {"names": ["a"]},
    ):
        request = {"size": 100, "policies": pair, "workers": 1} | wrong
        with pytest.raises(InvalidSetting):
            collect_dataset("hopper-torque", **request)
    with pytest.raises(InvalidSetting, match="1 names were given for 2 policies"):
        collect_dataset("reactor", 100, names=["a"], workers=1)
    with pytest.raises(WrongShape):
        collect_dataset("halfcheetah-torque", 100, policies=pair, workers=1)
    with pytest.raises(UnknownName, match="hopper-torque"):
        collect_dataset(Task("x", "Pendulum-v1", cost="mean"), 100)


def test_episodes_survive_the_way_between_processes(pair):
    episodes = evaluate(pair[0], "hopper-torque", episodes=3, deterministic=False, record=True).episodes
    for before, after in zip(episodes, unpack(pack(episodes)), strict=True):
        np.testing.assert_array_equal(before.observations, after.observations)
        np.testing.assert_array_equal(before.rewards, after.rewards)
        assert (before.terminated, before.truncated) == (after.terminated, after.truncated)


@pytest.mark.slow
def test_a_worker_that_dies_is_reported(tmp_path):
    pool = EpisodePool("hopper-torque", 1)
    with pytest.raises(RingfenceError, match="a worker process ended"):
        pool.submit(tmp_path / "no such policy", [0]).result()
    pool.close()


@pytest.mark.slow
def test_collecting_works_in_a_script_without_a_main_guard(pair, tmp_path):
    policy = pair[0].save(tmp_path / "policy.safetensors")
    script = tmp_path / "script.py"
    script.write_text(
        "from ringfence.behaviour.collect import collect\n"
        f"collect('hopper-torque', 100, {str(tmp_path / 'log.h5')!r}, policies=[{str(policy)!r}], workers=2)\n"
    )
    subprocess.run([sys.executable, script], check=True)
    assert len(load_file(tmp_path / "log.h5")) == 100


def test_a_built_in_dataset_is_made_once_and_kept(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("RINGFENCE_CACHE", str(tmp_path))
    shipped = dict(zip(("unsafe", "safe"), pair, strict=True))
    monkeypatch.setattr(collecting, "shipped_policy", lambda task, behaviour: shipped[behaviour])
    monkeypatch.setattr(datasets, "shipped_policy", lambda task, behaviour: shipped[behaviour])
    path = datasets.builtin_dataset("hopper-torque", 120, workers=1)
    assert path.is_relative_to(tmp_path)
    assert len(load_file(path)) == 120
    written = path.stat().st_mtime_ns
    assert datasets.builtin_dataset("hopper-torque", 120).stat().st_mtime_ns == written
    others = [datasets.dataset_path("hopper-torque", 120, seed=1), datasets.dataset_path("hopper-torque", 121)]
    shipped["safe"] = hopper_policy(0.06)
    others.append(datasets.dataset_path("hopper-torque", 120))
    assert len({path, *others}) == 4


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("RINGFENCE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert datasets.cache_directory() == tmp_path / "ringfence"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert datasets.cache_directory() == tmp_path / "home" / ".cache" / "ringfence"


def test_an_unknown_dataset_lists_those_there_are():
    with pytest.raises(UnknownName, match="walker2d-torque"):
        datasets.builtin_dataset("ant-torque")
