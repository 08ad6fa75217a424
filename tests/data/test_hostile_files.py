"""Files that would give wrong numbers, reach beyond themselves or fill the memory are refused in one line."""

import resource
import struct
import subprocess
import sys
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfence.data import Dataset, load_file, parquetfiles, save, sizes, summarise, thrift
from ringfence.data.parquetfooter import read_footer, require_stored_schema
from ringfence.errors import DataError, MissingColumns, NonFiniteValue, UnequalLengths, UnreadableFile, WrongShape
from tests.data.example_logs import DSRL_KEYS, assert_same, columns, full_dataset, table_columns, without, write_foreign


def refusal(path, error=UnreadableFile):
    with pytest.raises(error) as caught:
        load_file(path)
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
    return message


def hdf5_without(path, name):
    write_foreign(without(columns(), name), path)
    return h5py.File(path, "a")


# Parquet


def parquet_footer(path):
    content = path.read_bytes()
    size = int.from_bytes(content[-8:-4], "little")
    return content[: -8 - size], content[-8 - size : -8]


def write_parquet_footer(path, values, footer):
    path.write_bytes(values + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def varint(number):
    """As Thrift writes whole numbers: zigzag, seven bits a byte."""
    number, digits = 2 * number, []
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def test_a_parquet_file_that_declares_more_rows_than_it_holds_is_refused(tmp_path):
    path = write_foreign(columns(40), tmp_path / "log.parquet")
    values, footer = parquet_footer(path)
    # FileMetaData.num_rows is the first field of type i64 after the schema; 40 is 0x50 in zigzag.
    place = footer.index(b"\x16\x50")
    write_parquet_footer(path, values, footer[:place] + b"\x16" + varint(41) + footer[place + 2 :])
    assert "40 rows, but 41 are declared" in refusal(path)


def test_every_number_of_rows_in_a_parquet_footer_must_agree(tmp_path):
    """Each place that says 40 is made to say 39, 41 and 10^9: what pyarrow believes of these is not for us to guess."""
    path = write_foreign(columns(40), tmp_path / "log.parquet")
    values, footer = parquet_footer(path)
    original = load_file(path).fingerprint
    places = [place for place in range(len(footer)) if footer[place : place + 2] in (b"\x16\x50", b"\x26\x50")]
    refused = 0
    for place in places:
        for rows in (39, 41, 10**9):
            write_parquet_footer(path, values, footer[: place + 1] + varint(rows) + footer[place + 2 :])
            try:
                assert load_file(path).fingerprint == original
            except UnreadableFile:
                refused += 1
    assert len(places) >= 1 + 1 + 12  # of the file, of its row group, of each column
    assert refused >= 3 * 14


@pytest.mark.parametrize(("name", "other"), [("cost", "lost"), ("terminated", "terminates"), ("reward", "inward")])
def test_a_column_that_a_parquet_footer_calls_by_two_names_is_refused(tmp_path, name, other):
    """Once in its schema and once with the column's values; without the schema that Arrow adds."""
    path = tmp_path / "log.parquet"
    table = pa.table({name: pa.array(values) for name, values in table_columns(columns()).items()})
    pq.write_table(table, path, store_schema=False)
    values, footer = parquet_footer(path)
    in_schema = footer.index(name.encode())
    write_parquet_footer(path, values, footer[:in_schema] + other.encode() + footer[in_schema + len(other) :])
    assert f"column '{other}' is also called" in refusal(path)


def test_columns_must_have_the_names_of_the_schema_that_arrow_stores(tmp_path):
    path = write_foreign(columns(), tmp_path / "log.parquet")
    schema = pq.read_schema(path)
    with pytest.raises(UnreadableFile, match="names of its columns twice, and differently"):
        require_stored_schema(read_footer(path), schema.set(0, schema.field(0).with_name("x")), [])


def test_parquet_values_outside_the_range_that_the_file_states_are_refused(tmp_path):
    path = tmp_path / "log.parquet"
    table = pa.table({name: pa.array(values, pa.float64()) for name, values in table_columns(columns()).items()})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    cost = np.float64(columns()["costs"][17])
    assert path.read_bytes().count(cost.tobytes()) == 1
    path.write_bytes(path.read_bytes().replace(cost.tobytes(), np.float64(1e6).tobytes()))
    assert "column 'cost' holds values outside the range" in refusal(path)


def test_bytes_put_into_a_parquet_file_are_noticed(tmp_path):
    path = tmp_path / "log.parquet"
    log = columns() | {"source": np.full(40, 7)}
    table = pa.table({name: pa.array(values) for name, values in table_columns(log).items()})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    values, footer = parquet_footer(path)
    write_parquet_footer(path, values[:-20] + bytes(8) + values[-20:], footer)
    assert "belong to nothing" in refusal(path)


def test_a_parquet_footer_in_which_pyarrow_would_end_the_process_is_refused(tmp_path):
    """An unknown compression codec: asking pyarrow about the column aborts Python."""
    path = write_foreign(columns(), tmp_path / "log.parquet")
    values, footer = parquet_footer(path)
    fields, used = thrift.read_struct(footer)
    assert used == len(footer)
    chunk = fields[4][0][1][0][3]
    assert chunk[4] == 1  # Snappy
    place = footer.index(b"obs_0\x15\x02") + len(b"obs_0")  # field 4 after the path: codec
    write_parquet_footer(path, values, footer[: place + 1] + b"\x29" + footer[place + 2 :])
    refusal(path)


def test_the_footer_is_understood_as_pyarrow_understands_it(tmp_path):
    path = tmp_path / "log.parquet"
    log = columns() | {"source": np.repeat(["a", "b"], 20)}
    nested = {"inner": pa.array([{"x": 1, "y": [2, 3]}] * 40), "text": pa.array(["ö"] * 40)}
    table = pa.table({name: pa.array(values) for name, values in table_columns(log).items()} | nested)
    pq.write_table(table, path, row_group_size=15, write_page_index=True)
    footer, expected = read_footer(path), pq.ParquetFile(path).metadata
    assert list(footer.rows) == [expected.row_group(group).num_rows for group in range(3)] == [15, 15, 10]
    assert [b".".join(column.path).decode() for column in footer.columns] == [
        expected.schema.column(index).path for index in range(expected.num_columns)
    ]
    assert [column.nullable or column.repeated for column in footer.columns] == [
        expected.schema.column(index).max_definition_level > 0 for index in range(expected.num_columns)
    ]
    assert footer.keys[b"ARROW:schema"] == expected.metadata[b"ARROW:schema"]
    for group in range(3):
        for index in range(expected.num_columns):
            chunk, said = footer.chunks[group][index], expected.row_group(group).column(index)
            sizes_and_places = (said.num_values, said.total_compressed_size, said.data_page_offset)
            assert (chunk[5], chunk[7], chunk[9]) == sizes_and_places
        cost = expected.row_group(group).column(expected.schema.names.index("cost")).statistics
        assert footer.stated_range(group, "cost") == (cost.min, cost.max)


def test_a_column_of_lists_is_refused_for_its_type_and_not_as_damage(tmp_path):
    table = pa.table({name: pa.array(values) for name, values in table_columns(columns()).items()})
    pq.write_table(table.append_column("episode", pa.array([[row] for row in range(40)])), tmp_path / "log.parquet")
    assert "'episode' holds values of type list" in refusal(tmp_path / "log.parquet", WrongShape)


def test_a_type_that_the_stored_schema_does_not_have_is_refused(tmp_path):
    path = write_foreign(columns(), tmp_path / "log.parquet")
    schema = pq.read_schema(path)
    cost = schema.get_field_index("cost")
    require_stored_schema(read_footer(path), schema, ["cost"])
    for other in (pa.field("cost", pa.int64()), pa.field("cost", schema.field("cost").type, nullable=False)):
        with pytest.raises(UnreadableFile, match="'cost' is both of type"):
            require_stored_schema(read_footer(path), schema.set(cost, other), ["cost"])


class ShortFile:
    """A Parquet file that gives fewer rows than it promised, as pyarrow did for some damaged footers."""

    def __init__(self, path):
        self.file = pq.ParquetFile(path)
        self.schema_arrow = self.file.schema_arrow

    def iter_batches(self, *arguments, **options):
        return (batch.slice(0, len(batch) - 1) for batch in self.file.iter_batches(*arguments, **options))


def test_memory_that_no_value_was_written_to_is_never_returned(tmp_path):
    path = write_foreign(columns() | {"episode": np.arange(40) // 10}, tmp_path / "log.parquet")
    footer = read_footer(path)
    with pytest.raises(UnreadableFile, match="holds 39 rows, not the 40"):
        parquetfiles._read_numbers(ShortFile(path), footer, ("cost",))
    with pytest.raises(UnreadableFile, match="holds 39 rows, not the 40"):
        parquetfiles._read_ids(ShortFile(path), footer, "episode")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x15",
        b"\x15\x80",
        b"\x18\x7fhi",
        b"\x19\xf5\xff\xff\x7f",
        b"\x1c" * 99,
        b"\x1d\x00",
        b"\x15\x02\x05\x02\x02",
    ],
)
def test_malformed_thrift_is_refused(content):
    with pytest.raises(thrift.Malformed):
        thrift.read_struct(content)


# HDF5


def test_links_out_of_an_hdf5_file_are_refused(tmp_path):
    other = write_foreign(columns(), tmp_path / "other.h5")
    with hdf5_without(tmp_path / "external.h5", "costs") as file:
        file["costs"] = h5py.ExternalLink(other.name, "/costs")
    assert "'costs' is an external link" in refusal(tmp_path / "external.h5")
    with hdf5_without(tmp_path / "soft.h5", "costs") as file:
        file["costs"] = h5py.SoftLink("/rewards")
    assert "'costs' is a soft link" in refusal(tmp_path / "soft.h5")
    with hdf5_without(tmp_path / "dangling.h5", "terminations") as file:
        file["terminals"] = h5py.SoftLink("/nowhere")
    assert "'terminals' is a soft link" in refusal(tmp_path / "dangling.h5")


def test_a_virtual_hdf5_data_set_is_refused(tmp_path):
    """Where its source is missing it would read as 0: costs of 0."""
    with hdf5_without(tmp_path / "log.h5", "costs") as file:
        layout = h5py.VirtualLayout((40,), "f4")
        layout[:] = h5py.VirtualSource("missing.h5", "costs", (40,))
        file.create_virtual_dataset("costs", layout)
    assert "'costs' is a virtual data set" in refusal(tmp_path / "log.h5")


def test_hdf5_data_in_another_file_are_refused(tmp_path):
    (tmp_path / "secret").write_bytes(np.ones(40, "f4").tobytes())
    with hdf5_without(tmp_path / "log.h5", "costs") as file:
        file.create_dataset("costs", (40,), "f4", external=[(str(tmp_path / "secret"), 0, 160)])
    assert "'costs' is data in an external file" in refusal(tmp_path / "log.h5")


@pytest.mark.parametrize("options", [{}, {"chunks": (10,)}, {"chunks": (10,), "compression": "gzip"}])
def test_hdf5_values_that_were_never_written_are_not_read_as_zeros(tmp_path, options):
    with hdf5_without(tmp_path / "log.h5", "costs") as file:
        made = file.create_dataset("costs", (40,), "f4", **options)
        if options:
            made[:30] = 1.0  # the last chunk is missing
    assert "'costs' declares" in refusal(tmp_path / "log.h5")


@pytest.mark.parametrize("libver", ["earliest", "v108", "v110", "latest"])
@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"fillvalue": 0.0}])
@pytest.mark.parametrize("most", [None, 1000])
def test_hdf5_columns_that_were_grown_and_not_filled_are_refused(tmp_path, libver, options, most):
    """How a logger that was killed leaves them: the size is raised first, then the rows are written."""
    with h5py.File(tmp_path / "log.h5", "w", libver=libver) as file:
        for name, values in columns().items():
            rest = values.shape[1:]
            made = file.create_dataset(
                DSRL_KEYS.get(name, name), (30, *rest), "f4", chunks=(10, *rest), maxshape=(most, *rest), **options
            )
            made[:] = values[:30]
            made.resize(40, 0)
    assert "declares 4 chunks but the file holds 3; what was never written" in refusal(tmp_path / "log.h5")


