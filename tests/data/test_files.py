"""A dataset survives every file format unchanged, and other programs' files are understood."""

import subprocess
import sys

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from ringfence.data import ColumnMapping, Dataset, load_file, save
from ringfence.errors import (
    InvalidSetting,
    MissingColumns,
    MissingExtra,
    NonFiniteValue,
    UnreadableFile,
    WouldOverwrite,
)
from ringfence.files import atomic_write, write_json
from tests.data.example_logs import (
    ALL_FORMATS,
    SAVED_FORMATS,
    assert_same,
    columns,
    full_dataset,
    table_columns,
    without,
    write_foreign,
)


@pytest.mark.parametrize("suffix", SAVED_FORMATS)
def test_everything_survives_a_round_trip(tmp_path, suffix):
    dataset = full_dataset()
    save(dataset, tmp_path / f"log{suffix}")
    assert_same(load_file(tmp_path / f"log{suffix}"), dataset)


@pytest.mark.parametrize("suffix", SAVED_FORMATS)
def test_a_dataset_without_sources_and_with_an_unfinished_episode_survives_a_round_trip(tmp_path, suffix):
    dataset = Dataset.from_arrays(**columns(25))
    save(dataset, tmp_path / f"log{suffix}")
    assert_same(load_file(tmp_path / f"log{suffix}"), dataset)


@pytest.mark.parametrize("suffix", ALL_FORMATS)
def test_the_fingerprint_is_the_same_in_every_format(tmp_path, suffix):
    log = columns()
    path = write_foreign(log, tmp_path / f"log{suffix}")
    dataset = load_file(path)
    assert dataset.fingerprint == Dataset.from_arrays(**log).fingerprint
    assert dataset.name == "log"


@pytest.mark.parametrize("suffix", ALL_FORMATS)
def test_next_observations_are_derived_alike_in_every_format(tmp_path, suffix):
    log = without(columns(), "next_observations")
    dataset = load_file(write_foreign(log, tmp_path / f"log{suffix}"))
    assert dataset.fingerprint == Dataset.from_arrays(**log).fingerprint
    assert len(dataset) == 38  # two truncated episodes lose their last row
    assert any("2 rows" in note for note in dataset.notes)


@pytest.mark.parametrize("suffix", ALL_FORMATS)
def test_named_sources_are_understood(tmp_path, suffix):
    names = np.repeat(["fast", "slow", "fast", "öl"], 10)
    dataset = load_file(write_foreign(columns() | {"source": names}, tmp_path / f"log{suffix}"))
    assert [dataset.source_names[code] for code in dataset.source] == names.tolist()


@pytest.mark.parametrize("suffix", ALL_FORMATS)
def test_numbered_sources_are_understood(tmp_path, suffix):
    numbers = np.repeat([3, 0, 3, 12], 10)
    dataset = load_file(write_foreign(columns() | {"source": numbers}, tmp_path / f"log{suffix}"))
    assert [int(dataset.source_names[code]) for code in dataset.source] == numbers.tolist()


