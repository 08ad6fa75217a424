"""What training leaves: each network described once, checked, and the same file for the same content."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save
from tests.deploy.artifacts import SCORES, random_artifact, random_observations
from tests.logs import narrow_log

import ringfence
from ringfence.algorithms import CPQ
from ringfence.deploy import KINDS, Artifact, Network, Policy
from ringfence.deploy.artifact_file import header_of, tensors_of
from ringfence.deploy.network import outputs
from ringfence.deploy.single import single_actor
from ringfence.errors import ForeignPolicy, InvalidSetting, NonFiniteValue, RingfenceError, UnknownName, WrongShape
from ringfence.files import digest
from ringfence.networks import CVAE, Critic, TanhGaussianActor, describe_cvae
from ringfence.training import Member, Plan, run
from ringfence.training.artifact import described_networks, scaled_artifact
from ringfence.training.device import spec_of, to_device

MEAN, STD = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0])
LOW, HIGH = np.array([-1.0, 0.0]), np.array([1.0, 4.0])
LOG = narrow_log(300, low=-2.0, high=6.0)
METHOD = CPQ(hidden=(16, 8), batch_size=16, cvae_steps=3, ood_samples=3)
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def trained(quick_compilation):
    return run(LOG, Plan(METHOD, (Member(4, 7.0),), 6, log_every=6), progress=False)


@pytest.fixture(scope="module")
def artifact(trained):
    return trained.artifacts[0]


@pytest.fixture(scope="module")
def state():
    """The state that a trained run would have: fresh networks will do."""
    return METHOD.init(jax.random.key(3), jnp.asarray(7.0), spec_of(LOG))


def rows(count=30, seed=0):
    rng = np.random.default_rng(seed)
    return LOG.observations[:count], rng.uniform(-2, 6, (count, 2)).astype(np.float32)


# One description


MODULES = {
    "critic": Critic(3, 2, (16, 8), scale=64.0, start=20.0, key=jax.random.key(0)),
    "normalised": Critic(3, 2, (16, 8), normalise=True, scale=0.5, key=jax.random.key(1)),
    "actor": TanhGaussianActor(3, 2, (16,), key=jax.random.key(2)),
    **describe_cvae(CVAE(3, 2, 4, (16, 8), key=jax.random.key(3))),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_a_network_and_its_description_compute_the_same(name, xp):
    networks, tensors = described_networks(MODULES)
    rng = np.random.default_rng(0)
    s, a, z = (rng.normal(size=(20, width)).astype(np.float32) for width in (3, 2, 4))
    inputs = {"observation": s, "action": a, "latent": z}
    found = outputs(networks[name], tensors, np.concatenate([inputs[i] for i in networks[name].inputs], -1), xp)
    cvae = CVAE(3, 2, 4, (16, 8), key=jax.random.key(3))
    expected = {
        "critic": lambda: MODULES["critic"](s, a),
        "normalised": lambda: MODULES["normalised"](s, a),
        "actor": lambda: MODULES["actor"](s),
        "encoder": lambda: cvae.encode(s, a),
        "decoder": lambda: cvae.decode(s, z),
    }[name]()
    for ours, theirs in zip(jax.tree.leaves(tuple(found)), jax.tree.leaves(tuple(expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_log_std_of_a_gaussian_is_clipped_as_in_training():
    wide = TanhGaussianActor(3, 2, (), key=jax.random.key(0))
    networks, tensors = described_networks({"actor": wide})
    s = 100 * np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    log_std = outputs(networks["actor"], tensors, s).log_std
    np.testing.assert_allclose(log_std, wide(s).log_std, atol=1e-4)
    assert (log_std.min(), log_std.max()) == (-5.0, 2.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": ("observation", "weather")},
        {"inputs": ()},
        {"inputs": ("action", "action")},
        {"head": "magic"},
        {"activation": "sine"},
        {"scale": 0.0},
        {"scale": float("inf")},
        {"layer_norm": 1},
    ],
)
def test_a_description_that_means_nothing_is_refused(wrong):
    with pytest.raises(InvalidSetting, match="'q'"):
        Network(**{"name": "q", "inputs": ("observation",), "head": "value", **wrong})


# What CPQ leaves


def test_cpq_leaves_its_networks_and_what_the_log_says(trained, artifact):
    assert set(artifact.networks) == {"actor", "reward_1", "reward_2", "cost", "encoder", "decoder"}
    assert artifact.facts == {
        "limit": 7.0,
        "discount": 0.99,
        "horizon": 50,
        "steps_done": 6,
        "steps_planned": 6,
        "method": "cpq",
        "seed": 4,
        "log": "narrow",
        "log_fingerprint": LOG.fingerprint,
        "run": digest(trained.configuration.identity()),
        "ringfence": ringfence.__version__,
    }
    assert artifact.observation_names == ("obs_0", "obs_1", "obs_2")
    np.testing.assert_array_equal(artifact.observation_low, LOG.observations.min(0))
    np.testing.assert_array_equal(artifact.observation_high, LOG.observations.max(0))
    assert artifact.detector_threshold == pytest.approx(trained.metrics[1]["threshold"])


def test_critics_and_detector_are_those_of_training_in_the_logs_units(state):
    normaliser = LOG.normaliser
    artifact = scaled_artifact(METHOD.export(state), normaliser.mean, normaliser.std, LOG.action_low, LOG.action_high)
    batch = to_device(LOG).batch(jnp.arange(30))
    s, a = LOG.observations[:30], LOG.actions[:30]
    critics = state.critics
    np.testing.assert_allclose(artifact.cost_to_go(s, a), critics.cost(batch.observations, batch.actions), rtol=1e-4)
    smaller = np.minimum(*(critic(batch.observations, batch.actions) for critic in critics.reward))
    np.testing.assert_allclose(artifact.return_to_go(s, a), smaller, rtol=1e-4)
    scores = state.detector.score(batch.observations, batch.actions)
    np.testing.assert_allclose(artifact.detector_score(s, a), scores, rtol=1e-3, atol=1e-5)


def test_without_actions_the_policys_own_are_judged(artifact):
    s, _ = rows()
    np.testing.assert_array_equal(artifact.cost_to_go(s), artifact.cost_to_go(s, Policy(artifact)(s)))


def test_a_single_row_is_judged_like_a_row_of_a_batch(artifact):
    s, a = rows()
    for judge in (artifact.cost_to_go, artifact.return_to_go, artifact.detector_score):
        assert judge(s[3], a[3]) == judge(s, a)[3]


def test_one_observation_goes_with_several_actions(artifact):
    s, a = rows()
    several = artifact.evaluate("cost", s[3], a)
    np.testing.assert_allclose(several, artifact.evaluate("cost", np.repeat(s[3:4], len(a), 0), a), rtol=1e-6)
    assert artifact.detector_score(s[3], a).shape == (len(a),)


def test_a_single_row_of_a_gaussian_has_no_axis_of_rows(artifact):
    s, a = rows()
    alone, among = artifact.evaluate("encoder", s[3], a[3]), artifact.evaluate("encoder", s, a)
    assert alone.mean.shape == among.mean[3].shape
    np.testing.assert_allclose(alone.log_std, among.log_std[3], rtol=1e-5)


def test_inputs_of_different_lengths_are_an_error_that_says_which(artifact):
    s, a = rows()
    with pytest.raises(WrongShape, match=r"'observation': 3, 'action': 2"):
        artifact.evaluate("cost", s[:3], a[:2])


@pytest.mark.parametrize("xp", [np, jnp])
def test_actions_go_to_the_users_units_and_back(xp):
    artifact = random_artifact("tanh-gaussian")
    actions = np.random.default_rng(0).uniform(-1, 1, (50, artifact.action_dim)).astype(np.float32)
    low, high = artifact.action_low.astype(np.float64), artifact.action_high.astype(np.float64)
    in_units = np.asarray(artifact.unscale_actions(actions, xp))
    np.testing.assert_allclose(in_units, low + (actions + 1.0) / 2.0 * (high - low), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(artifact.scale_actions(in_units), actions, atol=1e-5)


def test_rounding_takes_no_action_out_of_the_bounds():
    """Between -4.9 and -4.3 the centre and half the range are rounded, so that an end of [-1, 1] comes to lie outside."""
    low, high = np.float32([-4.9, 0.0]), np.float32([-4.3, 1.0])
    artifact = replace(random_artifact("tanh-gaussian"), action_low=low, action_high=high)
    plain = (high + low) / 2 + (high - low) / 2 * np.float32([[1.0, 1.0], [-1.0, -1.0]])
    assert ((plain > high) | (plain < low)).any()
    ends = artifact.unscale_actions(np.float32([[1.0, 1.0], [-1.0, -1.0]]))
    assert ((low <= ends) & (ends <= high)).all()


@pytest.mark.parametrize("kind", [kind for kind, needs in KINDS.items() if len(needs.networks) == 1])
def test_a_policy_of_one_network_acts_on_one_observation_as_on_a_batch(kind):
    artifact = random_artifact(kind)
    alone, rows = single_actor(artifact), random_observations(20)
    assert alone is not None
    np.testing.assert_array_equal([alone(row) for row in rows], artifact.act(rows))


def test_metadata_and_units_are_read_only(artifact):
    for mapping in (artifact.metadata, artifact.units, artifact.tensors):
        with pytest.raises(TypeError, match="item assignment"):
            mapping["x"] = 1


def test_a_network_that_is_not_there_or_lacks_an_input_is_named(artifact):
    s, _ = rows()
    with pytest.raises(UnknownName, match="actor, reward_1, reward_2, cost"):
        artifact.evaluate("values", s)
    with pytest.raises(InvalidSetting, match="action is missing"):
        artifact.evaluate("cost", s)
    with pytest.raises(WrongShape, match=r"\(batch, 3\)"):
        artifact.evaluate("cost", s[:, :2], s[:, :2])
    with pytest.raises(NonFiniteValue, match=r"action\[0, 1\]"):
        artifact.evaluate("cost", s[0], [0.0, np.nan])


# The limit as an input


@pytest.fixture
def conditioned():
    """a = tanh(s + l'), with the limits 10 ... 30 as l' in [-1, 1]."""
    tensors = {"actor.0.weight": np.array([[1.0, 0.0], [1.0, 0.0]]), "actor.0.bias": np.zeros(2)}
    network = Network("actor", ("observation", "limit"), "tanh-gaussian")
    return Artifact(
        "tanh-gaussian", {"actor": network}, tensors, [0], [1], [-1], [1], limit=20.0, limit_range=(10.0, 30.0)
    )


def test_a_limit_conditioned_policy_takes_the_limit_at_run_time(conditioned, tmp_path):
    policy = Policy.load(conditioned.save(tmp_path / "policy.safetensors"))
    for limit, input_ in ((10, -1.0), (20, 0.0), (30, 1.0)):
        np.testing.assert_allclose(
            policy([[0.3], [0.1]], limit=limit), np.tanh([[0.3 + input_], [0.1 + input_]]), rtol=1e-6
        )
    np.testing.assert_array_equal(policy([0.3]), policy([0.3], limit=20))
    with pytest.raises(InvalidSetting, match="between 10 and 30"):
        policy([0.3], limit=31)


def test_a_detector_that_does_not_take_the_limit_need_not_be_told_it():
    limited = (Network("actor", ("observation", "limit"), "tanh-gaussian"), *SCORES)
    artifact = random_artifact("tanh-gaussian", limited, limit_range=(10.0, 30.0))
    s, a = random_observations(3), np.full((3, 2), 11.0)
    np.testing.assert_array_equal(artifact.detector_score(s, a), artifact.at_limit(20.0).detector_score(s, a))
    with pytest.raises(InvalidSetting, match="say which"):
        artifact.evaluate("actor", s)


def test_a_range_of_limits_must_be_known_where_the_limit_is_an_input(conditioned):
    with pytest.raises(InvalidSetting, match="limit_range"):
        replace(conditioned, limit_range=None)


def test_a_network_may_take_the_time_in_steps():
    network = Network("cost", ("observation", "time"), "value", scale=10.0)
    tensors = {"cost.0.weight": np.array([[0.0], [1.0]]), "cost.0.bias": np.zeros(1)}
    artifact = Artifact("values", {"cost": network}, tensors, [0], [1], [-1], [1], horizon=50)
    np.testing.assert_allclose(artifact.evaluate("cost", [[0.0], [0.0]], time=[25, 50]), [5.0, 10.0])


def test_values_without_a_policy_are_no_policy(tmp_path):
    network = Network("cost", ("observation",), "value")
    tensors = {"cost.0.weight": np.ones((1, 1)), "cost.0.bias": np.zeros(1)}
    artifact = Artifact("values", {"cost": network}, tensors, [0], [1], [-1], [1], method="fqe")
    path = artifact.save(tmp_path / "values.safetensors")
    assert Artifact.load(path).evaluate("cost", [3.0]) == 3.0
    with pytest.raises(InvalidSetting, match="fqe holds values and no policy"):
        Policy.load(path)


# How far training got


def test_an_unfinished_policy_says_so(artifact):
    unfinished = replace(artifact, steps_done=5, steps_planned=20)
    assert unfinished.finished is False
    assert "unfinished: 5 of 20 steps" in repr(Policy(unfinished))
    assert artifact.finished
    assert "unfinished" not in repr(artifact)
    assert replace(artifact, steps_done=None).finished is None


# The file


def test_everything_comes_back_from_the_file(artifact, tmp_path):
    named = replace(
        artifact,
        observation_names=("x", "speed", "größe"),
        action_names=("u", "v"),
        units={"x": "m", "speed": "m/s"},
        metadata={"nested": {"list": [1, 2.5, None, "text"]}},
    )
    loaded = Artifact.load(named.save(tmp_path / "artifact.safetensors"))
    for field in ("kind", "networks", "facts", "observation_names", "action_names", "units", "metadata"):
        assert getattr(loaded, field) == getattr(named, field), field
    assert set(loaded.tensors) == set(named.tensors)
    assert all((loaded.tensors[name] == tensor).all() for name, tensor in named.tensors.items())
    assert loaded.to_bytes() == named.to_bytes()


def test_the_same_content_gives_the_same_bytes_in_another_process(artifact):
    """Python and safetensors both order things by hashes that change from process to process."""
    tensors = {"actor.0.weight": "np.ones((2, 2))", "actor.0.bias": "np.zeros(2)"}
    given = ", ".join(f"'{name}': {value}" for name, value in tensors.items())
    metadata = "{'b': 1, 'a': {'d': 2, 'c': 3}}"
    code = (
        "import hashlib, numpy as np; from ringfence.deploy import Policy;"
        f"p = Policy.from_tensors('tanh-gaussian', {{{given}}}, [0, 0], [1, 1], [0], [4], {metadata});"
        "print(hashlib.sha256(p.to_bytes()).hexdigest())"
    )
    printed = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(3)}
    assert len(printed) == 1
    reordered = replace(
        artifact,
        networks=dict(reversed(artifact.networks.items())),
        tensors=dict(reversed(artifact.tensors.items())),
        metadata=dict(reversed(artifact.metadata.items())),
    )
    assert hashlib.sha256(reordered.to_bytes()).digest() == hashlib.sha256(artifact.to_bytes()).digest()


def test_another_number_gives_another_checksum(artifact):
    bias = artifact.tensors["cost.0.bias"].copy()
    bias[0] += 1e-6
    assert replace(artifact, tensors={**artifact.tensors, "cost.0.bias": bias}).checksum != artifact.checksum
    assert replace(artifact, limit=8.0).checksum != artifact.checksum


def test_nothing_in_an_artifact_can_be_changed(artifact):
    with pytest.raises(ValueError, match="read-only"):
        artifact.tensors["cost.0.bias"][0] = 1.0
    with pytest.raises(TypeError):
        artifact.tensors["cost.0.bias"] = np.zeros(3)
    with pytest.raises(AttributeError):
        artifact.limit = 1.0


def changed(artifact, **tensors):
    return {name: t for name, t in {**artifact.tensors, **tensors}.items() if t is not None}


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        ({"actor.1.weight": None, "actor.1.bias": None, "actor.2.weight": None, "actor.2.bias": None}, "gives 16"),
        ({"actor.1.bias": None}, "actor"),
        ({"actor.0.weight": np.zeros((4, 16))}, "takes 4 numbers"),
        ({"actor.0.weight": np.zeros((3, 15))}, "layer 0"),
        ({"actor.1.weight": np.zeros((15, 8))}, "layer 1"),
        ({"cost.2.bias": np.full(1, np.nan)}, "NaN or infinity"),
        ({"encoder.2.weight": np.zeros((8, 6)), "encoder.2.bias": np.zeros(6)}, "latent"),
        ({"other.0.weight": np.zeros((3, 15))}, "belongs to no network"),
        ({"threshold": np.zeros(0)}, "'threshold' has shape"),
        ({"guard_centre": np.zeros(4)}, "'guard_centre' has shape"),
        ({"guard_whitening": np.zeros((3, 1))}, "'guard_whitening' has shape"),
        ({"guard_distance": np.zeros((1, 1))}, "'guard_distance' has shape"),
        ({"guard_stillness": np.zeros(2)}, "'guard_stillness' has shape"),
        ({"guard_distance": None}, "guard_distance is missing"),
    ],
)
def test_tensors_that_do_not_fit_are_named(artifact, tensors, word):
    with pytest.raises(RingfenceError, match=word):
        replace(artifact, tensors=changed(artifact, **tensors))


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": float("nan")},
        {"limit": -1.0},
        {"steps_done": 2.5},
        {"steps_done": 7, "steps_planned": 6},
        {"discount": 1.5},
        {"horizon": 0},
        {"observation_names": ("a", "a", "b")},
        {"observation_names": ("a", "", "b")},
        {"seed": "zero"},
        {"metadata": [1, 2]},
        {"metadata": {"x": float("inf")}},
        {"observation_names": ("a", "b")},
        {"units": {"action_0": 3}},
        {"observation_low": [9.0, 9.0, 9.0], "observation_high": [0.0, 0.0, 0.0]},
        {"observation_low": None},
    ],
)
def test_facts_that_make_no_sense_are_refused(artifact, wrong):
    with pytest.raises(InvalidSetting):
        replace(artifact, **wrong)


def test_a_kind_needs_its_networks_and_its_numbers_in_range():
    layer = {"weight": np.zeros((1, 1)), "bias": np.zeros(1)}
    mixture = {f"component.{i}.0.{part}": tensor for i in (0, 1) for part, tensor in layer.items()}
    for chosen in (-1.0, 2.0, 0.5, np.nan):
        with pytest.raises(RingfenceError, match="chosen"):
            Policy.from_tensors("mixture", {**mixture, "chosen": np.array([chosen])}, [0], [1], [-1], [1])
    with pytest.raises(RingfenceError, match=r"component\.0"):
        Policy.from_tensors("mixture", {"chosen": np.zeros(1)}, [0], [1], [-1], [1])
    actor = {f"actor.0.{part}": tensor for part, tensor in layer.items()}
    with pytest.raises(WrongShape, match="log_std"):
        Policy.from_tensors("clipped-gaussian", {**actor, "log_std": np.zeros(2)}, [0], [1], [-1], [1])
    with pytest.raises(UnknownName, match="'future'"):
        Policy.from_tensors("future", {}, [0], [1], [-1], [1])


def rewritten(artifact, **changes):
    """The artifact's file with another header; a careful forger also mends the checksum."""
    header = header_of(artifact)
    stated = json.loads(header["artifact"])
    header["artifact"] = json.dumps({**stated, **changes}, sort_keys=True)
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    tensors = tensors_of(artifact)
    for name in sorted(tensors):
        digest.update(f"{name}{tensors[name].shape}".encode())
        digest.update(np.ascontiguousarray(tensors[name], "<f4").tobytes())
    return save(dict(tensors), metadata={**header, "sha256": digest.hexdigest()})


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "future"},
        {"kind": "bcq"},
        {"metadata": [1]},
        {"metadata": None},
        {"networks": {}},
        {"networks": []},
        {"networks": {"actor": {"name": "actor"}}},
        {"limit": float("nan")},
        {"limit": "low"},
        {"limit": 10**400},
        {"horizon": 10**400},
        {"observation_names": 3},
        {"tensors": {}},
        {"surprise": 1},
        {"steps_done": -1},
    ],
)
def test_a_header_that_makes_no_sense_is_a_foreign_policy(artifact, tmp_path, changes):
    path = tmp_path / "policy.safetensors"
    path.write_bytes(rewritten(artifact))
    Artifact.load(path)
    path.write_bytes(rewritten(artifact, **changes))
    with pytest.raises(ForeignPolicy):
        Artifact.load(path)