def test_rows_of_a_chunk_that_were_not_filled_are_warned_of(tmp_path):
    """The chunk is there, so nobody can know; but rows of 0 in every column at the end of a log are said."""
    with h5py.File(tmp_path / "log.h5", "w") as file:
        for name, values in columns().items():
            rest = values.shape[1:]
            made = file.create_dataset(
                DSRL_KEYS.get(name, name), (30, *rest), "f4", chunks=(40, *rest), maxshape=(None, *rest)
            )
            made[:] = values[:30]
            made.resize(40, 0)
    (warning,) = (text for text in summarise(load_file(tmp_path / "log.h5")).warnings if "in every column" in text)
    assert "the last 10 rows are 0 in every column" in warning


def test_bytes_put_into_an_hdf5_file_are_noticed(tmp_path):
    path = write_foreign(columns(), tmp_path / "log.h5")
    content = path.read_bytes()
    path.write_bytes(content[:-50] + bytes(8) + content[-50:])
    assert f"has {len(content) + 8:,} bytes but states {len(content):,}" in refusal(path)


def test_an_hdf5_type_that_is_no_standard_number_is_refused(tmp_path):
    """A flipped bit in the exponent's bias halves every number."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_ebias(126)
    with hdf5_without(tmp_path / "log.h5", "costs") as file:
        space = h5py.h5s.create_simple((40,))
        h5py.h5d.create(file.id, b"costs", kind, space).write(h5py.h5s.ALL, h5py.h5s.ALL, np.ones(40, "f4"))
    assert "'costs' is of a type that is not standard" in refusal(tmp_path / "log.h5", WrongShape)


def test_two_columns_in_one_place_of_an_hdf5_file_are_refused(tmp_path):
    path = write_foreign(columns(), tmp_path / "log.h5")
    with h5py.File(path) as file:
        costs, rewards = (file[name].id.get_offset() for name in ("costs", "rewards"))
    content = path.read_bytes()
    assert content.count(costs.to_bytes(8, "little")) == 1
    path.write_bytes(content.replace(costs.to_bytes(8, "little"), rewards.to_bytes(8, "little")))
    assert "lie in the same place" in refusal(path)


def damaged_chunk(path, address, offset):
    """A chunked file without checksums, with the address and the place of its chunk of observations changed."""
    with h5py.File(path, "w", libver="earliest") as file:
        for name, values in columns().items():
            file.create_dataset(DSRL_KEYS.get(name, name), data=values, chunks=values.shape)
        chunk = file["observations"].id.get_chunk_info(0)
    content = path.read_bytes()
    before = struct.pack("<QQQQ", 0, 0, 0, chunk.byte_offset)
    assert content.count(before) == 1
    path.write_bytes(content.replace(before, struct.pack("<QQQQ", offset, 0, 0, address or chunk.byte_offset)))


@pytest.mark.parametrize("address", [8, 104, 140, 200, 700, 840])
def test_a_chunk_where_the_file_keeps_its_own_structures_is_refused(tmp_path, address):
    """Its bytes would be read as numbers, most of them 0."""
    damaged_chunk(tmp_path / "log.h5", address, 0)
    assert "'observations' lie where the file keeps its own structures" in refusal(tmp_path / "log.h5")


def test_a_chunk_that_the_index_does_not_lead_to_is_refused(tmp_path):
    """The chunk is listed, but its index ends before it: HDF5 does not find it and reads 0."""
    path = tmp_path / "log.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        for name, values in columns().items():
            file.create_dataset(DSRL_KEYS.get(name, name), data=values, chunks=values.shape, compression="gzip")
        chunk = file["costs"].id.get_chunk_info(0)
    content = path.read_bytes()
    rows = len(columns()["costs"])
    # The index: where the chunk begins and lies, then the key behind it (bytes, filters left out, row, byte of a value).
    begins = struct.pack("<QQQ", 0, 0, chunk.byte_offset)
    place = content.index(begins) + len(begins) + 8
    assert struct.unpack_from("<QQ", content, place) == (rows, 4)
    path.write_bytes(content[:place] + bytes(16) + content[place + 16 :])
    with h5py.File(path) as file:
        assert file["costs"].id.get_chunk_info(0) == chunk
        assert not file["costs"][()].any()
    assert "the index of 'costs' does not lead to the values that the file holds" in refusal(path)


def test_a_name_that_is_no_text_is_refused(tmp_path):
    """Left out with a note, it could be the terminations under a damaged name."""
    log = columns()
    path = write_foreign(log, tmp_path / "log.h5")
    with h5py.File(path, "a") as file:
        file.move("terminals", b"te\xe1\xff\x01\x02als")
    assert "which is no UTF-8 text" in refusal(path)


def test_a_chunk_that_begins_where_none_should_is_refused(tmp_path):
    """HDF5 finds nothing where it should begin, and reads 0."""
    damaged_chunk(tmp_path / "log.h5", None, 40)
    assert "what was never written would read as 0" in refusal(tmp_path / "log.h5")


@pytest.mark.parametrize(("suffix", "name"), [(".h5", "next_obServations"), (".npz", "nexp_observations")])
def test_next_observations_under_a_damaged_name_are_not_left_out(tmp_path, suffix, name):
    log = columns()
    path = write_foreign(
        without(log, "next_observations") | {name: log["next_observations"]}, tmp_path / f"log{suffix}"
    )
    assert f"'{name}' but no 'next_observations'" in refusal(path, MissingColumns)


def test_one_next_observation_of_a_table_under_a_damaged_name_is_not_left_out(tmp_path):
    log = columns() | {"observations": columns()["observations"][:, :1]}
    names = table_columns(without(log, "next_observations")) | {"nexp_obs_0": log["rewards"]}
    pq.write_table(pa.table({name: pa.array(values) for name, values in names.items()}), tmp_path / "log.parquet")
    assert "'nexp_obs_0' but no 'next_obs_0'" in refusal(tmp_path / "log.parquet", MissingColumns)


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_a_flag_that_is_neither_true_nor_false_is_refused(tmp_path, suffix):
    flags = columns()["terminations"].copy()
    flags.view(np.uint8)[3] = 64  # a boolean by type, and yet neither
    path = write_foreign(columns() | {"terminations": flags}, tmp_path / f"log{suffix}")
    with pytest.raises(WrongShape, match="'terminals' is 64 in row 3"):
        load_file(path)


# NumPy archives


def test_an_archive_that_holds_a_column_twice_is_refused(tmp_path):
    path = write_foreign(columns(), tmp_path / "log.npz")
    np.save(tmp_path / "costs.npy", np.zeros(40, np.float32))
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.write(tmp_path / "costs.npy", "costs.npy")
    assert "'costs' more than once" in refusal(path)


def test_fortran_order_and_float64_arrays_of_an_archive_are_understood(tmp_path):
    log = columns()
    wide = {name: np.asfortranarray(values, np.float64) for name, values in log.items()}
    np.savez(tmp_path / "log.npz", **{DSRL_KEYS.get(name, name): values for name, values in wide.items()})
    assert load_file(tmp_path / "log.npz").fingerprint == Dataset.from_arrays(**log).fingerprint


def test_a_flipped_bit_in_an_archive_of_another_program_is_refused(tmp_path):
    path = write_foreign(columns(), tmp_path / "log.npz")
    content = path.read_bytes()
    place = content.index(columns()["costs"].tobytes()) + 4 * 17
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert "CRC" in refusal(path)


# Sizes


def test_small_files_that_declare_gigabytes_are_refused_at_once_and_without_the_memory():
    """In a process of its own, where `giants` measures how far memory grows; the limit is for a reader that fails."""
    names = [
        "hdf5 contiguous 100000000 all",
        "hdf5 chunked 100000000 observations",
        "hdf5 large chunks 100000000 all",
        "hdf5 compact text 100000000 source",
        "npz 100000000 all True",
        "npz 100000000 costs False",
        "parquet footer varint 0",
    ]
    code = f"""