@pytest.mark.parametrize("suffix", ALL_FORMATS)
def test_an_episode_column_replaces_the_truncation_flag(tmp_path, suffix):
    log = without(columns(), "truncations") | {"episode": np.arange(40) // 10}
    dataset = load_file(write_foreign(log, tmp_path / f"log{suffix}"))
    np.testing.assert_array_equal(dataset.terminations, columns()["terminations"])
    np.testing.assert_array_equal(dataset.truncations, columns()["truncations"])


@pytest.mark.parametrize("suffix", ALL_FORMATS)
def test_a_column_that_is_not_used_is_noted(tmp_path, suffix):
    log = columns() | {"pressure": np.arange(40)}
    assert "not used: pressure" in load_file(write_foreign(log, tmp_path / f"log{suffix}")).notes


@pytest.mark.parametrize("suffix", ALL_FORMATS)
def test_a_misspelt_optional_column_is_refused_because_leaving_it_out_would_change_the_log(tmp_path, suffix):
    log = columns()
    misspelt = "terminatde" if suffix in (".csv", ".parquet") else "terminatoins"
    log[misspelt] = log.pop("terminations")
    with pytest.raises(MissingColumns, match=f"has '{misspelt}' but no 'termina.*': is it the terminations"):
        load_file(write_foreign(log, tmp_path / f"log{suffix}"))


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("terminations", "terminated"),
        ("terminations", "dones"),
        ("truncations", "truncated"),
        ("next_observations", "next_obs"),
        ("next_observations", "next_obser"),  # a name that damage cut short
    ],
)
def test_an_optional_array_under_another_word_is_refused_because_leaving_it_out_would_change_the_log(
    tmp_path, suffix, ours, theirs
):
    log = columns()
    log[theirs] = log.pop(ours)
    with pytest.raises(MissingColumns, match=f"has '{theirs}' but no '.*': is it the {ours}") as refused:
        load_file(write_foreign(log, tmp_path / f"log{suffix}"))
    assert "--columns" not in str(refused.value)  # which is for tables


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("standard", "theirs"),
    [("terminated", "terminals"), ("truncated", "timeouts"), ("next_obs_", "next_observations_")],
)
def test_an_optional_column_under_another_word_is_refused(tmp_path, suffix, standard, theirs):
    renamed = {name.replace(standard, theirs): values for name, values in table_columns(columns()).items()}
    path, table = tmp_path / f"log{suffix}", pa.table(renamed)
    pyarrow.csv.write_csv(table, path) if suffix == ".csv" else pq.write_table(table, path)
    with pytest.raises(MissingColumns, match=f"has '{theirs}.*' but no '{standard}.*--columns"):
        load_file(path)


def test_a_flag_under_another_word_is_refused_with_the_mapping_that_reads_it(tmp_path):
    names = {"terminated": "done"}
    table = pa.table({names.get(name, name): values for name, values in table_columns(columns()).items()})
    pq.write_table(table, tmp_path / "log.parquet")
    with pytest.raises(MissingColumns, match=r"\(--columns terminations=done\)"):
        load_file(tmp_path / "log.parquet")
    read = load_file(tmp_path / "log.parquet", columns=ColumnMapping(terminations="done"))
    np.testing.assert_array_equal(read.terminations, columns()["terminations"])


def test_float64_files_give_the_same_log_as_float32_files(tmp_path):
    log = columns()
    wide = {name: values.astype(np.float64) for name, values in log.items()}
    for suffix in (".h5", ".npz", ".parquet"):
        assert load_file(write_foreign(wide, tmp_path / f"w{suffix}")).fingerprint == (
            Dataset.from_arrays(**log).fingerprint
        )


