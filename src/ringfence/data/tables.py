"""Parquet and CSV: one table column per number."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from ringfence.data import names as column_names
from ringfence.data.checks import BLOCK_ROWS, blocks
from ringfence.data.columnmapping import MATRICES, ColumnMapping
from ringfence.data.rawlog import ENTRY, RawLog, pack_entry, reading, unpack_entry
from ringfence.errors import EmptyData, InvalidSetting, UnreadableFile, WrongShape

FLAGS = ("terminations", "truncations")
NAMES = ("episode", "source")
FIELD_ID, OUR_FIELD = b"PARQUET:field_id", b"1380337222"
TRUE_WORDS = ("1", "1.0", "true", "True", "TRUE")
DELIMITERS = (",", ";", "\t", "|")
FALSE_WORDS = ("0", "0.0", "false", "False", "FALSE")


def read_parquet(path: Path, mapping: ColumnMapping) -> RawLog:
    with reading(path, "Parquet"), pa.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        schema = file.schema_arrow
        labels = mapping.resolve(schema.names)
        log = RawLog({}, labels=labels, present=tuple(schema.names))
        for metadata in (schema.metadata, schema.field(0).metadata):
            if metadata and ENTRY.encode() in metadata:
                log.header, log.checksum = unpack_entry(metadata[ENTRY.encode()])
        if log.checksum is None and (schema.field(0).metadata or {}).get(FIELD_ID) == OUR_FIELD:
            raise UnreadableFile(f"{path} is damaged: ringfence wrote it, but its '{ENTRY}' entry is gone. Restore it")
        for column, names in labels.items():
            for name in names:
                _require_type(column, name, schema.field(name).type)
            # One group of columns at a time, block by block into its place: no second copy of the table.
            parts = file.iter_batches(BLOCK_ROWS, columns=list(names))
            if column in NAMES:
                texts = pa.chunked_array([part.column(0) for part in parts], schema.field(names[0]).type)
                _set_names(log, column, texts)
            else:
                values = np.empty((file.metadata.num_rows, len(names)), np.float32)
                start = 0
                for part in parts:
                    _fill(values[start : start + len(part)], part, names)
                    start += len(part)
                _set_numbers(log, column, values)
        if log.checksum is None:
            _set_column_names(log, _field_units(schema))
    return log


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


@dataclass(frozen=True)
class CsvStyle:
    """What a CSV file writes between columns (None: see its first line) and as the decimal point."""

    delimiter: str | None = None
    decimal: str = "."

    def __post_init__(self) -> None:
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise InvalidSetting(f"a CSV delimiter is one character, such as , or ;, not {self.delimiter!r}")
        if self.decimal not in (".", ","):
            raise InvalidSetting(f"a CSV decimal point is . or , and not {self.decimal!r}")
        if self.decimal == self.delimiter:
            raise InvalidSetting(f"a CSV file cannot use {self.decimal!r} both between columns and as decimal point")


def read_csv(path: Path, mapping: ColumnMapping, style: CsvStyle | None = None) -> RawLog:
    style = style or CsvStyle()
    with reading(path, "CSV"):
        delimiter, present = _csv_names(path, style)
        labels = mapping.resolve(present)
        types = {name: _csv_type(column) for column, names in labels.items() for name in names}
        parts: dict[str, list[Any]] = {column: [] for column in labels}
        try:
            for batch in _csv_batches(path, types, delimiter, style.decimal):
                for column, names in labels.items():
                    if column in NAMES:
                        parts[column].append(batch.column(names[0]))
                    else:
                        values = np.empty((len(batch), len(names)), np.float32)
                        parts[column].append(_fill(values, batch, names))
        except pa.ArrowInvalid as error:
            _explain_csv_value(error, present, style.decimal)
            raise
        log = RawLog({}, {"notes": _csv_notes(path, style, delimiter)}, labels, tuple(present))
        for column in labels:
            blocks_read = parts.pop(column)
            if column in NAMES:
                _set_names(log, column, pa.chunked_array(blocks_read, pa.string()))
            else:
                empty = np.empty((0, len(labels[column])), np.float32)
                _set_numbers(log, column, np.concatenate([empty, *blocks_read]))
        _set_column_names(log, {})
    return log


def _fill(out: NDArray[np.float32], part: pa.RecordBatch, names: Iterable[str]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # too large for float32 becomes infinity, which the checks report
        for index, name in enumerate(names):
            values = part.column(name)
            if pa.types.is_boolean(values.type):
                values = values.cast(pa.uint8())
            elif pa.types.is_decimal(values.type):
                values = values.cast(pa.float64())
            out[:, index] = values.to_numpy(zero_copy_only=False)  # an empty cell becomes NaN
    return out


def _set_numbers(log: RawLog, column: str, values: NDArray[np.float32]) -> None:
    flags_are_clear = column in FLAGS and np.isin(values, (0, 1)).all()
    array = values if column in MATRICES else values[:, 0]
    log.columns[column] = array.astype(np.bool_) if flags_are_clear else array


def _set_names(log: RawLog, column: str, values: pa.ChunkedArray) -> None:
    """Text becomes numbers plus the list of names; whole numbers stay as they are."""
    if pa.types.is_integer(values.type):
        log.columns[column] = values.to_numpy()
        return
    encoded = values.dictionary_encode().unify_dictionaries()
    names = encoded.chunk(0).dictionary.to_pylist() if encoded.num_chunks else []
    codes = pa.chunked_array([chunk.indices for chunk in encoded.chunks], pa.int32()).to_numpy()
    if column == "source":
        known = log.header.get("source_names") or names
        if not set(names) <= set(known):
            raise UnreadableFile(f"the source column names {sorted(set(names) - set(known))[0]!r}, the header does not")
        log.header["source_names"] = known
        if codes.dtype.kind == "i":  # otherwise a cell is empty, which the checks report
            codes = np.array([known.index(name) for name in names], np.int32)[codes]
    log.columns[column] = codes


def _set_column_names(log: RawLog, units: Mapping[str, str]) -> None:
    """The table's own names and units, unless the file states others for its columns."""
    called = {"observation_names": "observations", "action_names": "actions"}
    for key, column in called.items():
        if column in log.labels:
            log.header.setdefault(key, list(log.labels[column]))
    units = {**column_names.units_in_names(log.present), **units}
    used = {name for column in called.values() for name in log.labels.get(column, ())}
    found = {name: unit for name, unit in units.items() if name in used}
    for column in ("rewards", "costs"):
        name = log.labels.get(column, ("",))[0]
        if name in units:
            found[column] = units[name]
    log.header.setdefault("units", found)