import resource
from pathlib import Path
from ringfence.errors import RingfenceError
from tests.campaigns import giants
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**32,) * 2)
for name in {names!r}:
    try:
        print(*giants.cases()[name]())
    except RingfenceError:
        print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused"] * len(names)


def test_an_honest_log_may_shrink_a_lot(tmp_path, monkeypatch):
    """Columns that never change compress a thousandfold; the log as a whole does not."""
    monkeypatch.setattr(sizes, "FLOOR_BYTES", 0)
    rows = 20_000
    log = columns(rows) | {"costs": np.zeros(rows), "rewards": np.ones(rows)}
    np.savez_compressed(tmp_path / "log.npz", **{DSRL_KEYS.get(name, name): values for name, values in log.items()})
    assert len(load_file(tmp_path / "log.npz")) == rows
    flat = {name: np.zeros_like(values) for name, values in log.items()} | {"terminations": np.ones(rows, bool)}
    np.savez_compressed(tmp_path / "flat.npz", **{DSRL_KEYS.get(name, name): values for name, values in flat.items()})
    assert "which a file of" in refusal(tmp_path / "flat.npz")


def test_a_log_that_needs_more_memory_than_there_is_is_refused(tmp_path, monkeypatch):
    def exhausted(*_, **__):
        raise MemoryError

    path = write_foreign(columns(), tmp_path / "log.h5")
    monkeypatch.setattr(Dataset, "from_arrays", exhausted)
    assert "more memory than this machine gives" in refusal(path)


