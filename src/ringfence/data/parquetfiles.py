"""Parquet files: one column per number."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from ringfence.data.checks import BLOCK_ROWS, blocks
from ringfence.data.columnmapping import MATRICES, ColumnMapping
from ringfence.data.parquetfooter import Footer, read_footer, require_stored_schema
from ringfence.data.rawlog import ENTRY, RawLog, pack_entry, reading, unpack_entry, verify
from ringfence.data.tables import FLAGS, IDS, fill, set_column_names, set_ids, set_numbers
from ringfence.errors import EmptyData, UnreadableFile, WrongShape

FIELD_ID, OUR_FIELD = b"PARQUET:field_id", b"1380337222"


def read_parquet(path: Path, mapping: ColumnMapping) -> RawLog:
    with reading(path, "Parquet"):
        footer = read_footer(path)  # before a library that could crash on it
        with pa.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            return _read(path, file, footer, mapping)


def _read(path: Path, file: pa.parquet.ParquetFile, footer: Footer, mapping: ColumnMapping) -> RawLog:
    schema = file.schema_arrow
    if not schema.names:
        raise EmptyData(f"{path} has no columns")
    labels = mapping.resolve(schema.names)
    log = RawLog({}, labels=labels, present=tuple(schema.names))
    for metadata in (schema.metadata, schema.field(0).metadata):
        if metadata and ENTRY.encode() in metadata:
            log.header, log.checksum = unpack_entry(metadata[ENTRY.encode()])
    if log.checksum is not None and labels != (usual := ColumnMapping().resolve(schema.names)):
        verify(
            _read(path, file, footer, ColumnMapping()), path
        )  # the checksum is over the columns as they were written
        log.header, log.checksum = header_of(labels, usual, log.header), None
    elif log.checksum is None and (schema.field(0).metadata or {}).get(FIELD_ID) == OUR_FIELD:
        raise UnreadableFile(f"{path} is damaged: ringfence wrote it, but its '{ENTRY}' entry is gone. Restore it")
    for column, names in labels.items():
        for name in names:
            _require_type(column, name, schema.field(name).type)
    require_stored_schema(footer, schema, [name for names in labels.values() for name in names])
    for column, names in labels.items():
        if column in IDS:
            set_ids(log, column, _read_ids(file, footer, names[0]))
        else:
            set_numbers(log, column, _read_numbers(file, footer, names))
    if log.checksum is None:
        set_column_names(log, _field_units(schema))
    return log


def header_of(
    labels: Mapping[str, tuple[str, ...]], usual: Mapping[str, tuple[str, ...]], header: Mapping[str, Any]
) -> dict[str, Any]:
    """What a file of ours says of these columns, if they are others than the `usual` ones that its header describes."""
    named = {"observations": "observation_names", "actions": "action_names"}
    found, called = dict(header), dict[str, str]()
    for column, key in named.items():
        called |= dict(zip(usual[column], header.get(key) or usual[column], strict=True))
    for column, key in named.items():
        found[key] = [called.get(name, name) for name in labels.get(column, ())]
    for key in ("action_low", "action_high"):
        bounds = dict(zip(usual["actions"], header[key], strict=True))
        chosen = [bounds.get(name) for name in labels.get("actions", ())]
        found[key] = None if None in chosen else chosen  # a column that was no action has no bounds
    same = {column for column, names in labels.items() if names == usual.get(column)}
    known = {*found["observation_names"], *found["action_names"], *(same & {"rewards", "costs"})}
    found["units"] = {name: unit for name, unit in header.get("units", {}).items() if name in known}
    return found if "source" in same else found | {"source_names": None}


def write_parquet(log: RawLog, path: Path) -> None:
    source_names = log.header["source_names"]
    labels = _standard_labels(log)
    fields = [pa.field(name, _standard_type(column)) for column, names in labels.items() for name in names]
    # Twice, because nothing guards a Parquet footer: a damaged key must not make the header vanish unnoticed. And if all
    # keys vanish together, the number of the first column, which lies elsewhere, tells that they were there.
    entry = {ENTRY.encode(): pack_entry(log)}
    schema = pa.schema([fields[0].with_metadata({**entry, FIELD_ID: OUR_FIELD}), *fields[1:]], metadata=entry)
    rows = len(log.columns["rewards"])
    # Numbers hardly repeat, so a dictionary pays for the source only. Page checksums let any reader see damage.
    options: dict[str, Any] = {"use_dictionary": ["source"], "write_page_checksum": True, "compression": "zstd"}
    with pa.parquet.ParquetWriter(path, schema, **options) as writer:
        for block in blocks(rows, 4 * BLOCK_ROWS):
            arrays = []
            for column, names in labels.items():
                part = log.columns[column][block]
                if column == "source":
                    arrays.append(pa.DictionaryArray.from_arrays(pa.array(part), pa.array(source_names, pa.string())))
                else:
                    arrays += [pa.array(part.reshape(len(part), -1)[:, index]) for index in range(len(names))]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _read_numbers(file: pa.parquet.ParquetFile, footer: Footer, names: tuple[str, ...]) -> NDArray[np.float32]:
    """One group of columns, block by block into its place: no second copy of the table, and no value left out."""
    values = np.empty((sum(footer.rows), len(names)), np.float32)
    done = 0
    for group, rows in enumerate(footer.rows):
        first = done
        for part in file.iter_batches(BLOCK_ROWS, row_groups=[group], columns=list(names)):
            _require_lengths(part, names)
            fill(values[done : done + len(part)], part, names)
            done += len(part)
        _require_rows(group, done - first, rows)
        for index, name in enumerate(names):
            _require_range(name, values[first:done, index], _stated_range(file, footer, group, name))
    if done != len(values):
        raise UnreadableFile(f"column '{names[0]}' holds {done} values, not the {len(values)} that the file declares")
    return values


def _read_ids(file: pa.parquet.ParquetFile, footer: Footer, name: str) -> pa.ChunkedArray:
    parts = []
    for group, rows in enumerate(footer.rows):
        found = [part.column(0) for part in file.iter_batches(BLOCK_ROWS, row_groups=[group], columns=[name])]
        _require_rows(group, sum(map(len, found)), rows)
        stated = _stated_range(file, footer, group, name)
        if stated is not None:
            _require_range(name, pa.chunked_array(found).drop_null().to_numpy(), stated)
        parts += found
    ids = pa.chunked_array(parts, file.schema_arrow.field(name).type)
    ids.validate(full=True)
    return ids


def _stated_range(file: pa.parquet.ParquetFile, footer: Footer, group: int, name: str) -> tuple[float, float] | None:
    """The least and greatest value in the file's statistics, for types that are ordered like numbers; else None."""
    kind = file.schema_arrow.field(name).type
    plain = pa.types.is_signed_integer(kind) or pa.types.is_boolean(kind)
    plain = plain or pa.types.is_float32(kind) or pa.types.is_float64(kind)
    return footer.stated_range(group, name) if plain else None