def test_root_attributes_of_a_foreign_hdf5_file_give_bounds_sources_and_metadata(tmp_path):
    path = write_foreign(columns() | {"source": np.arange(40) // 20}, tmp_path / "log.h5")
    with h5py.File(path, "a") as file:
        file.attrs["action_low"], file.attrs["action_high"] = [-2.0, -3.0], [2.0, 3.0]
        file.attrs["source_names"] = ["ppo", "cpo"]
        file.attrs["task"], file.attrs["seed"] = "hopper", np.int64(7)
    dataset = load_file(path)
    assert dataset.action_low.tolist() == [-2, -3]
    assert dataset.action_high.tolist() == [2, 3]
    assert dataset.source_names == ("ppo", "cpo")
    assert dataset.metadata == {"task": "hopper", "seed": 7}


def test_stated_bounds_take_the_place_of_the_files(tmp_path):
    save(full_dataset(), tmp_path / "log.h5")
    dataset = load_file(tmp_path / "log.h5", action_low=-5, action_high=5)
    assert dataset.action_low.tolist() == [-5, -5]
    assert dataset.fingerprint != full_dataset().fingerprint


def test_numbered_columns_are_sorted_by_number_not_by_letter(tmp_path):
    log = columns()
    log["observations"] = np.tile(np.arange(12, dtype=np.float32), (40, 1))
    log["next_observations"] = log["observations"]
    assert load_file(write_foreign(log, tmp_path / "log.parquet")).observations[0].tolist() == list(range(12))
    assert load_file(write_foreign(log, tmp_path / "log.csv")).observations[0].tolist() == list(range(12))


def test_a_column_mapping_reads_a_table_with_its_own_names(tmp_path):
    (tmp_path / "pump.csv").write_text(
        "run,pressure,flow,valve,output,alarm,broke\n"
        "a,1.0,10,0.5,3,0,false\n"
        "a,2.0,11,0.6,4,1,true\n"
        "b,3.0,12,0.7,5,0,false\n"
        "b,4.0,13,0.8,6,0,false\n"
    )
    mapping = ColumnMapping(
        observations=["pressure", "flow"],
        actions=["valve"],
        rewards="output",
        costs="alarm",
        terminations="broke",
        episode="run",
    )
    dataset = load_file(tmp_path / "pump.csv", columns=mapping)
    # Run b was cut off: its last row is dropped and is known only as what followed the row before.
    assert dataset.observations.tolist() == [[1, 10], [2, 11], [3, 12]]
    assert dataset.next_observations.tolist() == [[2, 11], [2, 11], [4, 13]]
    assert dataset.costs.tolist() == [0, 1, 0]
    assert dataset.terminations.tolist() == [False, True, False]
    assert dataset.truncations.tolist() == [False, False, True]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_gives_its_column_names_and_units_to_the_log(tmp_path, suffix):
    log = columns()
    table = {f"x{index} [K]": log["observations"][:, index] for index in range(3)}
    table |= {"Tc": log["actions"][:, 0], "profit [EUR/h]": log["rewards"], "cost": log["costs"]}
    table["terminated"] = log["terminations"]
    schema = pa.schema([pa.field(name, pa.array(values).type) for name, values in table.items()])
    schema = schema.set(3, schema.field("Tc").with_metadata({"unit": "°C"}))
    if suffix == ".csv":
        pa.csv.write_csv(pa.table(table), tmp_path / "log.csv")
    else:
        pq.write_table(pa.table(table, schema=schema), tmp_path / "log.parquet")
    mapping = ColumnMapping(observations=["x0 [K]", "x1 [K]", "x2 [K]"], actions=["Tc"], rewards="profit [EUR/h]")
    dataset = load_file(tmp_path / f"log{suffix}", columns=mapping)
    assert dataset.observation_names == ("x0 [K]", "x1 [K]", "x2 [K]")
    assert dataset.action_names == ("Tc",)
    expected = {"x0 [K]": "K", "x1 [K]": "K", "x2 [K]": "K", "rewards": "EUR/h"}
    assert dataset.units == expected | ({"Tc": "°C"} if suffix == ".parquet" else {})


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_another_program_may_name_the_columns_of_its_arrays(tmp_path, suffix):
    names = {"observation_names": ["Tc", "flow", "öl"], "action_names": ["valve", "pump"]}
    path = tmp_path / f"log{suffix}"
    if suffix == ".h5":
        with h5py.File(write_foreign(columns(), path), "a") as file:
            for name, values in names.items():
                file.attrs[name] = values
    else:
        write_foreign(columns() | names, path)
    dataset = load_file(path)
    assert dataset.observation_names == ("Tc", "flow", "öl")
    assert dataset.action_names == ("valve", "pump")


def test_a_csv_that_begins_with_whole_numbers_may_go_on_with_fractions(tmp_path):
    log = columns(60_000)
    log["costs"] = np.where(np.arange(60_000) < 59_990, 0.0, 0.25)
    dataset = load_file(write_foreign(log, tmp_path / "log.csv"))
    assert dataset.costs[-1] == 0.25


def test_a_csv_without_a_final_line_break_is_noted(tmp_path):
    path = write_foreign(columns(), tmp_path / "log.csv")
    path.write_bytes(path.read_bytes().rstrip())
    assert any("may have been cut short" in note for note in load_file(path).notes)


@pytest.mark.parametrize("column", ["episode", "source"])
def test_an_empty_name_in_a_csv_is_refused(tmp_path, column):
    names = np.repeat(["a", "b", "", "c"], 10)
    path = write_foreign(columns() | {column: names}, tmp_path / "log.csv")
    with pytest.raises(NonFiniteValue, match=f"'{column}' has no value in row 20"):
        load_file(path)


def test_source_names_keep_their_order_when_another_program_rewrites_the_parquet_file(tmp_path):
    save(full_dataset(), tmp_path / "log.parquet")
    table = pq.read_table(tmp_path / "log.parquet")
    index = table.schema.get_field_index("source")
    plain = table.set_column(index, "source", table.column("source").cast(pa.string()))
    pq.write_table(plain, tmp_path / "rewritten.parquet")
    assert_same(load_file(tmp_path / "rewritten.parquet"), full_dataset())


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int8(), pa.string()), pa.large_string(), pa.string_view()], ids=str)
def test_ids_are_understood_in_all_types_that_text_has_in_parquet(tmp_path, kind):
    """A category of pandas is a dictionary whose indices are as small as can be."""
    columns = {"obs_0": [0.1] * 6, "action_0": [0.5] * 6, "reward": [1.0] * 6, "cost": [0.0] * 6}
    ids = {"episode": [*"aaabbb"], "source": ["öl"] * 3 + ["gas"] * 3}
    pq.write_table(
        pa.table(columns | {name: pa.array(values).cast(kind) for name, values in ids.items()}), tmp_path / "a.parquet"
    )
    log = load_file(tmp_path / "a.parquet")
    assert log.episode_starts.tolist() == [0, 2]
    assert [log.source_names[code] for code in log.source] == ["öl", "öl", "gas", "gas"]


