"""Exported policies act as the policy does."""

import ctypes
import json
import subprocess
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from tests.deploy.artifacts import NETWORKS, SCORES, random_artifact, random_observations

from ringfence.cli import main
from ringfence.deploy import Artifact, Network, Policy
from ringfence.deploy.export import export
from ringfence.errors import InvalidSetting, MissingExtra, UnknownName, WouldOverwrite

LIMITED = [
    Network("actor", ("observation", "limit"), "tanh-gaussian", layer_norm=True),
    Network("cost", ("action", "limit", "observation"), "value"),
    SCORES[0],
]
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
every_kind = pytest.mark.parametrize("kind", NETWORKS)


def onnx_session(artifact, folder):
    (path,) = export(artifact, "onnx", folder / "policy.onnx")
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(session, observations, **inputs):
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"observation": observations, **inputs}), strict=True))


def compiled(artifact, folder, name="policy", **options):
    export(artifact, "c", folder / f"{name}.c", **options)
    library = folder / f"{name}.so"
    subprocess.run(
        ["cc", *STRICT, "-O1", "-shared", "-fPIC", "-o", library, folder / f"{name}.c", "-lm"], check=True, timeout=60
    )
    return ctypes.CDLL(str(library))


def pointer(array):
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def act_in_c(library, observations, actions=2):
    found = np.empty((len(observations), actions), np.float32)
    for row, out in zip(observations, found, strict=True):
        assert library.ringfence_act(pointer(row), pointer(out)) == 0
    return found


def scores_in_c(library, observations, actions):
    found = np.empty((len(observations), 2), np.float32)
    for row, action, out in zip(observations, actions, found, strict=True):
        assert library.ringfence_scores(pointer(row), pointer(action), pointer(out)) == 0
    return found


def assert_same_actions(found, artifact, observations):
    """Within 1e-5 of the range. Where two candidates of a policy that chooses among them are worth the same to float32,
    either is right."""
    expected = Policy(artifact)(observations)
    wrong = np.abs(found - expected).max(1) > 1e-5 * (artifact.action_high - artifact.action_low).max()
    if artifact.kind in ("bcq", "bear"):
        assert wrong.sum() <= max(1, len(wrong) // 1000)
        value = [
            artifact.evaluate("reward_1", observations, a) - 0.7 * artifact.evaluate("cost", observations, a)
            for a in (found, expected)
        ]
        wrong &= np.abs(value[0] - value[1]) > 1e-5
    assert not wrong.any()


# ONNX


@every_kind
def test_onnx_acts_and_scores_like_the_policy_in_batches_and_alone(kind, tmp_path):
    artifact, observations = random_artifact(kind, SCORES), random_observations(300)
    session = onnx_session(artifact, tmp_path)
    found = run(session, observations)
    assert_same_actions(found["action"], artifact, observations)
    for name, expected in (
        ("detector_score", artifact.detector_score(observations, found["action"])),
        ("cost_to_go", artifact.cost_to_go(observations, found["action"])),
    ):
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)
    alone = run(session, observations[7:8])
    for name, values in found.items():
        np.testing.assert_allclose(alone[name], values[7:8], rtol=1e-5, atol=1e-5)


def test_onnx_gives_no_scores_where_the_artifact_has_none(tmp_path):
    session = onnx_session(random_artifact("tanh-gaussian"), tmp_path)
    assert [output.name for output in session.get_outputs()] == ["action"]