# Ids


@pytest.mark.parametrize("suffix", [".h5", ".npz", ".parquet", ".csv"])
def test_ids_are_compared_as_they_were_written(tmp_path, suffix):
    """Time stamps of one second apart are one number in float32."""
    log = without(columns(), "terminations", "truncations")
    stamps = 1.7e9 + np.arange(40) // 10
    dataset = load_file(write_foreign(log | {"episode": stamps, "source": stamps}, tmp_path / f"log{suffix}"))
    assert len(dataset.episode_starts) == 4
    assert [float(name) for name in dataset.source_names] == np.unique(stamps).tolist()


@pytest.mark.parametrize("column", ["episode", "source"])
@pytest.mark.parametrize("suffix", [".h5", ".npz", ".parquet", ".csv"])
def test_nan_is_no_id(tmp_path, suffix, column):
    """Rows whose id was not recorded would all belong together."""
    ids = np.arange(40) // 10 + np.where(np.arange(40) // 10 == 2, np.nan, 0.0)
    with pytest.raises(NonFiniteValue, match=f"'{column}' has no value in row 20"):
        load_file(write_foreign(columns() | {column: ids}, tmp_path / f"log{suffix}"))


def test_ids_given_as_objects_are_numbers_or_text_and_not_both():
    log = without(columns(), "terminations", "truncations")
    halves = np.arange(40) // 20
    for ids in (halves.astype(object), (halves / 2).astype(object), np.where(halves, "a", "b").astype(object)):
        assert len(Dataset.from_arrays(**log, episode=ids).episode_starts) == 2
    with pytest.raises(WrongShape, match=r"both text and numbers \(row 0: 1, row 20: '1'\)"):
        Dataset.from_arrays(**log, episode=np.array([1] * 20 + ["1"] * 20, dtype=object))


