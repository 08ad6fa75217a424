"""What a Dataset holds and derives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.data import Dataset, Normaliser, episode_table
from ringfence.errors import ActionOutOfBounds, EmptyData, InvalidSetting
from tests.data.example_logs import columns, full_dataset, without


def to_go_by_loop(values, ends, discount):
    """The definition, one step at a time from the end."""
    result, following = np.zeros(len(values)), 0.0
    for row in reversed(range(len(values))):
        following = float(values[row]) + (0.0 if ends[row] else discount * following)
        result[row] = following
    return result


@st.composite
def logs_with_any_ends(draw):
    rows = draw(st.integers(1, 60))
    ends = draw(st.lists(st.sampled_from(["no", "terminated", "truncated", "both"]), min_size=rows, max_size=rows))
    ends[draw(st.integers(0, rows - 1))] = "terminated"
    log = columns(rows, seed=draw(st.integers(0, 9)))
    log["terminations"] = np.array([end in ("terminated", "both") for end in ends])
    log["truncations"] = np.array([end in ("truncated", "both") for end in ends])
    return log


@settings(max_examples=60, deadline=None)
@given(logs_with_any_ends(), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_sums_to_go_agree_with_a_plain_loop(log, discount):
    dataset = Dataset.from_arrays(**log)
    ends = log["terminations"] | log["truncations"]
    np.testing.assert_allclose(dataset.cost_to_go(discount), to_go_by_loop(log["costs"], ends, discount), atol=1e-9)
    np.testing.assert_allclose(dataset.return_to_go(discount), to_go_by_loop(log["rewards"], ends, discount), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(logs_with_any_ends())
def test_the_episode_table_agrees_with_a_plain_loop(log):
    dataset = Dataset.from_arrays(**log)
    table = episode_table(dataset, 0.9)
    start, episode = 0, 0
    for row in range(len(dataset)):
        if not (log["terminations"][row] or log["truncations"][row] or row == len(dataset) - 1):
            continue
        rows = slice(start, row + 1)
        weights = 0.9 ** np.arange(row + 1 - start)
        assert dataset.episode_slices[episode] == rows
        assert (table.start[episode], table.length[episode]) == (start, row + 1 - start)
        assert table.returns[episode] == pytest.approx(log["rewards"][rows].sum(), abs=1e-4)
        assert table.costs[episode] == pytest.approx(log["costs"][rows].sum(), rel=1e-5)
        assert table.discounted_returns[episode] == pytest.approx((weights * log["rewards"][rows]).sum(), abs=1e-5)
        assert table.discounted_costs[episode] == pytest.approx((weights * log["costs"][rows]).sum(), rel=1e-6)
        assert table.terminated[episode] == log["terminations"][row]
        assert table.truncated[episode] == log["truncations"][row]
        start, episode = row + 1, episode + 1
    assert len(table) == episode


def test_termination_and_truncation_are_both_kept():
    log = columns()
    dataset = Dataset.from_arrays(**log)
    np.testing.assert_array_equal(dataset.terminations, log["terminations"])
    np.testing.assert_array_equal(dataset.truncations, log["truncations"])
    assert np.flatnonzero(dataset.terminations).tolist() == [9, 29]
    assert np.flatnonzero(dataset.truncations).tolist() == [19, 39]


def test_an_unfinished_last_episode_counts_and_is_noted():
    dataset = Dataset.from_arrays(**columns(25))
    assert dataset.episode_ends.tolist() == [10, 20, 25]
    assert any("last episode (5 rows) is unfinished" in note for note in dataset.notes)


def test_missing_next_observations_come_from_the_following_row():
    # Two episodes of three rows, the first terminated, the second truncated.
    observations = np.arange(6, dtype=np.float32).reshape(6, 1)
    dataset = Dataset.from_arrays(
        observations=observations,
        actions=np.zeros((6, 1)),
        rewards=np.arange(6),
        costs=np.zeros(6),
        terminations=[0, 0, 1, 0, 0, 0],
        truncations=[0, 0, 0, 0, 0, 1],
    )
    # Row 2 terminated: its own observation stands in. Row 5 is dropped: row 4 leads to it and is now truncated.
    assert dataset.observations.ravel().tolist() == [0, 1, 2, 3, 4]
    assert dataset.next_observations.ravel().tolist() == [1, 2, 2, 4, 5]
    assert dataset.terminations.tolist() == [False, False, True, False, False]
    assert dataset.truncations.tolist() == [False, False, False, False, True]
    assert any("1 rows that end a truncated episode were dropped" in note for note in dataset.notes)


def test_a_truncated_episode_of_one_row_disappears_without_next_observations():
    log = without(columns(3), "next_observations")
    log |= {"terminations": [0, 1, 0], "truncations": [0, 0, 1]}
    dataset = Dataset.from_arrays(**log)
    assert len(dataset) == 2
    assert dataset.truncations.tolist() == [False, False]
    with pytest.raises(EmptyData, match="truncated after one row"):
        Dataset.from_arrays(**log | {"terminations": [0, 0, 0], "truncations": [1, 1, 1]})


def test_an_episode_column_ends_an_episode_where_it_changes():
    log = without(columns(6), "truncations")
    dataset = Dataset.from_arrays(**log | {"terminations": [0, 1, 0, 0, 0, 0]}, episode=["a", "a", "b", "b", "a", "a"])
    assert dataset.terminations.tolist() == [False, True, False, False, False, False]
    assert dataset.truncations.tolist() == [False, False, False, True, False, True]


def test_a_cost_function_is_called_with_observations_actions_and_next_observations():
    log = columns()
    dataset = Dataset.from_arrays(**log | {"costs": lambda obs, act, nxt: (nxt[:, 0] > 0) + np.abs(act).sum(axis=1)})
    expected = (log["next_observations"][:, 0] > 0) + np.abs(log["actions"]).sum(axis=1)
    np.testing.assert_allclose(dataset.costs, expected, rtol=1e-6)


def test_a_dataset_cannot_be_changed():
    dataset = Dataset.from_arrays(**columns())
    with pytest.raises(ValueError, match="read-only"):
        dataset.costs[0] = 1.0


def test_float32_columns_are_not_copied():
    log = columns()
    log = {name: np.ascontiguousarray(values) for name, values in log.items()}
    dataset = Dataset.from_arrays(**log)
    assert all(np.shares_memory(getattr(dataset, name), values) for name, values in log.items())


def test_unstated_action_bounds_are_one_where_the_log_fits_in():
    dataset = Dataset.from_arrays(**columns())
    assert dataset.action_low.tolist() == [-1, -1]
    assert dataset.action_high.tolist() == [1, 1]


def test_unstated_action_bounds_are_the_extremes_of_a_wider_log():
    log = columns()
    log["actions"] = np.stack([np.linspace(-3, 2, 40), np.full(40, 5.0)], axis=1)
    dataset = Dataset.from_arrays(**log)
    assert (dataset.action_low[0], dataset.action_high[0]) == (-3, 2)
    assert dataset.action_low[1] < 5 < dataset.action_high[1]  # never moves, but needs some room
    assert any("bounds were not stated" in note for note in dataset.notes)


def test_an_action_outside_its_bounds_by_rounding_is_clipped_and_further_out_refused():
    log = columns()
    log["actions"][17, 1] = 1 + 1e-6
    assert Dataset.from_arrays(**log, action_low=-1, action_high=1).actions[17, 1] == 1
    log["actions"][17, 1] = 1 + 1e-3
    with pytest.raises(ActionOutOfBounds, match=r"'actions' \(dimension 1\) is 1.001 in row 17"):
        Dataset.from_arrays(**log, action_low=-1, action_high=1)


def test_the_normaliser_centres_and_scales_and_leaves_constant_columns_alone():
    rng = np.random.default_rng(0)
    values = np.column_stack([rng.normal(1e4, 0.1, 100_000), np.full(100_000, 7.0), rng.normal(0, 3, 100_000)])
    values = values.astype(np.float32)
    normaliser = Normaliser.of(values)
    exact = values.astype(np.float64)
    np.testing.assert_allclose(normaliser.mean, exact.mean(axis=0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(normaliser.std[[0, 2]], exact.std(axis=0)[[0, 2]], rtol=1e-5)
    assert normaliser.std[1] == 1
    np.testing.assert_array_equal(normaliser(values)[:, 1], 0)


def test_selecting_episodes_keeps_whole_episodes_in_order():
    dataset = full_dataset()
    chosen = dataset.select_episodes([3, 0])
    rows = np.r_[0:10, 30:40]
    np.testing.assert_array_equal(chosen.rewards, dataset.rewards[rows])
    np.testing.assert_array_equal(chosen.source, dataset.source[rows])
    assert chosen.episode_ends.tolist() == [10, 20]
    np.testing.assert_array_equal(dataset.select_episodes(np.array([True, False, False, True])).costs, chosen.costs)
    with pytest.raises(EmptyData, match="none of the 4 episodes"):
        dataset.select_episodes([])
    with pytest.raises(InvalidSetting, match="4 episodes"):
        dataset.select_episodes(np.array([True]))


@pytest.mark.parametrize("name", [*columns(), "action_low"])
def test_the_fingerprint_changes_with_every_column(name):
    log = columns() | {"action_low": np.full(2, -3.0), "action_high": np.full(2, 3.0)}
    changed = np.array(log[name])
    changed[0] = ~changed[0] if changed.dtype == bool else changed[0] + 0.5
    assert Dataset.from_arrays(**log).fingerprint != Dataset.from_arrays(**log | {name: changed}).fingerprint


def test_metadata_must_be_json():
    with pytest.raises(InvalidSetting, match="metadata"):
        Dataset.from_arrays(**columns(), metadata={"policy": object()})


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [(1, -1, "less than"), (-1, None, "both"), ([-1] * 3, 1, "action_low"), (-np.inf, 1, "finite"), ("x", 1, "low")],
)
def test_senseless_action_bounds_are_refused(low, high, message):
    with pytest.raises(InvalidSetting, match=message):
        Dataset.from_arrays(**columns(), action_low=low, action_high=high)