def test_onnx_gives_how_the_columns_go_together_and_its_threshold(tmp_path):
    """(s - centre)' W W' (s - centre) of normalised observations, worked out here by the matrix and not by its root."""
    rng = np.random.default_rng(3)
    centre, root = rng.normal(size=4), rng.normal(size=(4, 4))
    reference = {"guard_centre": centre, "guard_whitening": root, "guard_distance": [13.0]}
    artifact = random_artifact("tanh-gaussian", SCORES, tensors=reference)
    observations, session = random_observations(50), onnx_session(artifact, tmp_path)
    away = (observations - artifact.observation_mean) / artifact.observation_std - centre
    expected = np.einsum("bi,ij,bj->b", away, root @ root.T, away)
    np.testing.assert_allclose(run(session, observations)["together"], expected, rtol=1e-4, atol=1e-5)
    assert [output.name for output in session.get_outputs()] == ["action", "detector_score", "cost_to_go", "together"]
    assert float(session.get_modelmeta().custom_metadata_map["together_threshold"]) == 13.0


def test_onnx_takes_the_limit_as_an_input_with_a_default(tmp_path):
    artifact = random_artifact("tanh-gaussian", LIMITED, limit=20.0, limit_range=(10.0, 30.0))
    observations, session = random_observations(20), onnx_session(artifact, tmp_path)
    for limit in (20.0, 28.0):
        given = {} if limit == 20.0 else {"limit": np.array([limit], np.float32)}
        found = run(session, observations, **given)
        np.testing.assert_allclose(found["action"], Policy(artifact)(observations, limit=limit), atol=1e-5)
        expected = artifact.cost_to_go(observations, found["action"], limit=limit)
        np.testing.assert_allclose(found["cost_to_go"], expected, atol=1e-5)
    assert np.abs(Policy(artifact)(observations, limit=28.0) - Policy(artifact)(observations)).max() > 1e-3
    beyond = run(session, observations, limit=np.array([99.0], np.float32))["action"]
    np.testing.assert_allclose(beyond, Policy(artifact)(observations, limit=30.0), atol=1e-5)


def test_onnx_keeps_names_and_metadata(tmp_path):
    names = ("speed [m/s]", "grade", "<b>", "x")
    artifact = random_artifact(
        "tanh-gaussian", SCORES, observation_names=names, limit=12.5, seed=3, metadata={"log": "plant"}
    )
    kept = onnx_session(artifact, tmp_path).get_modelmeta().custom_metadata_map
    assert json.loads(kept["observation_names"]) == list(names)
    assert json.loads(kept["metadata"]) == {"log": "plant"}
    assert float(kept["limit"]) == 12.5
    assert float(kept["detector_threshold"]) == 2.5
    assert kept["checksum"] == artifact.checksum


def test_the_same_artifact_gives_the_same_bytes(tmp_path):
    artifact = random_artifact("bcq", SCORES)
    first, second = (export(artifact, "onnx", tmp_path / name)[0].read_bytes() for name in ("a.onnx", "b.onnx"))
    assert first == second


# C


@every_kind
def test_c_compiles_without_warnings_and_acts_like_the_policy_on_10_000_observations(kind, tmp_path):
    artifact, observations = random_artifact(kind, SCORES), random_observations(10_000)
    library = compiled(artifact, tmp_path)
    actions = act_in_c(library, observations)
    assert_same_actions(actions, artifact, observations)
    few = slice(0, 1000)
    found = scores_in_c(library, observations[few], actions[few])
    expected = artifact.detector_score(observations[few], actions[few])
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5, atol=1e-5)
    expected = artifact.cost_to_go(observations[few], actions[few])
    np.testing.assert_allclose(found[:, 1], expected, rtol=1e-5, atol=1e-5)