def _field_units(schema: pa.Schema) -> dict[str, str]:
    """Units that the columns of a Parquet file carry as metadata."""
    carried = {field.name: field.metadata or {} for field in schema}
    units = {name: metadata.get(b"unit", metadata.get(b"units", b"")) for name, metadata in carried.items()}
    return {name: unit.decode("utf-8", "backslashreplace") for name, unit in units.items() if unit}


def _require_type(column: str, name: str, kind: pa.DataType) -> None:
    types = pa.types
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    value = kind.value_type if types.is_dictionary(kind) else kind
    text = types.is_string(value) or types.is_large_string(value)
    if not (text or types.is_integer(kind) if column in NAMES else number):
        needed = "text or whole numbers" if column in NAMES else "numbers"
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


def _csv_type(column: str) -> pa.DataType:
    # Stated, not guessed: a guess from the first rows fails on a file that starts with whole numbers.
    return pa.string() if column in NAMES else pa.bool_() if column in FLAGS else pa.float32()


def _csv_names(path: Path, style: CsvStyle) -> tuple[str, list[str]]:
    """The delimiter and the column names, from the first line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        line = file.readline()
    if not line.strip():
        raise EmptyData(f"{path} is empty; its first line must name the columns")
    delimiter = style.delimiter or _delimiter(line)
    if delimiter == style.decimal:
        raise InvalidSetting(
            f"{path.name} has commas between its columns and as decimal point; if the columns are divided by something "
            "else, say so: --csv-delimiter (csv_delimiter= in Python)"
        )
    return delimiter, next(csv.reader([line], delimiter=delimiter))


def _delimiter(line: str) -> str:
    """What divides the names in a file's first line; an error where that is in doubt."""
    counts = {delimiter: len(next(csv.reader([line], delimiter=delimiter))) for delimiter in DELIMITERS}
    divided = [delimiter for delimiter, names in counts.items() if names > 1]
    if len(divided) > 1:
        shown = " or ".join(repr(delimiter) for delimiter in divided)
        raise UnreadableFile(
            f"the first line may be divided by {shown}; say which: --csv-delimiter (csv_delimiter= in Python)"
        )
    return divided[0] if divided else ","


def _csv_batches(
    path: Path, types: Mapping[str, pa.DataType], delimiter: str, decimal: str
) -> pa.csv.CSVStreamingReader:
    return pa.csv.open_csv(
        path,
        parse_options=pa.csv.ParseOptions(delimiter=delimiter),
        read_options=pa.csv.ReadOptions(use_threads=False),  # only then does Arrow say in which line it failed
        convert_options=pa.csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            strings_can_be_null=True,
            decimal_point=decimal,
            true_values=list(TRUE_WORDS),
            false_values=list(FALSE_WORDS),
        ),
    )


def _explain_csv_value(error: Exception, present: Sequence[str], decimal: str) -> None:
    """Say in our words which cell Arrow could not convert; its lines count from 1 and include the column names."""
    cell = re.fullmatch(r"In CSV column #(\d+): Row #(\d+): .*conversion error to (\w+): (.*)", str(error), re.DOTALL)
    if cell:
        needed = "true or false" if cell[3] == "bool" else "numbers"
        reason = " ".join(cell[4].split())
        other = "," if decimal == "." else "."
        if cell[3] != "bool" and re.search(rf"'\s*[-+]?\d*{re.escape(other)}\d+([eE][-+]?\d+)?\s*'", reason):
            needed += f". If '{other}' is the file's decimal point: --csv-decimal {other} (csv_decimal= in Python)"
        raise WrongShape(f"column '{present[int(cell[1])]}' in row {int(cell[2]) - 2}: {reason}; needed: {needed}")


def _csv_notes(path: Path, style: CsvStyle, delimiter: str) -> list[str]:
    with path.open("rb") as file:
        file.seek(-1, 2)
        complete = file.read(1) in b"\r\n"
    notes = [] if complete else ["the file does not end with a line break: its last row may have been cut short"]
    return notes + ([f"columns are divided by {delimiter!r}"] if style.delimiter is None and delimiter != "," else [])