def test_a_column_mapping_chooses_among_the_columns_of_a_file_of_ours(tmp_path):
    whole, path = full_dataset(), tmp_path / "log.parquet"
    save(whole, path)
    chosen = {"observations": ["obs_2", "obs_0"], "next_observations": ["next_obs_2", "next_obs_0"]}
    part = load_file(path, columns=chosen | {"actions": ["action_1"], "source": None})
    np.testing.assert_array_equal(part.observations, whole.observations[:, [2, 0]])
    np.testing.assert_array_equal(part.actions, whole.actions[:, [1]])
    assert (part.observation_names, part.action_names) == (("öl", "Tc [K]"), ("pump",))
    assert (part.action_low.tolist(), part.action_high.tolist()) == ([-1], [1.5])
    assert part.units == {"Tc [K]": "K", "pump": "1/min", "rewards": "€"}
    assert part.source is None
    assert part.metadata == whole.metadata

    chosen = {"observations": ["obs_0"], "next_observations": ["next_obs_0"], "actions": ["obs_1"]}
    other = load_file(path, columns=chosen | {"rewards": "action_0"})
    assert other.units == {"Tc [K]": "K"}
    assert other.action_names == ("flow",)
    assert other.source_names == whole.source_names


def test_damage_is_noticed_under_a_column_mapping_too(tmp_path):
    save(full_dataset(), tmp_path / "log.parquet")
    table = pq.read_table(tmp_path / "log.parquet")
    costs = table.schema.get_field_index("cost")
    pq.write_table(
        table.set_column(costs, table.field(costs), pa.array(np.zeros(40, np.float32))), tmp_path / "log.parquet"
    )
    with pytest.raises(UnreadableFile, match="checksum"):
        load_file(tmp_path / "log.parquet", columns={"observations": ["obs_0"]})


def test_an_archive_whose_index_hides_a_member_is_refused(tmp_path):
    path = tmp_path / "log.npz"
    save(full_dataset(), path)
    head, entry, tail = path.read_bytes().rpartition(b"ringfence.npy")  # the index stands at the end
    path.write_bytes(head + entry.replace(b"ring", b"wing") + tail)
    with pytest.raises(UnreadableFile, match="differ"):
        load_file(path)


