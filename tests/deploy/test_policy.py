"""Policy files run anywhere and never give a wrong policy."""

import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.artifacts import NETWORKS, random_artifact, random_observations

from ringfence import networks
from ringfence.deploy import Policy, RowNoise
from ringfence.errors import (
    ForeignPolicy,
    InvalidSetting,
    NonFiniteValue,
    RingfenceError,
    UnknownName,
    WouldOverwrite,
    WrongShape,
)
from ringfence.training.artifact import layer_tensors

TINY = {"actor.0.weight": np.zeros((1, 2)), "actor.0.bias": np.zeros(2)}
LOW, HIGH = np.array([-1.0, 0.0]), np.array([1.0, 4.0])


@pytest.fixture
def actor():
    return networks.TanhGaussianActor(3, 2, (16, 16), key=jax.random.key(0))


@pytest.fixture
def policy(actor):
    return Policy.from_tensors(
        "tanh-gaussian", layer_tensors("actor", actor.mlp), [1.0, 2.0, 3.0], [1.0, 2.0, 4.0], LOW, HIGH, {"limit": 30.0}
    )


@pytest.fixture
def observations():
    return np.random.default_rng(0).normal(1.0, 2.0, (40, 3)).astype(np.float32)


def by_jax(actor, observations):
    normalised = (observations - jnp.array([1.0, 2.0, 3.0])) / jnp.array([1.0, 2.0, 4.0])
    return actor(normalised)


def test_the_deterministic_action_is_the_jax_actors(actor, policy, observations):
    squashed = jnp.tanh(by_jax(actor, observations).mean)
    expected = LOW + (squashed + 1) / 2 * (HIGH - LOW)
    np.testing.assert_allclose(policy(observations), expected, atol=1e-5)


def test_a_sampled_action_follows_the_jax_actors_distribution(actor, policy, observations):
    gaussian = by_jax(actor, observations)
    noise = np.random.default_rng(7).standard_normal((40, 2))
    expected = LOW + (jnp.tanh(gaussian.mean + gaussian.std * noise) + 1) / 2 * (HIGH - LOW)
    sampled = policy(observations, deterministic=False, rng=np.random.default_rng(7))
    np.testing.assert_allclose(sampled, expected, atol=1e-5)


def test_a_clipped_gaussian_adds_its_noise_and_is_cut_off_at_the_bounds():
    tensors = {"actor.0.weight": np.array([[0.5, 2.0]]), "actor.0.bias": np.zeros(2), "log_std": np.log([0.1, 0.2])}
    policy = Policy.from_tensors("clipped-gaussian", tensors, [0.0], [1.0], [-1, -1], [1, 1])
    mean = np.tanh([0.5, 2.0])
    np.testing.assert_allclose(policy([1.0]), mean, rtol=1e-6)
    noise = np.random.default_rng(6).standard_normal((1, 2))[0]
    expected = np.clip(mean + [0.1, 0.2] * noise, -1, 1)
    assert expected[1] == 1.0
    np.testing.assert_allclose(policy([1.0], deterministic=False, rng=np.random.default_rng(6)), expected, rtol=1e-6)


def test_an_observation_has_the_same_action_in_any_batch(observations):
    """Wide layers, because the product of a whole matrix rounds like that of a single row when they are narrow."""
    mlp = networks.MLP(3, 4, (64, 64), key=jax.random.key(0))
    policy = Policy.from_tensors("tanh-gaussian", layer_tensors("actor", mlp), [0] * 3, [1] * 3, LOW, HIGH)
    whole = policy(observations)
    np.testing.assert_array_equal(np.stack([policy(row) for row in observations]), whole)
    np.testing.assert_array_equal(np.concatenate([policy(observations[:7]), policy(observations[7:])]), whole)


def test_noise_by_rows_does_not_depend_on_the_neighbours(policy, observations):
    def sample(rows):
        noise = RowNoise([np.random.default_rng(row) for row in rows])
        return policy(observations[rows], deterministic=False, rng=noise)

    np.testing.assert_array_equal(sample([4, 9, 2])[1], sample([9])[0])


def test_saving_and_loading_changes_nothing(policy, observations, tmp_path):
    loaded = Policy.load(policy.save(tmp_path / "policy.safetensors"))
    np.testing.assert_array_equal(loaded(observations), policy(observations))
    assert loaded.metadata == {"limit": 30.0}
    assert loaded.checksum == policy.checksum
    assert [path.name for path in tmp_path.iterdir()] == ["policy.safetensors"]


