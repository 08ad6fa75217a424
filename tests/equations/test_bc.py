"""Behaviour cloning's likelihood, and which part of the log BC-Safe learns from."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ringfence
from ringfence.algorithms import BC, BCSafe, Spec
from ringfence.algorithms.bc import cloning_loss
from ringfence.data import Dataset
from ringfence.errors import EmptyData, InvalidSetting
from tests.equations import reference
from tests.equations.conftest import ACT, OBS

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_the_loss_is_the_negative_mean_log_density_of_the_executed_actions(batch):
    """The density of a = tanh(u) is that of u over |da/du| = 1 - a^2, dimension by dimension."""
    actor = BC(hidden=(8, 8)).init(jax.random.key(0), jnp.asarray(1.0), Spec(OBS, ACT)).actor
    total = 0.0
    for s, a in zip(np.asarray(batch.observations), np.asarray(batch.actions, np.float64), strict=True):
        output = reference.mlp(actor.mlp, s)
        mean, log_std = output[:ACT], np.clip(output[ACT:], -5, 2)
        for j in range(ACT):
            z = (np.arctanh(a[j]) - mean[j]) / np.exp(log_std[j])
            density = np.exp(-0.5 * z**2) / (np.sqrt(2 * np.pi) * np.exp(log_std[j]))
            total += np.log(density / (1 - a[j] ** 2))
    assert float(cloning_loss(actor, batch)) == pytest.approx(-total / len(batch.rewards), rel=1e-4)


def test_rewards_costs_and_the_limit_change_nothing(batch):
    method = BC(hidden=(8, 8))
    states = [method.init(jax.random.key(0), jnp.asarray(limit), Spec(OBS, ACT)) for limit in (0.0, 9.0)]
    other = batch._replace(rewards=batch.rewards + 5, costs=batch.costs * 3, continues=1 - batch.continues)
    after = [method.update(s, b, jax.random.key(1))[0] for s, b in zip(states, (batch, other), strict=True)]
    assert all(map(np.array_equal, *map(jax.tree.leaves, after)))


# Which part is safe


def log_of(costs_of_episodes, sources=None, length=4):
    """Episodes of `length` rows with a constant cost; the first observation says which episode it is."""
    costs = np.repeat(np.asarray(costs_of_episodes, float), length)
    rows = len(costs)
    episode = np.arange(rows) // length
    observations = np.stack([episode, np.arange(rows)], 1)
    return Dataset.from_arrays(
        observations=observations,
        next_observations=observations,
        actions=np.zeros((rows, 1)),
        rewards=np.ones(rows),
        costs=costs,
        episode=episode,
        source=None if sources is None else np.repeat(sources, length),
        source_names=() if sources is None else ("a", "b", "c"),
    )


def kept(dataset):
    return sorted(set(dataset.observations[:, 0].astype(int)))


METHOD = BCSafe(discount=0.5)
WORTH = 1 + 0.5 + 0.25 + 0.125  # what a cost of 1 in each of four steps is worth at a discount of 1/2


def test_without_sources_it_keeps_the_episodes_inside_the_discounted_limit():
    """A limit compared with the plain sum (4 instead of 1.875 for the second episode) would keep the first alone."""
    log = log_of([0.5, 1.0, 1.1, 2.0])
    assert kept(METHOD.restrict(log, [1.0 * WORTH])) == [0, 1]


def test_with_sources_it_keeps_all_episodes_of_the_sources_that_are_safe_on_average():
    log = log_of([0.5, 1.3, 2.0, 0.9, 1.2, 0.2], sources=[0, 0, 1, 1, 2, 2])
    # means: a 0.9, b 1.45, c 0.7; so the second episode is in, though over the limit, and the fourth out
    assert kept(METHOD.restrict(log, [1.0 * WORTH])) == [0, 1, 4, 5]


def test_select_chooses_the_rule():
    log = log_of([0.5, 1.3, 2.0, 0.9], sources=[0, 0, 1, 1])
    assert kept(BCSafe(discount=0.5, select="episodes").restrict(log, [WORTH])) == [0, 3]
    with pytest.raises(InvalidSetting, match="source"):
        BCSafe(select="source").restrict(log_of([1.0]), [WORTH])


def test_it_refuses_a_log_with_nothing_safe_and_says_what_the_least_cost_is():
    with pytest.raises(EmptyData, match=r"no episode is inside the limit of 0\.1.*0\.9375"):
        METHOD.restrict(log_of([0.5, 1.0]), [0.1])
    with pytest.raises(EmptyData, match=r"no source.*a 0\.9375, b 1\.875"):
        METHOD.restrict(log_of([0.5, 1.0], sources=[0, 1]), [0.1])


def test_limits_that_mean_different_parts_are_refused_and_others_share_one():
    log = log_of([0.5, 1.0, 2.0])
    with pytest.raises(InvalidSetting, match="one limit at a time"):
        METHOD.restrict(log, [0.6 * WORTH, 1.2 * WORTH])
    assert kept(METHOD.restrict(log, [1.2 * WORTH, 1.5 * WORTH])) == [0, 1]


def test_a_refused_run_leaves_nothing_behind(tmp_path):
    with pytest.raises(EmptyData):
        ringfence.train(log_of([1.0]), BCSafe(limit=0.1), steps=1, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_training_sees_only_the_safe_rows():
    """Through the loop: the normaliser of the policy is that of the kept rows."""
    from ringfence.training import Member, Plan
    from ringfence.training.loop import Session

    log = log_of([0.5, 1.0, 2.0])
    plan = Plan(METHOD, (Member(0, WORTH),), 1)
    quiet = SimpleNamespace()
    session = Session(log, plan, plan.configuration(log), None, None, {}, quiet, quiet, print)
    assert kept(session.dataset) == [0, 1]
    assert session.data.rows.shape[0] == 8
    assert session.log is log
