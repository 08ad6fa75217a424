"""PPO and CPO: their parts by hand, and that they learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.behaviour import cpo, ppo
from ringfence.behaviour.actor_critic import Moments, generalised_advantages, temporal_differences
from ringfence.behaviour.segments import NumpyActor, Sampler, Segments, episode_sums, run_segments
from tests.behaviour.wheel import TASK


def test_advantages_are_the_discounted_sum_of_differences_up_to_the_episodes_end():
    deltas = np.array([[1.0], [2.0], [4.0], [8.0]])
    ended = np.array([[False], [True], [False], [False]])
    expected = [1 + 0.5 * 2, 2, 4 + 0.5 * 8, 8]
    found = generalised_advantages(jnp.asarray(deltas), jnp.asarray(ended), 0.5)
    np.testing.assert_allclose(found[:, 0], expected)


def test_termination_masks_the_bootstrap_and_truncation_does_not():
    terminated = jnp.array([[True], [False]])
    found = temporal_differences(jnp.ones((2, 1)), jnp.full((2, 1), 3.0), jnp.full((2, 1), 10.0), terminated, 0.9)
    np.testing.assert_allclose(found[:, 0], [1 - 3, 1 + 0.9 * 10 - 3])


def test_running_moments_are_those_of_everything_seen():
    values = np.random.default_rng(0).normal(3.0, 2.0, (100, 2)).astype(np.float32)
    moments = Moments.start((2,)).including(jnp.asarray(values[:30])).including(jnp.asarray(values[30:]))
    np.testing.assert_allclose(moments.mean, values.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments.var, values.var(0), rtol=1e-3)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 2.0, 1.2 * 2.0), (0.5, 2.0, 0.5 * 2.0), (1.5, -2.0, -3.0), (0.5, -2.0, -0.8 * 2.0)],
)
def test_the_clipped_surrogate_takes_the_pessimistic_side(ratio, advantage, expected):
    log = jnp.log(jnp.array([ratio]))
    assert ppo.clipped_surrogate(log, jnp.zeros(1), jnp.array([advantage]), 0.2) == pytest.approx(expected)


def test_the_standard_deviation_falls_geometrically_and_then_stays():
    config = ppo.PPO(std_start=0.8, std=0.2, std_anneal=0.5)
    assert [config.std_at(p) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.8, 0.4, 0.2, 0.2])


def full_torque(observations):
    return np.full((len(observations), 1), 5.0, np.float32)


def test_segments_record_executed_torque_and_the_true_last_observation():
    segments = run_segments([_limited()], full_torque, 0.1, [0], 20)
    assert segments.actions.min() > 4.0  # the Gaussian's sample ...
    np.testing.assert_allclose(segments.costs, 1.0)  # ... was executed as 1
    ends = np.flatnonzero(segments.ended[:, 0])
    assert segments.terminated[ends[0], 0]
    assert segments.next_observations[ends[0], 0, 2] >= 3.0
    assert segments.observations[ends[0] + 1, 0, 2] == 0.0  # a new episode
    inside = np.delete(np.arange(19), ends)
    np.testing.assert_array_equal(segments.next_observations[inside], segments.observations[inside + 1])


def _limited():
    import gymnasium

    return gymnasium.make("Wheel-v0", disable_env_checker=True)


def test_episode_sums_count_whole_episodes():
    ended = np.array([[0, 0], [1, 0], [0, 0], [1, 0], [0, 0]], bool)
    rewards = np.arange(10.0).reshape(5, 2)
    blank = np.zeros((5, 2, 1))
    sums = episode_sums(Segments(blank, blank, rewards, np.ones((5, 2)), blank, ended, ended), 0.5)
    # First column: episodes of rewards (0, 2) and (4, 6), a rest of one step left out; second: one unfinished of five.
    assert sums.episodes == 3
    assert sums.mean_return == pytest.approx(np.mean([2, 10, 1 + 3 + 5 + 7 + 9]))
    assert sums.mean_length == pytest.approx(3)
    assert sums.mean_discounted_cost == pytest.approx(np.mean([1.5, 1.5, 2 - 0.5**4]))
    assert sums.mean_discounted_length == sums.mean_discounted_cost


@pytest.mark.slow
def test_the_number_of_workers_does_not_change_the_segments():
    actor = NumpyActor.of(ppo.init(ppo.PPO(), 11, 3, jax.random.key(0)).actor, Moments.start((11,)))
    one, two = Sampler("hopper-torque"), Sampler("hopper-torque", workers=2)
    seeds = [5, 6, 7]
    alone, shared = one(actor, 0.3, seeds, 50), two(actor, 0.3, seeds, 50)
    two.close()
    for column in Segments._fields:
        np.testing.assert_array_equal(getattr(alone, column), getattr(shared, column))


SMALL = {"hidden": (16,), "envs": 4, "segment": 100, "std": 0.3, "std_start": 0.3}


def train(module, config, iterations):
    sampler, metrics = Sampler(TASK), []
    state = module.init(config, 3, 1, jax.random.key(0))
    for i in range(iterations):
        state, measured = module.iterate(config, state, sampler, i, iterations, 0)
        metrics.append(measured)
    return metrics


def mean_of_last(metrics, name, count=5):
    return np.mean([m[name] for m in metrics[-count:]])


@pytest.mark.slow
def test_ppo_learns_to_push_the_wheel_at_full_torque():
    metrics = train(ppo, ppo.PPO(**SMALL, minibatches=4, learning_rate=3e-3), 30)
    assert metrics[0]["return"] < 2
    # Noise of 0.3 on a torque of 1 is cut off on one side and so takes 0.4 x 0.3: at most 0.88 x 12.9 = 11.4 is left.
    assert mean_of_last(metrics, "return") > 10
    assert mean_of_last(metrics, "discounted cost") > 12


CPO_SMALL = {
    **SMALL,
    "segment": 400,
    "delta": 0.05,
    "critic_minibatch": 100,
    "critic_learning_rate": 3e-3,
    "margin": 0.0,
}


@pytest.mark.slow
def test_cpo_earns_what_the_limit_allows():
    """The noise alone costs 0.8 x 0.3 a step, 4.4 discounted; the rest of the limit is there to be spent."""
    metrics = train(cpo, cpo.CPO(**CPO_SMALL, limit=8.0), 20)
    assert metrics[0]["return"] < 2
    assert mean_of_last(metrics, "discounted cost", 8) == pytest.approx(8.0, abs=0.4)
    assert mean_of_last(metrics, "return", 8) > 4.0


@pytest.mark.slow
def test_cpo_recovers_from_a_policy_over_the_limit():
    """First by recovery steps; then, near the limit, by steps that pay for safety with reward."""
    sampler, loose, strict = Sampler(TASK), cpo.CPO(**CPO_SMALL, limit=50.0), cpo.CPO(**CPO_SMALL, limit=8.0)
    state, metrics = cpo.init(loose, 3, 1, jax.random.key(0)), []
    for i in range(30):
        state, measured = cpo.iterate(loose if i < 8 else strict, state, sampler, i, 30, 0)
        metrics.append(measured)
    assert metrics[8]["discounted cost"] > 10
    assert metrics[8]["case"] == 2.0
    assert mean_of_last(metrics, "discounted cost", 8) == pytest.approx(8.0, abs=0.5)
