"""What a Dataset holds and derives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.data import Dataset, Normaliser, episode_table, load_file, save
from ringfence.errors import ActionOutOfBounds, EmptyData, InvalidSetting, NonFiniteValue, WrongShape
from tests.data.example_logs import assert_same, columns, full_dataset, without


def test_a_dataframe_keeps_its_names_and_may_mix_numbers_and_booleans():
    pandas = pytest.importorskip("pandas")
    log = columns()
    observations = pandas.DataFrame(log["observations"], columns=["T [K]", "level", "open"]).assign(open=True)
    found = Dataset.from_arrays(**log | {"observations": observations})
    assert found.observation_names == ("T [K]", "level", "open")
    np.testing.assert_array_equal(found.observations[:, :2], np.float32(log["observations"][:, :2]))
    assert (found.observations[:, 2] == 1).all()
    words = observations.assign(open=["yes"] * 40)
    with pytest.raises(WrongShape, match="column 'open' holds a value of type str in row 0"):
        Dataset.from_arrays(**log | {"observations": words})


@pytest.mark.parametrize("kind", ["datetime64[D]", object])
def test_dates_name_episodes_in_arrays_as_they_do_in_files(kind):
    days = (np.datetime64("2026-01-01") + np.arange(40) // 10).astype(kind)
    log = without(columns(), "terminations", "truncations", "next_observations")
    assert len(Dataset.from_arrays(**log, episode=days).episode_starts) == 4
    days[7] = None
    with pytest.raises(NonFiniteValue, match="'episode' has no value in row 7"):
        Dataset.from_arrays(**log, episode=days)


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


def test_a_column_of_large_numbers_that_hardly_change_is_no_larger_than_others_after_scaling():
    """Half an hour in seconds since 1970: float32 has steps of 128 there, and the spread is a millionth of the size."""
    seconds = (1.7e9 + np.arange(1800.0)).astype(np.float32)[:, None]
    normaliser = Normaliser.of(seconds)
    assert np.abs(normaliser(seconds)).max() < 1
    assert Normaliser.of(np.full((5, 1), 1e6, np.float32)).std == 1


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


@pytest.mark.parametrize("chosen", [[4], [-1], [0.0], [[0, 9]]])
def test_episodes_that_do_not_exist_are_refused(chosen):
    with pytest.raises(InvalidSetting, match="episode"):
        full_dataset().select_episodes(chosen)


def test_a_selection_says_that_its_last_episode_is_unfinished_only_if_it_is():
    dataset = Dataset.from_arrays(**columns(25))
    unfinished = "the last episode (5 rows) is unfinished: it neither terminated nor was truncated"
    assert unfinished in dataset.select_episodes([0, 2]).notes
    assert unfinished in dataset.select_episodes([2]).notes
    assert unfinished not in dataset.select_episodes([0, 1]).notes


def log_of_episodes(lengths, sources=None, last_end=True):
    """Episodes of these lengths whose rewards are the number of the episode."""
    rows = sum(lengths)
    ends = np.isin(np.arange(rows), np.cumsum(lengths) - 1)
    ends[-1] = last_end
    log = without(columns(rows), "truncations") | {"rewards": np.repeat(np.arange(len(lengths)), lengths)}
    source = None if sources is None else np.repeat(sources, lengths)
    return Dataset.from_arrays(**log | {"terminations": ends}, source=source)


def test_the_horizon_is_the_length_of_the_longest_episode():
    dataset = log_of_episodes([3, 7, 2])
    assert dataset.horizon == 7
    assert dataset.select_episodes([0, 2]).horizon == 3


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from("abc")), min_size=2, max_size=30),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_holding_out_divides_the_log_into_two_parts_of_whole_episodes(episodes, share, seed, finished):
    lengths, sources = zip(*episodes, strict=True)
    dataset = log_of_episodes(lengths, sources, finished or len(lengths) == 2)
    train, held_out = dataset.hold_out(share, seed)
    again = dataset.hold_out(share, seed)
    assert (train.fingerprint, held_out.fingerprint) == (again[0].fingerprint, again[1].fingerprint)
    parts = {number: part for part in (train, held_out) for number in np.unique(part.rewards).tolist()}
    assert sorted(parts) == list(range(len(lengths)))  # each episode is in one part ...
    assert len(train) + len(held_out) == len(dataset)  # ... and whole
    for number, part in parts.items():
        np.testing.assert_array_equal(
            part.observations[part.rewards == number], dataset.observations[dataset.rewards == number]
        )
        assert part.source_names[part.source[part.rewards == number][0]] == sources[int(number)]
    assert held_out.terminations[-1]  # an unfinished episode judges nothing
    assert len(held_out.episode_starts) == np.clip(round(share * len(lengths)), 1, len(lengths) - 1)


def test_each_source_is_held_out_in_proportion():
    dataset = log_of_episodes([2] * 60, ["a"] * 40 + ["b"] * 20)
    train, held_out = dataset.hold_out(0.25, seed=1)
    assert [int((held_out.source[held_out.episode_starts] == code).sum()) for code in (0, 1)] == [10, 5]
    assert len(train.episode_starts) == 45
    assert held_out.fingerprint != dataset.hold_out(0.25, seed=2)[1].fingerprint


def test_a_source_of_one_episode_is_learned_from_and_sources_do_not_matter_where_each_has_one():
    train, _ = log_of_episodes([2] * 10, ["a"] * 9 + ["b"]).hold_out(0.5)
    assert (train.source == 1).any()
    train, held_out = log_of_episodes([2] * 4, list("abcd")).hold_out(0.5)
    assert len(train.episode_starts) == len(held_out.episode_starts) == 2


def test_a_log_that_cannot_be_divided_is_refused():
    with pytest.raises(EmptyData, match="two episodes"):
        log_of_episodes([5]).hold_out(0.2)
    for share in (0, 1, -0.5, np.nan):
        with pytest.raises(InvalidSetting, match="between 0 and 1"):
            log_of_episodes([5, 5]).hold_out(share)


def test_a_part_survives_being_saved(tmp_path):
    _, held_out = full_dataset().hold_out(0.5)
    save(held_out, tmp_path / "part.h5")
    assert_same(load_file(tmp_path / "part.h5"), held_out)


def test_columns_without_names_are_numbered():
    dataset = Dataset.from_arrays(**columns())
    assert dataset.observation_names == ("obs_0", "obs_1", "obs_2")
    assert dataset.action_names == ("action_0", "action_1")
    assert dataset.units == {}


def test_names_stay_with_a_part_of_the_log_and_are_no_part_of_its_fingerprint():
    names = {"observation_names": ["a", "b", "c"], "action_names": ["u", "v"], "units": {"a": "K"}}
    dataset = Dataset.from_arrays(**columns(), **names)
    part = dataset.select_episodes([1])
    assert (part.observation_names, part.action_names, part.units) == (("a", "b", "c"), ("u", "v"), {"a": "K"})
    assert dataset.fingerprint == Dataset.from_arrays(**columns()).fingerprint


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"observation_names": ["a", "b"]}, "2 names for the observations, which have 3"),
        ({"observation_names": ["a", "b", "a"]}, "'a' appears more than once"),
        ({"action_names": ["u", " "]}, "one is empty"),
        ({"action_names": [1, 2]}, "list of text"),
        ({"units": {"speed": "m/s"}}, "'speed'"),
        ({"units": {"obs_0": 3}}, "3; needed: text"),
    ],
)
def test_names_that_do_not_fit_the_columns_are_refused(names, message):
    with pytest.raises(WrongShape, match=message):
        Dataset.from_arrays(**columns(), **names)


def test_names_may_come_in_an_array_as_the_columns_of_a_table_do():
    dataset = Dataset.from_arrays(
        **columns(), observation_names=np.array(["a", "b", "c"]), action_names=np.array(["u", "v"])
    )
    assert (dataset.observation_names, dataset.action_names) == (("a", "b", "c"), ("u", "v"))


def test_a_named_column_is_called_by_its_name_in_errors():
    log = columns()
    log["observations"] = np.where(np.arange(3) == 1, np.nan, log["observations"])
    with pytest.raises(NonFiniteValue, match="column 'flow' is nan in row 0"):
        Dataset.from_arrays(**log, observation_names=["Tc", "flow", "level"])


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
