"""One training for every limit: what `CPQ(limits=...)` promises from the log to the controller."""

import ctypes
import subprocess
from functools import lru_cache

import numpy as np
import pytest

import ringfence
from ringfence.deploy import Policy
from ringfence.deploy.export import export
from ringfence.errors import InvalidSetting
from ringfence.evaluation.ope.judge import judge
from ringfence.training import RunDirectory
from tests.algorithms.test_contract import LOG, OBSERVATIONS, SHARED, Kill, strength

LIMITS = (0.5, 1.5)
METHOD = ringfence.CPQ(limits=LIMITS, **{**SHARED, **ringfence.CPQ.small})
SCHEDULE = {"log_every": 50, "checkpoint_every": 80, "progress": False}
pytestmark = pytest.mark.usefixtures("quick_compilation")


@lru_cache
def trained(steps=1200, seeds=(0,)):
    return ringfence.train(LOG, METHOD, steps=steps, seeds=seeds, **SCHEDULE)


def test_one_training_gives_a_policy_that_does_more_the_more_is_allowed():
    """A step costs its strength u; for ever that is 2 u at a discount of 1/2, so that a limit of 2 u allows u."""
    policy = trained().policy
    strengths = [strength(policy(OBSERVATIONS, limit=limit)).mean() for limit in (0.5, 1.0, 1.5)]
    assert strengths == sorted(strengths)
    assert strengths[2] - strengths[0] > 0.15
    assert strengths[0] < 0.45


def test_a_policy_for_a_range_must_be_told_its_limit_and_refuses_others():
    policy = trained().policy
    assert policy.artifact.limit is None
    with pytest.raises(InvalidSetting, match=r"every limit from 0.5 to 1.5: say which"):
        policy(OBSERVATIONS)
    with pytest.raises(InvalidSetting, match=r"between 0.5 and 1.5"):
        policy(OBSERVATIONS, limit=2.0)
    with pytest.raises(InvalidSetting, match=r"between 0.5 and 1.5"):
        policy.at_limit(float("nan"))
    set_once = policy.at_limit(0.7)
    np.testing.assert_array_equal(set_once(OBSERVATIONS), policy(OBSERVATIONS, limit=0.7))
    assert set_once.metadata["limit"] == 0.7
    asked, own = (artifact.cost_to_go(OBSERVATIONS, **how) for artifact, how in (
        (policy.artifact, {"limit": 0.7}), (set_once.artifact, {})))  # fmt: skip
    np.testing.assert_array_equal(asked, own)


def test_it_is_watched_at_the_middle_or_where_it_is_told_inside_the_range():
    assert trained().members == ((0, 1.0),)
    with pytest.raises(InvalidSetting, match="outside the method's range"):
        ringfence.train(LOG, METHOD, steps=1, limits=[2.0], progress=False)


def test_its_run_remembers_the_range_and_resumes_to_the_same_numbers(tmp_path):
    from ringfence.training import Plan, run

    whole = trained(160)
    plan = Plan(METHOD, whole.members, 160, log_every=50, checkpoint_every=80)
    directory = RunDirectory(tmp_path / "run")
    configuration = plan.configuration(LOG, extras=whole.configuration.extras)  # a policy names its run
    directory.create(configuration)

    def kill(row):
        if row["stage"] == "policy" and row["step"] == 150:
            raise Kill

    with pytest.raises(Kill):
        run(LOG, plan, directory=directory, configuration=configuration, progress=False, observe=kill)
    resumed = ringfence.resume(tmp_path / "run", LOG, progress=False)
    assert resumed.configuration.settings["limits"] == [0.5, 1.5]
    assert resumed.policy.checksum == whole.policy.checksum
    assert Policy.load(tmp_path / "run" / "policy.safetensors").artifact.limit_range == LIMITS


@pytest.mark.slow
def test_two_seeds_in_one_program_give_the_policies_of_two_runs():
    together = trained(160, (0, 1))
    for policy, seed in zip(together.policies, (0, 1), strict=True):
        alone = trained(160, (seed,)).policy
        np.testing.assert_allclose(policy(OBSERVATIONS, limit=0.7), alone(OBSERVATIONS, limit=0.7), atol=0.02)


def test_it_is_judged_and_guarded_at_the_limit_that_is_given():
    policy = trained().policy
    low, high = (judge(policy, LOG, limit=limit, discount=0.5).cost.value for limit in LIMITS)
    assert low < high
    with pytest.raises(InvalidSetting, match="say which"):
        judge(policy, LOG, discount=0.5)
    with pytest.raises(InvalidSetting, match="say which"):
        ringfence.Guard(policy, fallback=[0.0, 0.1])
    guard = ringfence.Guard(policy, fallback=[0.0, 0.1], limit=1.0, rules={"detector": None, "range": None})
    row = OBSERVATIONS[0]
    np.testing.assert_allclose(guard(row), policy(row, limit=1.0), rtol=1e-5)
    # 0.45 of 1 are spent, and the next cost counts half: what is left is as much as 1.1 from here on
    np.testing.assert_allclose(guard(row, cost=0.45), policy(row, limit=1.1), rtol=1e-5)


def test_it_is_exported_to_onnx_and_c_with_the_limit_as_an_input(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = trained().policy
    with pytest.raises(InvalidSetting, match="say which"):
        export(policy.artifact, "onnx", tmp_path / "none.onnx")
    session = onnxruntime.InferenceSession(export(policy.artifact, "onnx", tmp_path / "p.onnx", limit=1.0)[0])
    for limit, given in ((1.0, {}), (1.4, {"limit": np.array([1.4], np.float32)})):
        action, cost = session.run(["action", "cost_to_go"], {"observation": OBSERVATIONS, **given})
        np.testing.assert_allclose(action, policy(OBSERVATIONS, limit=limit), atol=1e-5)
        expected = policy.artifact.cost_to_go(OBSERVATIONS, action, limit=limit)
        np.testing.assert_allclose(cost.ravel(), expected, atol=1e-4)
    export(policy.artifact, "c", tmp_path / "p.c", limit=1.0)
    shared = tmp_path / "p.so"
    subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "p.c", "-lm", "-o", shared],
                   cwd=tmp_path, check=True)  # fmt: skip
    library, out = ctypes.CDLL(str(shared)), np.empty(2, np.float32)
    floats = ctypes.POINTER(ctypes.c_float)
    library.ringfence_act_limit.argtypes = (floats, ctypes.c_float, floats)
    for row in OBSERVATIONS[:5]:
        library.ringfence_act_limit(row.ctypes.data_as(floats), 0.6, out.ctypes.data_as(floats))
        np.testing.assert_allclose(out, policy(row, limit=0.6), atol=1e-5)