@pytest.mark.parametrize(
    "names",
    [
        np.array([b"K\xe4lte", b"K\xf6lte"]),  # Latin-1, which is no UTF-8
        [b"K\xe4lte", b"K\xf6lte"],
        [b"a", b"a\x00"],
        ["a", "a\x00"],
        [2**60, 2**60 + 1, 0.5],
        [1.7e9, 1.7e9 + 0.25],
    ],
)
@pytest.mark.parametrize("column", ["episode", "source"])
def test_no_two_ids_become_one_on_the_way_into_an_array(column, names):
    ids = [names[row // 10 % len(names)] for row in range(10 * len(names))]
    log = columns(10 * len(names)) | {column: np.array(ids) if isinstance(names, np.ndarray) else ids}
    dataset = Dataset.from_arrays(**(without(log, "terminations", "truncations") if column == "episode" else log))
    found = dataset.source_names if column == "source" else dataset.episode_starts
    assert len(found) == len(names)


def test_ids_in_a_list_are_numbers_or_text_and_not_both():
    with pytest.raises(WrongShape, match=r"both text and numbers \(row 0: 1, row 20: '1'\)"):
        Dataset.from_arrays(**columns(), episode=[1] * 20 + ["1"] * 20)


@pytest.mark.parametrize("column", ["episode", "source"])
def test_a_masked_id_is_none(column):
    ids = np.ma.masked_array(np.arange(40) // 10, np.arange(40) // 10 == 2)
    with pytest.raises(NonFiniteValue, match=f"'{column}' has no value in row 20"):
        Dataset.from_arrays(**columns() | {column: ids})


@pytest.mark.parametrize("suffix", [".h5", ".npz", ".parquet", ".csv"])
def test_mixed_rows_of_several_episodes_are_refused_with_what_to_do(tmp_path, suffix):
    log = without(columns(), "terminations", "truncations") | {"episode": np.arange(40) % 2}
    with pytest.raises(WrongShape, match=r"comes back in row 2 to the id of row 0.*sort the rows by episode"):
        load_file(write_foreign(log, tmp_path / f"log{suffix}"))


def test_an_id_may_be_used_again_after_its_episode_has_ended():
    log = without(columns(6), "truncations")
    dataset = Dataset.from_arrays(**log | {"terminations": [0, 1, 0, 1, 0, 1]}, episode=[1, 1, 2, 2, 1, 1])
    assert len(dataset.episode_starts) == 3
    with pytest.raises(WrongShape, match="row 4"):
        Dataset.from_arrays(**log | {"terminations": [0, 0, 0, 1, 0, 1]}, episode=[1, 1, 2, 2, 1, 1])


def test_long_names_do_not_cost_memory_in_every_row(tmp_path):
    rows = 20_000
    names = np.full(rows, "a", object)
    names[7] = "x" * 100_000  # as text of one fixed width: 8 GB
    ends = np.arange(rows) % 100 == 99
    log = columns(rows) | {"terminations": ends, "truncations": ~ends & False}
    path = write_foreign(log, tmp_path / "log.h5")
    with h5py.File(path, "a") as file:
        file.create_dataset("source", data=names, dtype=h5py.string_dtype())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert load_file(path).source.tolist().count(1) == 1
    assert Dataset.from_arrays(**log, source=names).source.tolist().count(1) == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes


def test_a_source_column_with_a_value_for_every_row_is_refused():
    log = columns(2000)
    with pytest.raises(WrongShape, match="2000 different values"):
        Dataset.from_arrays(**log, source=np.arange(2000) / 7)


# What a file says about its log


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("source_names", 5, "'source_names' must be a list of text"),
        ("source_names", [[b"a"], [b"b"]], "'source_names' must be a list of text"),
        ("source_names", [1.5, 2.5], "'source_names' must be a list of text"),
        ("source_names", "ab", "which is none of the 1 named behaviours"),
        ("source_names", [b"a", b"a"], "has a name twice"),
        ("observation_names", 7, "'observation_names' must be a list of text"),
        ("observation_names", ["a", "b"], "2 names for the observations"),
        ("action_low", b"low", "'action_low' must be a list of finite numbers"),
        ("action_low", [np.nan, 0], "'action_low' must be a list of finite numbers"),
        ("action_low", np.zeros((3, 3)), "'action_low' must be a list of finite numbers"),
    ],
)
def test_odd_attributes_of_an_hdf5_file_are_refused_in_one_line(tmp_path, key, value, message):
    path = write_foreign(columns() | {"source": np.arange(40) // 20}, tmp_path / "log.h5")
    with h5py.File(path, "a") as file:
        file.attrs["action_high"] = [1.0, 1.0]
        file.attrs["action_low"] = [-1.0, -1.0]
        file.attrs[key] = value
    with pytest.raises(DataError, match=message):
        load_file(path)


def test_attributes_that_hold_nothing_are_as_good_as_none(tmp_path):
    path = write_foreign(columns(), tmp_path / "log.h5")
    expected = load_file(path)
    with h5py.File(path, "a") as file:
        file.attrs["operator"] = h5py.Empty("S10")
        file.attrs["action_low"] = h5py.Empty("f4")
    assert_same(load_file(path), expected)


@pytest.mark.parametrize(
    "header", [[], {"name": []}, {"notes": 3}, {"units": 3}, {"metadata": [1]}, {"source_names": 5}]
)
def test_an_odd_entry_with_a_right_checksum_is_refused_in_one_line(tmp_path, header):
    from ringfence.data.hdf5files import write_hdf5
    from ringfence.data.writers import to_raw_log

    log = to_raw_log(full_dataset())
    log.header = header
    write_hdf5(log, tmp_path / "log.h5")
    refusal(tmp_path / "log.h5", DataError)


def test_metadata_that_json_cannot_hold_become_text(tmp_path):
    path = write_foreign(columns(), tmp_path / "log.h5")
    with h5py.File(path, "a") as file:
        file.attrs["temperature"] = np.nan
    assert load_file(path).metadata == {"temperature": "nan"}


def test_a_name_that_cannot_be_printed_is_shown_by_its_number(tmp_path):
    save(full_dataset(), tmp_path / "log.npz")
    odd = tmp_path / "l\udcffg.npz"
    (tmp_path / "log.npz").rename(odd)
    write_foreign(columns(), odd)
    assert load_file(odd).name == "l\\udcffg"


# Minari


@pytest.fixture
def minari_file(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    from tests.campaigns.originals import originals, write_minari_directory

    content = next(original.content for original in originals() if original.name == "minari")
    write_minari_directory(tmp_path / "log", content)
    load_file(tmp_path / "log")
    return tmp_path / "log" / "data" / "main_data.hdf5"


def test_links_and_virtual_data_in_a_minari_file_are_refused(minari_file, tmp_path):
    with h5py.File(minari_file, "a") as file:
        del file["episode_1/infos/cost"]
        file["episode_1/infos/cost"] = h5py.SoftLink("/episode_1/rewards")
    with pytest.raises(UnreadableFile, match="'episode_1/infos/cost' is a soft link"):
        load_file(tmp_path / "log")


@pytest.mark.parametrize(("value", "error"), [(np.nan, NonFiniteValue), (7.0, WrongShape)])
@pytest.mark.parametrize("flag", ["terminations", "truncations"])
def test_a_flag_of_a_minari_file_that_is_neither_true_nor_false_is_refused(minari_file, tmp_path, flag, value, error):
    with h5py.File(minari_file, "a") as file:
        flags = file[f"episode_0/{flag}"][()].astype(np.float64)
        flags[30] = value
        del file[f"episode_0/{flag}"]
        file[f"episode_0/{flag}"] = flags
    with pytest.raises(error, match=f"'{flag}' is {value} in row 30"):
        load_file(tmp_path / "log")


def test_episodes_of_a_minari_file_whose_lengths_make_up_for_each_other_are_refused(minari_file, tmp_path):
    with h5py.File(minari_file, "a") as file:
        first, second = file["episode_0/actions"][()], file["episode_1/actions"][()]
        del file["episode_0/actions"], file["episode_1/actions"]
        file["episode_0/actions"], file["episode_1/actions"] = first[:-1], np.concatenate([second, first[-1:]])
    with pytest.raises(UnequalLengths, match="episode 0 has 60 rewards but 59 actions"):
        load_file(tmp_path / "log")


def test_a_minari_file_that_lacks_steps_is_refused(minari_file, tmp_path):
    metadata = minari_file.with_name("metadata.json")
    metadata.write_text(metadata.read_text().replace('"total_steps": 120', '"total_steps": 130'))
    with pytest.raises(UnreadableFile, match="declares 130 steps but holds 120"):
        load_file(tmp_path / "log")


def test_a_message_is_one_line_whatever_names_a_file_has():
    message = str(WrongShape("column 'ob\n_1\x1b[2J \udcff' is also called 'öl'"))
    assert message == "column 'ob\\n_1\\x1b[2J \\udcff' is also called 'öl'"