def test_c_takes_another_limit_where_the_policy_does(tmp_path):
    artifact = random_artifact("tanh-gaussian", (*SCORES, *LIMITED), limit=20.0, limit_range=(10.0, 30.0))
    observations, library = random_observations(50), compiled(artifact, tmp_path)
    np.testing.assert_allclose(act_in_c(library, observations), Policy(artifact)(observations), atol=1e-5)
    out, scores = np.empty(2, np.float32), np.empty(2, np.float32)
    for row in observations:
        library.ringfence_act_limit(pointer(row), ctypes.c_float(13.0), pointer(out))
        np.testing.assert_allclose(out, Policy(artifact)(row, limit=13.0), atol=1e-5)
        library.ringfence_scores_limit(pointer(row), pointer(out), ctypes.c_float(13.0), pointer(scores))
        np.testing.assert_allclose(scores[1], artifact.cost_to_go(row, out, limit=13.0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(scores_in_c(library, [row], [out])[0, 1], artifact.cost_to_go(row, out), rtol=1e-5)
    other = compiled(artifact, tmp_path, "other", limit=13.0)
    np.testing.assert_allclose(act_in_c(other, observations), Policy(artifact)(observations, limit=13.0), atol=1e-5)


def test_c_answers_a_nan_with_the_middle_of_the_range_and_a_status(tmp_path):
    library, out = compiled(random_artifact("tanh-gaussian", SCORES), tmp_path), np.zeros(2, np.float32)
    row = np.array([1.0, np.nan, 300.0, 0.0], np.float32)
    assert library.ringfence_act(pointer(row), pointer(out)) == 1
    np.testing.assert_array_equal(out, [1.0, 11.0])
    assert library.ringfence_scores(pointer(row), pointer(out), pointer(out)) == 1


@every_kind
def test_c_never_sends_nan_when_the_numbers_leave_float32(kind, tmp_path):
    """A sensor that shows 3e38 is finite; divided by a deviation of 0.5 it is not, and networks make NaN of it."""
    library, out = compiled(random_artifact(kind, SCORES), tmp_path), np.zeros(2, np.float32)
    scores, row = np.full(2, 7.0, np.float32), np.full(4, 3e38, np.float32)
    assert library.ringfence_act(pointer(row), pointer(out)) == 1
    assert out.tolist() == [1.0, 11.0]
    assert library.ringfence_scores(pointer(row), pointer(out), pointer(scores)) == 1
    assert scores.tolist() == [7.0, 7.0]  # NaN would be below every threshold


def test_relu_in_c_keeps_the_nan_of_a_layer_that_overflows(tmp_path):
    """The first two columns of the first layer are 3e38 of an input of 198: infinity. The second layer subtracts one from
    the other: NaN, in Python and so in C, where it must not come out as a quiet 0."""
    first, second = np.zeros((4, 2)), np.array([[1.0, 0.0], [-1.0, 0.0]])
    first[0] = 3e38
    layers = {
        "actor.0.weight": first,
        "actor.0.bias": np.zeros(2),
        "actor.1.weight": second,
        "actor.1.bias": np.zeros(2),
    }
    layers |= {"actor.2.weight": np.ones((2, 4)), "actor.2.bias": np.zeros(4)}
    artifact = random_artifact("tanh-gaussian", hidden=(2, 2), tensors=layers)
    row, out = np.array([100.0, 0.0, 300.0, 0.0], np.float32), np.zeros(2, np.float32)
    with np.errstate(all="ignore"):
        assert np.isnan(artifact.act(row[None])).all()
    assert compiled(artifact, tmp_path).ringfence_act(pointer(row), pointer(out)) == 1
    assert out.tolist() == [1.0, 11.0]


@pytest.mark.parametrize("kind", ["bcq", "bear"])
def test_c_does_not_choose_by_values_that_are_no_numbers(kind, tmp_path):
    critic = {"cost.2.weight": np.full((16, 1), 3e38), "cost.2.bias": np.full(1, -3e38)}
    library, out = compiled(random_artifact(kind, tensors=critic), tmp_path), np.zeros(2, np.float32)
    assert library.ringfence_act(pointer(random_observations(1)[0]), pointer(out)) == 1
    assert out.tolist() == [1.0, 11.0]


def test_a_name_that_utf8_cannot_hold_does_not_stop_the_export(tmp_path):
    """A lone surrogate, as a file with another encoding leaves it, is a question mark in C."""
    artifact = random_artifact("tanh-gaussian", observation_names=("a\udce9b", "b", "c", "d"))
    kept = (ctypes.c_char_p * 4).in_dll(compiled(artifact, tmp_path), "ringfence_observation_names")
    assert kept[0] == b"a?b"


def test_no_name_can_escape_into_the_c_code(tmp_path):
    """Comments, strings, trigraphs and line continuations are all tried; the names come out as they went in."""
    names = ('*/ int x; /*"', "a\\\nb", "??/", "Druck [bar] µ")
    artifact = random_artifact("tanh-gaussian", observation_names=names, metadata={"*/": "*/ #error ??/\n"})
    library = compiled(artifact, tmp_path)
    kept = (ctypes.c_char_p * 4).in_dll(library, "ringfence_observation_names")
    assert tuple(text.decode() for text in kept) == names


def test_c_holds_one_layer_networks_and_layer_norm_with_tanh(tmp_path):
    for name, actor, hidden in (
        ("flat", Network("actor", ("observation",), "tanh-gaussian"), ()),
        ("deep", Network("actor", ("observation",), "tanh-gaussian", activation="tanh", layer_norm=True), (7, 9, 5)),
    ):
        artifact = random_artifact("tanh-gaussian", (actor,), hidden=hidden)
        found = act_in_c(compiled(artifact, tmp_path, name), random_observations(100))
        np.testing.assert_allclose(found, Policy(artifact)(random_observations(100)), atol=2e-5)
        found = run(onnx_session(artifact, tmp_path / name), random_observations(100))["action"]
        np.testing.assert_allclose(found, Policy(artifact)(random_observations(100)), atol=2e-5)


# The verb


@pytest.mark.parametrize(("to", "files"), [("onnx", ["policy.onnx"]), ("c", ["policy.c", "policy.h"])])
def test_the_verb_writes_beside_the_policy_and_overwrites_only_when_told(to, files, tmp_path, capsys):
    path = random_artifact("tanh-gaussian").save(tmp_path / "policy.safetensors")
    assert main(["export", str(path), "--to", to]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*files, "policy.safetensors"])
    assert main(["export", str(path), "--to", to]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["export", str(path), "--to", to, "--overwrite"]) == 0


def test_an_export_into_a_directory_has_the_policys_name(tmp_path):
    path = random_artifact("tanh-gaussian").save(tmp_path / "mine.safetensors")
    (tmp_path / "controller").mkdir()
    found = export(path, "c", tmp_path / "controller")
    assert sorted(found) == [tmp_path / "controller" / "mine.c", tmp_path / "controller" / "mine.h"]
    assert '#include "mine.h"' in found[found.index(tmp_path / "controller" / "mine.c")].read_text()
    assert export(Artifact.load(path), "onnx", tmp_path / "controller") == [tmp_path / "controller" / "policy.onnx"]


@pytest.mark.parametrize("name", ['a"b.c', "a\nb.c"])
def test_a_file_name_that_c_cannot_include_is_refused(name, tmp_path):
    with pytest.raises(InvalidSetting, match="cannot be included"):
        export(random_artifact("tanh-gaussian"), "c", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_says_why(tmp_path, monkeypatch):
    policy = random_artifact("tanh-gaussian", SCORES)
    values = replace(policy, kind="values")
    with pytest.raises(InvalidSetting, match="holds values and no policy"):
        export(values, "c", tmp_path / "x.c")
    with pytest.raises(UnknownName, match="there are onnx, c"):
        export(policy, "tflite")
    with pytest.raises(InvalidSetting, match="cannot be given a limit"):
        export(policy, "c", tmp_path / "x.c", limit=3.0)
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"ringfence\[export\]"):
        export(policy, "onnx", tmp_path / "x.onnx")
    (tmp_path / "x.h").write_text("precious")
    with pytest.raises(WouldOverwrite):
        export(policy, "c", tmp_path / "x.c")
    assert isinstance(policy, Artifact)
    assert not (tmp_path / "x.c").exists()
