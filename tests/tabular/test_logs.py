import numpy as np
import pytest

from ringfence.tabular.cmdp import log_states, mixture_policy, stirred
from ringfence.tabular.examples import corridor, stitching
from ringfence.tabular.logs import action_indices, cloned_policy, counted_model, embed_actions, sample_log


@pytest.fixture(scope="module")
def long_log():
    example = stitching()
    behaviours = {"safe": stirred(example.safe, 0.3), "unsafe": stirred(example.unsafe, 0.3)}
    log = sample_log(example.cmdp, behaviours, 20_000, np.random.default_rng(0))
    return example.cmdp, behaviours, log


def test_every_action_comes_back_from_the_interval():
    for n_actions in range(1, 8):
        indices = np.arange(n_actions)
        embedded = embed_actions(indices, n_actions)
        assert embedded.shape == (n_actions, 1)
        assert (np.abs(embedded) < 1).all()
        np.testing.assert_array_equal(action_indices(embedded, n_actions), indices)


def test_actions_sit_in_the_middle_of_equal_bins():
    np.testing.assert_allclose(embed_actions([0, 1], 2)[:, 0], [-0.5, 0.5])
    np.testing.assert_allclose(embed_actions([0, 1, 2], 3)[:, 0], [-2 / 3, 0.0, 2 / 3], atol=1e-15)


def test_the_ends_of_the_interval_belong_to_the_first_and_last_action():
    np.testing.assert_array_equal(action_indices([[-1.0], [1.0]], 3), [0, 2])


def test_observations_are_one_hot_and_rewards_and_costs_those_of_the_pair(long_log):
    cmdp, _, log = long_log
    assert set(np.unique(log.observations)) == {0.0, 1.0}
    np.testing.assert_array_equal(log.observations.sum(1), 1.0)
    states, actions = log.observations.argmax(1), action_indices(log.actions, 3)
    np.testing.assert_allclose(log.rewards, cmdp.reward[states, actions])
    np.testing.assert_allclose(log.costs, cmdp.cost[states, actions])


def test_half_the_rows_come_from_each_behaviour(long_log):
    _, _, log = long_log
    assert log.source_names == ("safe", "unsafe")
    np.testing.assert_array_equal(np.bincount(log.source), [10_000, 10_000])


def test_rows_that_cannot_be_shared_out_equally_differ_by_one_at_most():
    example = corridor()
    log = sample_log(example.cmdp, dict.fromkeys("abcde", example.safe), 7, np.random.default_rng(0))
    assert np.bincount(log.source).tolist() == [2, 2, 1, 1, 1]


def test_within_an_episode_each_state_follows_the_last(long_log):
    _, _, log = long_log
    inside = ~(log.terminations | log.truncations)[:-1]
    np.testing.assert_array_equal(log.next_observations[:-1][inside], log.observations[1:][inside])


def test_counts_approach_the_true_model_the_mixture_and_its_states(long_log):
    cmdp, behaviours, log = long_log
    model = counted_model(log, 3, cmdp.discount, cmdp.limit)
    # Five standard errors of a share counted over the rows of the rarest pair.
    rows = (model.states[:, None] * model.behaviour * len(log.rewards)).min()
    tolerance = 5 * 0.5 / np.sqrt(rows)
    np.testing.assert_allclose(model.cmdp.transition, cmdp.transition, atol=tolerance)
    np.testing.assert_allclose(model.cmdp.reward, cmdp.reward, atol=1e-6)
    np.testing.assert_allclose(model.cmdp.cost, cmdp.cost, atol=1e-6)
    mixed = mixture_policy(cmdp, list(behaviours.values()), [0.5, 0.5])
    np.testing.assert_allclose(model.behaviour, mixed, atol=0.06)
    np.testing.assert_allclose(model.states, log_states(cmdp, mixed), atol=0.03)


def test_arriving_at_the_end_terminates_and_nothing_else_does():
    example = corridor()
    log = sample_log(example.cmdp, {"run": example.unsafe}, 500, np.random.default_rng(1))
    np.testing.assert_array_equal(log.terminations, log.next_observations.argmax(1) == 6)
    assert not (log.terminations & log.truncations).any()
    assert (log.terminations | log.truncations)[-1]


def test_a_pair_the_log_never_holds_has_no_behaviour_and_stays_at_the_worst_logged_cost():
    example = corridor()
    log = sample_log(example.cmdp, {"run": example.unsafe}, 200, np.random.default_rng(2))
    model = counted_model(log, 3, 0.9, 1.5)
    assert model.behaviour[0].tolist() == [1.0, 0.0, 0.0]
    np.testing.assert_array_equal(model.cmdp.transition[2, 1], np.eye(7)[2])
    assert model.cmdp.cost[2, 1] == 1.0  # running through a hot cell is the dearest row of the log
    assert model.cmdp.reward[2, 1] == 0.0
    assert counted_model(log, 3, 0.9, 1.5, worst_cost=4.0).cmdp.cost[2, 1] == 4.0
    assert cloned_policy(model)[6].tolist() == pytest.approx([1 / 3] * 3)


def test_a_state_that_the_log_arrives_in_but_never_acts_in_is_not_taken_for_free():
    """One row, truncated on arrival in stage 1; and one that terminated at the end of the corridor, which is free."""
    machine = stitching()
    log = sample_log(machine.cmdp, {"hard": machine.unsafe}, 1, np.random.default_rng(0))
    model = counted_model(log, 3, 0.9, 1.0, worst_cost=15.0)
    assert model.cmdp.cost[1].tolist() == [15.0] * 3
    assert not model.known[1].any()
    run = corridor(length=1)
    ended = counted_model(sample_log(run.cmdp, {"run": run.unsafe}, 1, np.random.default_rng(0)), 3, 0.9, 1.0, 4.0)
    assert ended.cmdp.terminal.tolist() == [False, True]
    assert ended.known.tolist() == [[True, False, False], [True] * 3]


def test_the_same_seed_writes_the_same_log():
    example = stitching()
    logs = [sample_log(example.cmdp, {"a": example.safe}, 50, np.random.default_rng(3)) for _ in range(2)]
    np.testing.assert_array_equal(logs[0].truncations, logs[1].truncations)
    np.testing.assert_array_equal(logs[0].observations, logs[1].observations)


@pytest.mark.parametrize("transitions", [1, 3, 7])
def test_the_log_has_exactly_the_rows_asked_for(transitions):
    example = stitching()
    behaviours = {"safe": example.safe, "unsafe": example.unsafe}
    log = sample_log(example.cmdp, behaviours, transitions, np.random.default_rng(4))
    assert len(log.rewards) == transitions