def _require_rows(group: int, rows: int, promised: int) -> None:
    if rows != promised:
        raise UnreadableFile(
            f"row group {group} holds {rows} rows, not the {promised} that the file declares; it is damaged"
        )


def _require_lengths(part: pa.RecordBatch, names: tuple[str, ...]) -> None:
    part.validate(full=True)
    for name in names:
        if len(part.column(name)) != len(part):
            raise UnreadableFile(
                f"column '{name}' holds other numbers of values than its neighbours; the file is damaged"
            )


def _require_range(name: str, values: NDArray[Any], stated: tuple[float, float] | None) -> None:
    """Raise if a value lies outside the range that the file's own statistics state."""
    found = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    if stated is None or not len(found):
        return
    with np.errstate(over="ignore"):
        low, high = (np.float32(bound) if values.dtype == np.float32 else bound for bound in stated)
    if not (found.min() >= low and found.max() <= high):
        raise UnreadableFile(
            f"column '{name}' holds values outside the range that the file states for it ({low:g} to {high:g}); the file is "
            "damaged"
        )


def _field_units(schema: pa.Schema) -> dict[str, str]:
    """Units that the columns of a Parquet file carry as metadata."""
    carried = {field.name: field.metadata or {} for field in schema}
    units = {name: metadata.get(b"unit", metadata.get(b"units", b"")) for name, metadata in carried.items()}
    return {name: unit.decode("utf-8", "backslashreplace") for name, unit in units.items() if unit}


def _require_type(column: str, name: str, kind: pa.DataType) -> None:
    types = pa.types
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    value = kind.value_type if types.is_dictionary(kind) else kind
    text = types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)
    if not (number or text or types.is_temporal(kind) if column in IDS else number):
        needed = "text or numbers" if column in IDS else "numbers"
        raise WrongShape(f"column '{name}' holds values of type {kind}; needed: {needed}")


def _standard_labels(log: RawLog) -> dict[str, tuple[str, ...]]:
    """Our columns under the names `ColumnMapping()` looks for."""
    mapping: Mapping[str, str] = vars(ColumnMapping())
    return {
        column: tuple(f"{mapping[column]}{index}" for index in range(array.shape[1]))
        if column in MATRICES
        else (mapping[column],)
        for column, array in log.columns.items()
    }


def _standard_type(column: str) -> pa.DataType:
    if column == "source":
        return pa.dictionary(pa.int32(), pa.string())
    return pa.bool_() if column in FLAGS else pa.float32()
