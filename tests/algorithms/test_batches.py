"""What methods draw, and that the loop serves whatever it is."""

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import Export, Stage
from ringfence.algorithms.batches import BootstrapTransitions, EpisodeWindows, Transitions
from ringfence.data import Dataset
from ringfence.deploy import Policy
from ringfence.errors import InvalidSetting
from ringfence.networks import MLP, Described
from ringfence.training import Member, Plan, RunDirectory, run
from ringfence.training.device import to_device

LENGTHS = np.array([3, 1, 5, 2])
STARTS = np.cumsum(LENGTHS) - LENGTHS
ROWS = int(LENGTHS.sum())
KEY = jax.random.key(0)


def make_log():
    """Every row's reward is its number, and its cost its time in the episode."""
    times = np.concatenate([np.arange(length) for length in LENGTHS])
    ends = np.isin(np.arange(ROWS), STARTS + LENGTHS - 1)
    return Dataset.from_arrays(
        observations=np.arange(ROWS)[:, None],
        next_observations=np.arange(ROWS)[:, None] + 1,
        actions=np.zeros((ROWS, 1)),
        rewards=np.arange(ROWS),
        costs=times,
        terminations=np.zeros(ROWS, bool),
        truncations=ends,
    )


LOG = make_log()
DATA = to_device(LOG, {"double": 2.0 * np.arange(ROWS)[:, None]})


def row_numbers(batch):
    return np.asarray(batch.rewards).astype(int)


def test_transitions_are_drawn_alike_from_all_rows():
    batch = Transitions(6000).draw(DATA, KEY, ())
    shares = np.bincount(row_numbers(batch), minlength=ROWS) / 6000
    np.testing.assert_allclose(shares, 1 / ROWS, atol=0.02)
    assert batch.times is None


def test_the_time_of_a_row_is_its_steps_since_the_episode_began():
    for sampler in (Transitions(200, with_times=True), BootstrapTransitions(200, with_times=True)):
        batch = sampler.draw(DATA, KEY, sampler.prepare(DATA, KEY))
        np.testing.assert_array_equal(batch.times, batch.costs)


def test_a_methods_own_columns_come_with_their_rows():
    batch = BootstrapTransitions(200).draw(DATA, KEY, BootstrapTransitions(200).prepare(DATA, KEY))
    np.testing.assert_array_equal(batch.extras["double"][:, 0], 2 * batch.rewards)


def test_a_bootstrap_sample_draws_every_row_as_often_as_its_episode_was_chosen():
    sampler = BootstrapTransitions(20_000)
    chosen = np.asarray(jax.random.randint(KEY, (4,), 0, 4))
    counts = np.bincount(chosen, minlength=4)
    assert counts.max() > 1  # some episode came twice
    assert counts.min() == 0  # and some not at all
    prepared = sampler.prepare(DATA, KEY)
    batch = sampler.draw(DATA, jax.random.key(1), prepared)
    expected = np.repeat(counts, LENGTHS) / (counts * LENGTHS).sum()
    np.testing.assert_allclose(np.bincount(row_numbers(batch), minlength=ROWS) / 20_000, expected, atol=0.02)
    starts = np.rint(np.asarray(batch.starts)[:, 0] / DATA.observation_scale + DATA.observation_mean).astype(int)
    shares = [np.mean(starts == start) for start in STARTS]
    np.testing.assert_allclose(shares, counts / 4, atol=0.02)


def test_members_have_bootstrap_samples_of_their_own_that_do_not_change():
    sampler = BootstrapTransitions(8)
    one, again, other = (sampler.prepare(DATA, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.starts, again.starts)
    assert (np.asarray(one.starts) != np.asarray(other.starts)).any()


def test_a_window_follows_its_episode_and_says_where_it_ends():
    windows = EpisodeWindows(500, 4).draw(DATA, KEY, ())
    rows = row_numbers(windows.batch)
    episode = np.searchsorted(STARTS, rows[:, 0], side="right") - 1
    ends = (STARTS + LENGTHS)[episode]
    for i in range(500):
        expected = [min(rows[i, 0] + k, ends[i] - 1) for k in range(4)]
        np.testing.assert_array_equal(rows[i], expected)
        np.testing.assert_array_equal(windows.inside[i], [rows[i, 0] + k < ends[i] for k in range(4)])
    assert windows.batch.observations.shape == (500, 4, 1)
    np.testing.assert_array_equal(windows.batch.times, windows.batch.costs)


# A learner without a policy in the one loop


class State(eqx.Module):
    mean: jax.Array
    count: jax.Array
    value: MLP


@dataclass(frozen=True)
class MeanReward:
    """Learns the mean reward of a bootstrap sample of episodes: what off-policy evaluation does, in one number."""

    name: ClassVar[str] = "mean-reward"
    shown: ClassVar[tuple[str, ...]] = ("mean",)
    limit: float | None = None
    discount: float = 0.1
    batch_size: int = 500

    def init(self, key, limit, spec):
        assert spec.horizon == 5
        return State(jnp.zeros(()), jnp.zeros(()), MLP(1, 1, (), key=key))

    def stages(self, steps):
        return (Stage("value", steps, self.update, sampler=BootstrapTransitions(self.batch_size, with_times=True)),)

    def update(self, state, batch, key):
        assert batch.times is not None
        mean = (state.mean * state.count + (batch.rewards + 0 * batch.extras["two"][:, 0]).mean()) / (state.count + 1)
        return State(mean, state.count + 1, state.value), {"mean": mean}

    def columns(self, dataset):
        return {"two": np.full((len(dataset), 1), 2.0)}

    def diagnose(self, state, sample, key):
        return {"greatest_time": sample.batch.times.max()}

    def warnings(self, stage, history):
        return []


@dataclass(frozen=True)
class MeanRewardKept(MeanReward):
    def export(self, state):
        return Export("values", {"value": Described(state.value, ("observation",), "value")})


def bootstrap_mean(seed):
    """The mean reward of the episodes that the member with this seed has, computed from its random key."""
    from ringfence.training.population import PREPARING, member_key

    chosen = np.asarray(jax.random.randint(member_key(jnp.uint32(seed), PREPARING), (4,), 0, 4))
    return np.concatenate([np.arange(STARTS[e], STARTS[e] + LENGTHS[e]) for e in chosen]).mean()


@pytest.mark.parametrize("seeds", [(3,), (0, 1, 2)])
def test_a_learner_without_a_policy_runs_in_the_same_loop_each_member_on_its_own_bootstrap_sample(seeds):
    result = run(LOG, Plan(MeanReward(), tuple(Member(seed, 1.0) for seed in seeds), 40, log_every=40), progress=False)
    for seed, row in zip(seeds, result.metrics, strict=True):
        assert row["mean"] == pytest.approx(bootstrap_mean(seed), abs=0.3)
        assert row["greatest_time"] == 3  # the row after it is truncated, so what followed is not known
    assert result.artifacts == []


def test_a_learner_may_leave_values_that_are_no_policy(tmp_path):
    plan = Plan(MeanRewardKept(), (Member(0, 1.0),), 5, log_every=5)
    directory = RunDirectory(tmp_path / "run")
    directory.create(plan.configuration(LOG))
    result = run(LOG, plan, directory=directory, progress=False)
    assert result.artifacts[0].kind == "values"
    assert result.policies == []
    assert not list((tmp_path / "run").glob("policy*"))
    with pytest.raises(InvalidSetting, match="values and no policy"):
        Policy.load(tmp_path / "run" / "values.safetensors")
