"""CSV files: text with one line per step and the names of the columns in the first line."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from ringfence.data.columnmapping import ColumnMapping
from ringfence.data.rawlog import RawLog, reading
from ringfence.data.tables import FLAGS, IDS, fill, set_column_names, set_ids, set_numbers
from ringfence.errors import EmptyData, InvalidSetting, UnreadableFile, WrongShape

TRUE_WORDS = ("1", "1.0", "true", "True", "TRUE")
FALSE_WORDS = ("0", "0.0", "false", "False", "FALSE")
DELIMITERS = (",", ";", "\t", "|")


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
                    if column in IDS:
                        parts[column].append(batch.column(names[0]))
                    else:
                        values = np.empty((len(batch), len(names)), np.float32)
                        parts[column].append(fill(values, batch, names))
        except pa.ArrowInvalid as error:
            _explain_csv_value(error, present, style.decimal)
            raise
        log = RawLog({}, {"notes": _csv_notes(path, style, delimiter)}, labels, tuple(present))
        for column in labels:
            blocks_read = parts.pop(column)
            if column in IDS:
                set_ids(log, column, pa.chunked_array(blocks_read, pa.string()))
            else:
                empty = np.empty((0, len(labels[column])), np.float32)
                set_numbers(log, column, np.concatenate([empty, *blocks_read]))
        set_column_names(log, {})
    return log


def _csv_type(column: str) -> pa.DataType:
    # Stated, not guessed: a guess from the first rows fails on a file that starts with whole numbers.
    return pa.string() if column in IDS else pa.bool_() if column in FLAGS else pa.float32()


def _csv_names(path: Path, style: CsvStyle) -> tuple[str, list[str]]:
    """The delimiter and the column names, from the first line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            line, first_row = file.readline(), file.readline()
        except UnicodeDecodeError:
            raise UnreadableFile(
                f"{path} cannot be read as CSV: it is not UTF-8 text; save it again with the encoding UTF-8"
            ) from None
    if not line.strip():
        raise EmptyData(f"{path} is empty; its first line must name the columns")
    delimiter = style.delimiter or _delimiter(line)
    if delimiter == style.decimal and '"' not in first_row:
        raise InvalidSetting(
            f"{path.name} cannot have {delimiter!r} both between its columns and as decimal point without quotes around its "
            "numbers; if the columns are divided by something else, say so: --csv-delimiter (csv_delimiter= in Python)"
        )
    return delimiter, next(csv.reader([line], delimiter=delimiter))


def _delimiter(line: str) -> str:
    """The delimiter of the names in a file's first line; an error if several are possible."""
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