# Version 1


def version_1_file(path, kind, tensors, metadata, **header):
    """As version 1 of the format was written."""
    stated = {
        "format": "ringfence-policy",
        "format_version": "1",
        "kind": kind,
        "metadata": json.dumps(metadata, sort_keys=True),
    }
    digest = hashlib.sha256(json.dumps(stated, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name}{tensors[name].shape}".encode() + tensors[name].tobytes())
    path.write_bytes(save(tensors, metadata={**stated, "sha256": digest.hexdigest(), **header}))
    return digest.hexdigest()


SCALE = {"observation_mean": [1.0], "observation_std": [2.0], "action_low": [0.0], "action_high": [4.0]}


def test_a_version_1_file_is_still_read_and_keeps_its_checksum(tmp_path):
    tensors = {"actor.0.weight": [[0.5, 0.0]], "actor.0.bias": [0.1, 0.0], **SCALE}
    tensors = {name: np.array(value, np.float32) for name, value in tensors.items()}
    metadata = {"limit": 30.0, "discount": 0.99, "method": "cpq", "seed": 3, "steps": 10, "task": None}
    checksum = version_1_file(tmp_path / "old", "tanh-gaussian", tensors, metadata)
    policy = Policy.load(tmp_path / "old")
    assert policy([3.0]) == pytest.approx(2.0 + 2.0 * np.tanh(0.5 * (3.0 - 1.0) / 2.0 + 0.1))
    assert policy.metadata == metadata
    assert (policy.artifact.limit, policy.artifact.seed, policy.artifact.finished) == (30.0, 3, None)
    assert policy.checksum == checksum
    again = Policy.load(policy.save(tmp_path / "new"))
    assert again([3.0]) == policy([3.0])


@pytest.mark.parametrize(
    ("kind", "changes", "metadata"),
    [
        ("tanh-gaussian", {"actor.0.bias": [np.nan, 0.0]}, {}),
        ("tanh-gaussian", {"actor.0.bias": [0.0]}, {}),
        ("tanh-gaussian", {"stray.0.weight": [[1.0]]}, {}),
        ("tanh-gaussian", {}, [1, 2]),
        ("future", {}, {}),
        ("mixture", {}, {}),
    ],
)
def test_a_version_1_file_is_checked_too(tmp_path, kind, changes, metadata):
    tensors = {"actor.0.weight": [[0.5, 0.0]], "actor.0.bias": [0.1, 0.0], **SCALE, **changes}
    version_1_file(tmp_path / "old", kind, {n: np.array(v, np.float32) for n, v in tensors.items()}, metadata)
    with pytest.raises(ForeignPolicy):
        Policy.load(tmp_path / "old")


def test_a_file_of_a_newer_format_is_named(artifact, tmp_path):
    header = {**header_of(artifact), "format_version": "3", "sha256": ""}
    (tmp_path / "new").write_bytes(save(tensors_of(artifact), metadata=header))
    with pytest.raises(ForeignPolicy, match="format 3; this ringfence reads formats 1 and 2"):
        Artifact.load(tmp_path / "new")


# NumPy and safetensors, no JAX


@pytest.mark.slow
def test_a_policy_runs_where_only_numpy_and_safetensors_are_installed(artifact, tmp_path):
    """A wheel of ringfence in a fresh environment with those two and nothing else."""
    root, source = Path(__file__).parents[2], tmp_path / "source"
    shutil.copytree(root / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        if (root / file).exists():
            shutil.copy(root / file, source)
    venv, wheels = tmp_path / "venv", tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source]
    subprocess.run(build, check=True, env={**os.environ, "CC": "false", "CXX": "false"})  # no time to compile kernels
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    [wheel] = wheels.iterdir()
    shutil.unpack_archive(wheel, site, "zip")
    for package in ("numpy", "numpy.libs", "safetensors"):  # as installed here, so that the test needs no network
        if (found := Path(np.__file__).parents[1] / package).exists():
            (site / package).symlink_to(found)
    policy = Policy(artifact)
    policy.save(tmp_path / "policy.safetensors")
    code = (
        "import sys, json, numpy as np, safetensors; from time import process_time; began = process_time();"
        "import ringfence; policy = ringfence.Policy.load(sys.argv[1]); took = process_time() - began;"
        "s = np.array(json.loads(sys.argv[2]));"
        "print(json.dumps([policy(s).tolist(), policy.artifact.cost_to_go(s).tolist(), took, sorted(sys.modules)]))"
    )
    s = rows(3)[0]
    command = [venv / "bin" / "python", "-I", "-c", code, tmp_path / "policy.safetensors", json.dumps(s.tolist())]
    runs = [json.loads(subprocess.run(command, capture_output=True, check=True, cwd=tmp_path).stdout) for _ in range(3)]
    actions, costs, _, modules = runs[0]
    np.testing.assert_allclose(actions, policy(s), rtol=1e-6)
    np.testing.assert_allclose(costs, artifact.cost_to_go(s), rtol=1e-6)
    installed = {module.split(".")[0] for module in modules}
    assert not installed & {"jax", "jaxtyping", "equinox", "optax", "h5py", "pyarrow", "rich", "matplotlib"}
    assert min(took for _, _, took, _ in runs) < 0.15  # seconds of a core, on top of NumPy's own import


def test_the_artifact_knows_how_the_columns_of_the_log_go_together(artifact):
    """The distance by another route: the inverse covariance of the nearest 95 % of the rows, whose nearness is judged
    once with all of them."""
    rows = (LOG.observations - artifact.observation_mean) / artifact.observation_std

    def distances(part):
        covariance = np.cov(part.T) + 1e-4 * np.eye(3)
        return np.array([row @ np.linalg.solve(covariance, row) for row in rows - part.mean(0)])

    first = distances(rows)
    expected = distances(rows[first <= np.quantile(first, 0.95)])
    deviations = (rows - artifact.tensors["guard_centre"]) @ artifact.tensors["guard_whitening"]
    np.testing.assert_allclose((deviations**2).sum(1), expected, rtol=1e-4)
    assert float(artifact.tensors["guard_distance"][0]) == pytest.approx(np.quantile(expected, 0.99), rel=1e-4)
    np.testing.assert_array_equal(artifact.tensors["guard_stillness"], [1, 1, 1])  # random columns never repeat
    assert {"together", "stuck", "range", "detector", "cost_to_go"} < set(
        ringfence.Guard(artifact, LOG.actions[0]).active
    )