def test_hdf5_files_are_written_in_the_layout_that_guards_itself(tmp_path):
    save(full_dataset(), tmp_path / "log.h5")
    superblock_version = (tmp_path / "log.h5").read_bytes()[8]
    assert superblock_version >= 2  # the first one with checksums


def test_nothing_is_overwritten_without_asking(tmp_path):
    path = tmp_path / "log.h5"
    save(full_dataset(), path)
    before = path.read_bytes()
    with pytest.raises(WouldOverwrite, match=r"log\.h5 exists"):
        save(Dataset.from_arrays(**columns()), path)
    assert path.read_bytes() == before
    save(Dataset.from_arrays(**columns()), path, overwrite=True)
    assert load_file(path).name == "log"


def test_an_unknown_format_is_not_written(tmp_path):
    with pytest.raises(InvalidSetting, match=r"log\.xls"):
        save(full_dataset(), tmp_path / "log.xls")
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "new" / "result.json"
    write_json(path, {"cost": np.float32(0.5), "steps": np.arange(2)})
    before = path.read_text()
    assert before.split() == ["{", '"cost":', "0.5,", '"steps":', "[", "0,", "1", "]", "}"]
    with pytest.raises(UnicodeEncodeError), atomic_write(path) as temporary:
        temporary.write_text("half \ud800", encoding="utf-8")  # the file exists by the time this fails
    with pytest.raises(TypeError, match="object"):
        write_json(path, object())
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.fixture
def minari_root(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def make_minari(dataset_id, with_costs=True):
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    log, buffers = columns(20), []
    for number, rows in enumerate((slice(0, 10), slice(10, 20))):
        costs = np.concatenate([[99.0], log["costs"][rows]])  # Minari keeps one entry for the reset
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=np.concatenate([log["observations"][rows], log["next_observations"][rows][-1:]]),
                actions=log["actions"][rows],
                rewards=log["rewards"][rows],
                terminations=log["terminations"][rows],
                truncations=log["truncations"][rows],
                infos={"cost": costs} if with_costs else {},
            )
        )
    minari.create_dataset_from_buffers(
        dataset_id,
        buffers,
        observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
        action_space=gymnasium.spaces.Box(-1, 1, (2,), np.float32),
    )
    return log


@pytest.mark.filterwarnings("ignore")
def test_a_minari_dataset_is_read_by_name_and_by_directory(minari_root):
    expected = Dataset.from_arrays(**make_minari("pump/mixed-v0"))
    by_name = load_file("minari:pump/mixed-v0")
    assert by_name.fingerprint == load_file(minari_root / "pump" / "mixed-v0").fingerprint == expected.fingerprint
    assert by_name.name == "pump/mixed-v0"


@pytest.mark.filterwarnings("ignore")
def test_a_minari_dataset_without_costs_is_told_how_to_give_them(minari_root):
    make_minari("pump/plain-v0", with_costs=False)
    with pytest.raises(MissingColumns, match=r"infos\['cost'\]"):
        load_file("minari:pump/plain-v0")
    assert not load_file("minari:pump/plain-v0", cost=lambda obs, act, nxt: np.zeros(len(obs))).costs.any()


@pytest.mark.filterwarnings("ignore")
def test_a_minari_file_cannot_make_us_start_its_environment(minari_root):
    import json

    make_minari("pump/mixed-v0")
    path = minari_root / "pump" / "mixed-v0" / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["action_space"]
    path.write_text(json.dumps(metadata))
    with pytest.raises(UnreadableFile, match="does not describe its observation and action space"):
        load_file("minari:pump/mixed-v0")


def test_minari_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtra, match=r"ringfence\[minari\]"):
        load_file("minari:pump/mixed-v0")


def test_an_absent_minari_dataset_says_how_to_get_it(minari_root):
    with pytest.raises(UnreadableFile, match="minari download pump/none-v0"):
        load_file("minari:pump/none-v0")


def test_the_data_door_opens_without_jax_matplotlib_or_minari():
    check = "import sys, ringfence.data; sys.exit(any(m in sys.modules for m in ('jax', 'matplotlib', 'minari')))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
