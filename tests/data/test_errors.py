"""Each kind of bad input has its own error, which says which column, which row and what to do."""

import numpy as np
import pytest

from ringfence import errors
from ringfence.data import ColumnMapping, Dataset, load_file
from tests.data.example_logs import columns, without, write_foreign


def with_value(name, row, value, dtype=np.float64):
    values = np.array(columns()[name], dtype=dtype)
    values[row] = value
    return columns() | {name: values}


BAD_ARRAYS = {
    "NaN": (
        with_value("observations", (17, 1), np.nan),
        errors.NonFiniteValue,
        r"'observations' \(dimension 1\) .* 17",
    ),
    "infinity": (with_value("rewards", 3, np.inf), errors.NonFiniteValue, r"'rewards' is inf in row 3"),
    "too large": (with_value("costs", 8, 1e300), errors.NonFiniteValue, r"'costs' .* row 8, too large to compute"),
    "NaN flag": (with_value("terminations", 5, np.nan), errors.NonFiniteValue, r"'terminations' is nan in row 5"),
    "odd flag": (with_value("truncations", 5, 2), errors.WrongShape, r"'truncations' is 2.0 in row 5"),
    "negative cost": (with_value("costs", 11, -0.5), errors.NegativeCost, r"'costs' is -0.5 in row 11"),
    "text": (columns() | {"rewards": ["a"] * 40}, errors.WrongShape, r"'rewards' holds text"),
    "objects": (
        columns() | {"actions": np.full((40, 2), None)},
        errors.WrongShape,
        r"'actions' \(dimension 0\) holds .* NoneType in row 0",
    ),
    "too few names": (
        with_value("observations", (17, 2), np.nan) | {"observation_names": ["a", "b"]},
        errors.NonFiniteValue,
        r"'observations' \(dimension 2\) .* 17",
    ),
    "ragged": (columns() | {"actions": [[1], [1, 2]]}, errors.WrongShape, r"'actions'"),
    "complex": (columns() | {"rewards": np.zeros(40, complex)}, errors.WrongShape, r"'rewards' .* complex"),
    "0-d": (columns() | {"rewards": 1.0}, errors.WrongShape, r"'rewards' has shape \(\)"),
    "1-d actions": (columns() | {"actions": np.zeros(40)}, errors.WrongShape, r"'actions' .*reshape\(-1, 1\)"),
    "3-d": (columns() | {"observations": np.zeros((40, 2, 2))}, errors.WrongShape, r"'observations' has shape"),
    "no width": (columns() | {"actions": np.zeros((40, 0))}, errors.WrongShape, r"'actions' has shape \(40, 0\)"),
    "other states": (
        columns() | {"next_observations": np.zeros((40, 2))},
        errors.WrongShape,
        r"'next_observations' has shape \(40, 2\)",
    ),
    "unequal": (columns() | {"costs": np.zeros(39)}, errors.UnequalLengths, r"'costs' has 39 rows .* row 39"),
    "no rows": ({name: values[:0] for name, values in columns().items()}, errors.EmptyData, "no rows"),
    "no flags": (without(columns(), "terminations", "truncations"), errors.NoEpisodeEnds, "where episodes end"),
    "no ends": (columns(9), errors.NoEpisodeEnds, "'terminations' or column 'truncations'"),
    "None": (columns() | {"rewards": None}, errors.MissingColumns, "rewards"),
    "masked": (
        columns() | {"rewards": np.ma.masked_array(np.ones(40), np.arange(40) == 4)},
        errors.NonFiniteValue,
        r"'rewards' is nan in row 4",
    ),
    "unnamed source": (columns() | {"source": [None] * 40}, errors.NonFiniteValue, r"'source' has no value in row 0"),
    "unknown source": (
        columns() | {"source": [0] * 39 + [2], "source_names": ["a", "b"]},
        errors.WrongShape,
        r"'source' is 2 in row 39",
    ),
    "wrong cost function": (columns() | {"costs": lambda o, a, n: a}, errors.WrongShape, "from the cost function"),
    "negative cost function": (columns() | {"costs": lambda o, a, n: -(a[:, 0] ** 2)}, errors.NegativeCost, "row 0"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_are_refused_with_column_and_row(case):
    arrays, error, message = BAD_ARRAYS[case]
    with pytest.raises(error, match=message):
        Dataset.from_arrays(**arrays)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [3.4e38, -3.4e38, 1.1e37])
def test_numbers_whose_differences_leave_float32_are_refused(value):
    with pytest.raises(errors.NonFiniteValue, match=r"'actions' \(dimension 0\).* too large to compute with"):
        Dataset.from_arrays(**columns() | {"actions": np.full((40, 2), value)})
    with pytest.raises(errors.InvalidSetting, match="finite numbers of at most"):
        Dataset.from_arrays(**columns(), action_low=-abs(value), action_high=1)


@pytest.mark.filterwarnings("error")
def test_the_largest_numbers_that_are_accepted_can_be_scaled():
    log = columns() | {"actions": np.full((40, 2), 1e37)}
    log["observations"] = np.where(np.arange(40)[:, None] == 3, -1e37, np.full((40, 3), 1e37))
    dataset = Dataset.from_arrays(**log)
    assert np.isfinite(dataset.action_high - dataset.action_low).all()
    assert np.isfinite(dataset.normaliser(dataset.observations)).all()


def test_a_late_offence_is_found_in_its_row(tmp_path):
    rows = 200_000  # more than one block
    log = columns(rows)
    log["next_observations"] = np.array(log["next_observations"])
    log["next_observations"][150_001, 2] = np.nan
    with pytest.raises(errors.NonFiniteValue, match="row 150001"):
        Dataset.from_arrays(**log)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_is_told_the_name_of_its_own_column(tmp_path, suffix):
    path = write_foreign(with_value("actions", (17, 1), np.nan), tmp_path / f"log{suffix}")
    with pytest.raises(errors.NonFiniteValue, match="column 'action_1' is nan in row 17"):
        load_file(path)


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_an_array_file_is_told_the_name_of_its_own_array(tmp_path, suffix):
    path = write_foreign(with_value("terminations", 5, 0.5), tmp_path / f"log{suffix}")
    with pytest.raises(errors.WrongShape, match=r"column 'terminals' is 0\.5 in row 5"):
        load_file(path)


@pytest.mark.parametrize("suffix", [".h5", ".npz", ".parquet", ".csv"])
def test_a_log_without_costs_is_told_how_to_give_them(tmp_path, suffix):
    path = write_foreign(without(columns(), "costs"), tmp_path / f"log{suffix}")
    with pytest.raises(errors.MissingColumns, match=r'add "costs?" .* cost=function'):
        load_file(path)
    assert load_file(path, cost=lambda obs, act, nxt: np.ones(len(obs))).costs.tolist() == [1.0] * 40


def test_text_in_a_csv_number_is_found_in_its_row(tmp_path):
    lines = write_foreign(columns(), tmp_path / "log.csv").read_text().splitlines()
    cells = lines[1 + 17].split(",")
    cells[1] = "broken"
    lines[1 + 17] = ",".join(cells)
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(errors.WrongShape, match="column 'obs_1' in row 17: invalid value 'broken'"):
        load_file(tmp_path / "log.csv")


def test_a_csv_line_of_the_wrong_length_is_named(tmp_path):
    path = write_foreign(columns(), tmp_path / "log.csv")
    path.write_text(path.read_text() + "1,2\n")
    with pytest.raises(errors.UnreadableFile, match="Row #42: Expected 12 columns, got 2"):
        load_file(path)


def test_gaps_and_repetitions_in_column_names_are_refused():
    mapping = ColumnMapping()
    with pytest.raises(errors.MissingColumns, match="'obs_1' should stand where 'obs_2' is"):
        mapping.resolve(["obs_0", "obs_2"])
    with pytest.raises(errors.MissingColumns, match="'obs_2' should stand where 'obs_1' is"):
        mapping.resolve(["obs_0", "obs_01", "obs_1"])
    with pytest.raises(errors.UnreadableFile, match="'reward' appears more than once"):
        mapping.resolve(["reward", "reward"])


def test_a_column_asked_for_by_name_must_exist():
    with pytest.raises(errors.MissingColumns, match="'speed'"):
        ColumnMapping(observations=["height", "speed"]).resolve(["height"])
    with pytest.raises(errors.MissingColumns, match="'run'"):
        ColumnMapping(episode="run").resolve(["obs_0"])


def test_paths_that_are_no_logs_get_one_clear_line(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01" * 50)
    np.savez(tmp_path / "pickled.npz", observations=np.array([{}, None], dtype=object))
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    for foreign in ("foreign.h5", "foreign.hdf5", "foreign.npz", "foreign.parquet"):
        (tmp_path / foreign).write_bytes(b"this is something else entirely " * 40)
    expected = {
        "absent.h5": "there is no file",
        ".": "not a Minari dataset",
        "notes.txt": "does not read",
        "binary.csv": "cannot be read as CSV",
        "pickled.npz": "pickled",
        "array.npz": "cannot be read as a NumPy archive",
        "foreign.h5": "cannot be read as HDF5",
        "foreign.hdf5": "cannot be read as HDF5",
        "foreign.npz": "cannot be read as a NumPy archive",
        "foreign.parquet": "cannot be read as Parquet",
    }
    for name, message in expected.items():
        with pytest.raises(errors.UnreadableFile, match=message) as caught:
            load_file(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(errors.EmptyData, match="empty"):
        load_file(tmp_path / "empty.csv")


def test_a_column_mapping_for_named_arrays_is_refused(tmp_path):
    path = write_foreign(columns(), tmp_path / "log.h5")
    with pytest.raises(errors.InvalidSetting, match="column mapping is for tables"):
        load_file(path, columns=ColumnMapping())


def test_what_is_for_tables_is_refused_for_a_minari_dataset(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metadata.json").write_text("{}")
    with pytest.raises(errors.InvalidSetting, match="column mapping is for tables"):
        load_file(tmp_path, columns={"costs": "rewards"})
    with pytest.raises(errors.InvalidSetting, match="is for CSV files"):
        load_file(tmp_path, csv_decimal=",")
