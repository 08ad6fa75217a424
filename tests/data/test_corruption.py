"""Whatever happens to a log or its file: a clear error, or the very same log. Never another exception, never a
log that is silently different."""

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringfence import errors
from ringfence.data import Dataset, load_file, save
from tests.data.example_logs import ALL_FORMATS, assert_same, columns, full_dataset, without, write_foreign

ROWS = 40
NUMBERS = ("observations", "actions", "rewards", "costs", "next_observations")
FLAGS = ("terminations", "truncations")
ARRAY_FORMATS = (".h5", ".npz")  # can hold what no table can: other shapes, unequal lengths

many = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def build(log, suffix):
    """The dataset, from arrays or by way of a file that another program wrote."""
    if suffix == "arrays":
        return Dataset.from_arrays(**log)
    with tempfile.TemporaryDirectory() as directory:
        return load_file(write_foreign(log, Path(directory) / f"log{suffix}"))


# What may be wrong with the values: each returns the damaged log, the error, and what the message must name.


def put(log, column, row, dimension, value):
    values = np.array(log[column], dtype=np.float64)
    values[(row, dimension % values.shape[1]) if values.ndim == 2 else row] = value
    return log | {column: values}


@st.composite
def damaged_values(draw):
    log = columns(ROWS)
    kind = draw(st.sampled_from(["nan", "inf", "huge", "negative cost", "odd flag", "action", "dropped"]))
    row, dimension = draw(st.integers(0, ROWS - 1)), draw(st.integers(0, 2))
    if kind in ("nan", "inf", "huge"):
        value = {"nan": np.nan, "inf": -np.inf, "huge": 1e39}[kind]
        return put(log, draw(st.sampled_from(NUMBERS)), row, dimension, value), errors.NonFiniteValue, f"row {row},"
    if kind == "negative cost":
        return put(log, "costs", row, 0, -draw(st.floats(1e-6, 1e6))), errors.NegativeCost, f"row {row};"
    if kind == "odd flag":
        damaged = put(log, draw(st.sampled_from(FLAGS)), row, 0, draw(st.sampled_from([2, -1, 0.5])))
        return damaged, errors.WrongShape, f"row {row};"
    if kind == "action":
        damaged = put(log, "actions", row, dimension, draw(st.sampled_from([-1, 1])) * draw(st.floats(1.001, 1e6)))
        return damaged | {"bounds": 1}, errors.ActionOutOfBounds, f"row {row},"
    column = draw(st.sampled_from(["observations", "actions", "rewards", "costs"]))
    return without(log, column), errors.MissingColumns, {"observations": "obs"}.get(column, column[:-1])


@many
@given(damaged_values(), st.sampled_from(ALL_FORMATS))
def test_a_damaged_value_is_named_in_every_format(damage, suffix):
    log, error, message = damage
    bounds = log.pop("bounds", None)
    limits = {} if bounds is None else {"action_low": -bounds, "action_high": bounds}
    with tempfile.TemporaryDirectory() as directory:
        path = write_foreign(log, Path(directory) / f"log{suffix}")
        if suffix == ".csv" and error is errors.WrongShape:
            message = message.replace(";", ":")
        with pytest.raises(error) as caught:
            load_file(path, **limits)
    assert message in str(caught.value)


@st.composite
def damaged_shapes(draw):
    log = columns(ROWS)
    column = draw(st.sampled_from((*NUMBERS, *FLAGS)))
    kind = draw(st.sampled_from(["text", "scalar", "extra dimension", "shorter", "longer", "empty", "all empty"]))
    values = np.asarray(log[column])
    if kind == "text":
        return log | {column: np.full(values.shape, "x")}, errors.WrongShape, column
    if kind == "scalar":
        return log | {column: values.flat[0]}, errors.WrongShape, column
    if kind == "extra dimension":
        return log | {column: np.stack([values, values], axis=-1)[..., None]}, errors.WrongShape, column
    if kind == "all empty":
        return {name: np.asarray(array)[:0] for name, array in log.items()}, errors.EmptyData, "no rows"
    rows = {"shorter": draw(st.integers(1, ROWS - 1)), "longer": ROWS + 3, "empty": 0}[kind]
    changed = np.concatenate([values, values])[:rows]
    other = {"observations": "actions"}.get(column, column)  # the first column is what others are compared with
    return log | {column: changed}, errors.UnequalLengths, other