def test_nothing_is_overwritten_without_asking(policy, tmp_path):
    path = tmp_path / "policy.safetensors"
    path.write_text("precious")
    with pytest.raises(WouldOverwrite, match="exists already"):
        policy.save(path)
    assert path.read_text() == "precious"
    policy.save(path, overwrite=True)
    Policy.load(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damage_at_any_byte_is_detected_or_harmless(data, tmp_path_factory):
    mlp = networks.MLP(3, 4, (4,), key=jax.random.key(0))
    policy = Policy.from_tensors(
        "tanh-gaussian", layer_tensors("actor", mlp), [0] * 3, [1] * 3, [-1] * 2, [1] * 2, {"limit": 30}
    )
    content = bytearray(policy.to_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(bytes(content))
    try:
        loaded = Policy.load(path)
    except ForeignPolicy:
        return
    np.testing.assert_array_equal(loaded(np.ones(3)), policy(np.ones(3)))
    assert loaded.metadata == policy.metadata


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_detected(policy, tmp_path, keep):
    content = policy.to_bytes()
    (tmp_path / "cut").write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ForeignPolicy):
        Policy.load(tmp_path / "cut")


def test_a_foreign_file_and_a_missing_one_are_told_apart(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    (tmp_path / "text").write_text("not a policy at all, but long enough to have a header")
    with pytest.raises(ForeignPolicy, match="not a ringfence policy"):
        Policy.load(tmp_path / "other.safetensors")
    with pytest.raises(ForeignPolicy, match="not a ringfence policy"):
        Policy.load(tmp_path / "text")
    with pytest.raises(ForeignPolicy, match="there is no policy file"):
        Policy.load(tmp_path / "nothing")


@pytest.mark.parametrize("shape", [(), (2,), (4,), (5, 2), (2, 2, 3)])
def test_observations_of_the_wrong_shape_are_refused(policy, shape):
    with pytest.raises(WrongShape, match=r"shape \(3,\) or \(batch, 3\)"):
        policy(np.zeros(shape))


def test_an_observation_that_is_not_finite_is_named(policy):
    observations = np.zeros((4, 3))
    observations[2, 1] = np.nan
    with pytest.raises(NonFiniteValue, match=r"observation\[2, 1\] is nan"):
        policy(observations)


def forged(kind="tanh-gaussian", **changes):
    """A whole, well-formed file's content with absurd but finite numbers in some tensors or scaling vectors."""
    artifact = random_artifact(kind)
    tensors = {name: np.full_like(artifact.tensors[name], value) for name, value in changes.items() if "." in name}
    vectors = {name: np.full_like(getattr(artifact, name), value) for name, value in changes.items() if "." not in name}
    return replace(artifact, tensors={**artifact.tensors, **tensors}, **vectors)


OVERFLOWING = {
    "deviation": {"observation_std": 1e-45},
    "deviation and mean": {"observation_std": 1e-40, "observation_mean": 1e36},
    "last layer": {"actor.2.weight": 3e38, "actor.2.bias": -3e38},
    "two layers": {"actor.0.weight": 3e38, "actor.1.weight": -3e38, "actor.1.bias": 3e38, "actor.2.weight": -3e38},
}


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("case", OVERFLOWING)
def test_a_policy_of_absurd_numbers_gives_actions_in_bounds_or_a_clear_error(kind, case, tmp_path):
    """Its numbers leave float32 on the way; infinity minus infinity is NaN, which a plant must not be sent."""
    first = {"bcq": "decoder", "mixture": "component.1"}.get(kind, "actor")
    artifact = forged(kind, **{name.replace("actor", first): value for name, value in OVERFLOWING[case].items()})
    loaded, errors = Policy.load(Policy(artifact).save(tmp_path / "forged.safetensors")), 0
    rng, batch = np.random.default_rng(0), random_observations(20)
    sampled = {"deterministic": False, "rng": rng}
    for rows, options in [(batch, {}), (batch, sampled), *((row, how) for row in batch for how in ({}, sampled))]:
        try:
            actions = loaded(rows, **options)
        except NonFiniteValue:
            errors += 1
        else:
            assert ((actions >= artifact.action_low) & (actions <= artifact.action_high)).all()
    assert errors or case != "deviation"


@pytest.mark.parametrize("kind", ["bcq", "bear"])
def test_a_policy_does_not_choose_by_values_that_are_no_numbers(kind):
    policy = Policy(forged(kind, **{"cost.2.weight": 3e38, "cost.2.bias": -3e38}))
    with pytest.raises(NonFiniteValue, match="leave float32"):
        policy(random_observations(20))


def test_a_sensor_far_beyond_float32_is_a_clear_error_too():
    policy, rows = Policy(random_artifact("tanh-gaussian")), random_observations(3)
    rows[2] = 3e38
    with pytest.raises(NonFiniteValue, match=r"leave float32 for observation \[2\]"):
        policy(rows)


@pytest.mark.parametrize("name", ["observation_mean", "observation_std", "action_low", "action_high"])
def test_scales_that_no_log_can_have_are_refused(name):
    """Of an action between -3e38 and 3e38 the range is infinite, and of one between 2e38 and 3e38 the middle is."""
    with pytest.raises(RingfenceError, match=f"{name} .* 1e\\+37"):
        forged(**{name: -2e38 if name == "action_low" else 2e38})


def test_settings_that_make_no_sense_are_refused(policy):
    with pytest.raises(UnknownName, match="tanh-gaussian"):
        Policy.from_tensors("magic", {}, [0], [1], [-1], [1])
    for mean, std, low, high in (([0], [0], [-1], [1]), ([0, 0], [1], [-1], [1]), ([0], [1], [1], [1])):
        with pytest.raises(InvalidSetting):
            Policy.from_tensors("tanh-gaussian", TINY, mean, std, low, high)
    with pytest.raises(RingfenceError, match="metadata must be JSON"):
        Policy.from_tensors("tanh-gaussian", TINY, [0], [1], [-1], [1], {"x": np.zeros(2)})


def test_a_limit_at_run_time_is_refused_by_a_policy_that_was_trained_for_one(policy, observations):
    with pytest.raises(InvalidSetting, match=r"trained for 30\.0"):
        policy(observations, limit=40)


def test_a_policy_without_memory_forgets_nothing_on_reset(policy, observations):
    before = policy(observations)
    policy.reset()
    np.testing.assert_array_equal(policy(observations), before)


def test_a_policy_runs_without_jax_and_jaxtyping():
    code = "import sys; sys.modules |= {'jax': None, 'jaxtyping': None, 'equinox': None}; import ringfence.deploy"
    subprocess.run([sys.executable, "-c", code], check=True)