@many
@given(damaged_shapes(), st.sampled_from(("arrays", *ARRAY_FORMATS)))
def test_a_damaged_shape_is_named_in_every_format(damage, suffix):
    log, error, name = damage
    with pytest.raises(error) as caught:
        build(log, suffix)
    in_file = {"terminations": "terminals", "truncations": "timeouts"}
    assert (name if suffix == "arrays" else in_file.get(name, name)) in str(caught.value)


# What may be wrong with the bytes.


@cache
def saved_bytes(suffix):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"log{suffix}"
        save(full_dataset(), path)
        return path.read_bytes()


@cache
def csv_bytes():
    with tempfile.TemporaryDirectory() as directory:
        return write_foreign(columns(ROWS), Path(directory) / "log.csv").read_bytes()


def load_bytes(content, suffix):
    """The dataset, or None where it was refused with a clear message."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"log{suffix}"
        path.write_bytes(content)
        try:
            return load_file(path)
        except errors.RingfenceError as error:
            message = str(error)
    assert len(message) > 20
    assert "\n" not in message
    return None


def damage_bytes(draw, content):
    place = draw(st.integers(0, len(content) - 1))
    kind = draw(st.sampled_from(["flip", "flip", "cut", "insert", "overwrite", "zero"]))
    if kind == "flip":
        return content[:place] + bytes([content[place] ^ draw(st.integers(1, 255))]) + content[place + 1 :]
    if kind == "cut":
        return content[:place]
    noise = draw(st.binary(min_size=1, max_size=64))
    if kind == "insert":
        return content[:place] + noise + content[place:]
    if kind == "zero":
        noise = bytes(len(noise))
    return content[:place] + noise + content[place + len(noise) :]


@many
@given(st.data(), st.sampled_from([".h5", ".npz", ".parquet"]))
def test_damaged_bytes_of_a_saved_file_are_refused_or_make_no_difference(data, suffix):
    dataset = load_bytes(damage_bytes(data.draw, saved_bytes(suffix)), suffix)
    if dataset is not None:
        assert_same(dataset, full_dataset())


def test_a_parquet_file_of_ours_whose_keys_all_vanished_is_refused():
    """Two zeros over the list of keys in the footer, found by the test above: what is left is a good Parquet file."""
    content = saved_bytes(".parquet")
    place = content.index(b"\x18\tringfence") - 2
    assert load_bytes(content[:place] + bytes(2) + content[place + 2 :], ".parquet") is None


@pytest.mark.parametrize("suffix", [".h5", ".npz", ".parquet"])
def test_damaged_bytes_do_make_a_difference_somewhere(suffix):
    """The test above would pass on a reader that refuses nothing if damage never mattered."""
    content, places = saved_bytes(suffix), range(0, len(saved_bytes(suffix)), 97)
    outcomes = [
        load_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :], suffix) for place in places
    ]
    assert sum(outcome is None for outcome in outcomes) > len(outcomes) / 2


@many
@given(st.integers(0, len(csv_bytes()) - 1), st.integers(1, 255))
def test_one_damaged_byte_of_a_csv_changes_at_most_one_row_or_is_noted(place, change):
    """CSV has no checksum: a digit may become another digit. Nothing worse may pass without a word."""
    content = csv_bytes()
    dataset = load_bytes(content[:place] + bytes([content[place] ^ change]) + content[place + 1 :], ".csv")
    if dataset is None or any("not used" in note or "cut short" in note for note in dataset.notes):
        return
    original = Dataset.from_arrays(**columns(ROWS))
    assert len(dataset) == len(original)
    changed = np.zeros(ROWS, bool)
    for name in (*NUMBERS, *FLAGS):
        before, after = getattr(original, name), getattr(dataset, name)
        assert before.shape == after.shape
        changed |= (before != after).reshape(ROWS, -1).any(axis=1)
    assert changed.sum() <= 1


@many
@given(st.integers(0, len(csv_bytes())))
def test_a_csv_cut_short_is_refused_or_holds_the_rows_before_the_cut(place):
    dataset = load_bytes(csv_bytes()[:place], ".csv")
    if dataset is None:
        return
    whole = len(dataset) - any("cut short" in note for note in dataset.notes)
    np.testing.assert_array_equal(dataset.observations[:whole], columns(ROWS)["observations"][:whole])
    np.testing.assert_array_equal(dataset.costs[:whole], columns(ROWS)["costs"][:whole])
