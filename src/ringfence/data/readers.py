"""A path becomes a Dataset, or one clear sentence about why not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from ringfence.data.arrayfiles import KEYS, PLAIN_HEADER
from ringfence.data.columnmapping import MATRICES, ColumnMapping, is_near_miss, means
from ringfence.data.csvfiles import CsvStyle, read_csv
from ringfence.data.dataset import Dataset
from ringfence.data.hdf5files import read_hdf5
from ringfence.data.header import checked_header
from ringfence.data.minarifiles import is_minari_directory, minari_directory, read_minari
from ringfence.data.names import clean
from ringfence.data.npzfiles import read_npz
from ringfence.data.parquetfiles import read_parquet
from ringfence.data.prepare import CostFunction
from ringfence.data.rawlog import ENTRY, RawLog, verify
from ringfence.errors import InvalidSetting, MissingColumns, UnreadableFile

ARRAY_READERS = {".h5": read_hdf5, ".hdf5": read_hdf5, ".npz": read_npz}
TABLES = (".parquet", ".csv")
MINARI_SCHEME = "minari:"
REQUIRED = ("observations", "actions", "rewards", "costs")
OPTIONAL = ("terminations", "truncations", "episode", "source", "next_observations")


def load_file(
    path: str | Path,
    *,
    columns: ColumnMapping | Mapping[str, Any] | None = None,
    cost: CostFunction | None = None,
    action_low: ArrayLike | None = None,
    action_high: ArrayLike | None = None,
    csv_delimiter: str | None = None,
    csv_decimal: str = ".",
) -> Dataset:
    """Read and check a log: HDF5, NumPy archive, Parquet, CSV, a Minari directory or `minari:ID`.

    `columns` says what a table calls its columns. `cost` computes costs from (observations, actions, next
    observations) and takes the place of a cost column. Stated action bounds take the place of the file's.
    `csv_delimiter` and `csv_decimal` say what a CSV file writes between columns (found by itself where the first line
    leaves no doubt) and as the decimal point.
    """
    mapping = columns if isinstance(columns, ColumnMapping) or columns is None else ColumnMapping.of(columns)
    try:
        log, where = _read(path, mapping, CsvStyle(csv_delimiter, csv_decimal))
        verify(log, where)
        notes = _unused(log, where, mapping or ColumnMapping())
        return _dataset(log, where, notes, cost, action_low, action_high)
    except MemoryError:
        raise UnreadableFile(f"{path} needs more memory than this machine gives; read a part of it") from None


def _dataset(
    log: RawLog, where: Path, notes: list[str], cost: CostFunction | None, low: ArrayLike | None, high: ArrayLike | None
) -> Dataset:
    arrays: dict[str, Any] = dict(log.columns)
    if cost is not None:
        arrays["costs"] = cost
    missing = [column for column in REQUIRED if column not in arrays]
    if missing:
        raise MissingColumns(_what_is_missing(where, missing, log))
    header = checked_header(log.header, where)
    if low is None and high is None:
        low, high = header.get("action_low"), header.get("action_high")
    return Dataset.from_arrays(
        **arrays,
        source_names=header.get("source_names") or (),
        action_low=low,
        action_high=high,
        observation_names=header.get("observation_names"),
        action_names=header.get("action_names"),
        units=header.get("units"),
        name=clean(header.get("name") or where.stem),
        notes=(*header.get("notes", ()), *notes),
        metadata=header.get("metadata"),
        labels=log.labels,
    )


def _read(path: str | Path, columns: ColumnMapping | None, style: CsvStyle) -> tuple[RawLog, Path]:
    if str(path).startswith(MINARI_SCHEME):
        path = minari_directory(str(path).removeprefix(MINARI_SCHEME))
    path = Path(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        if not is_minari_directory(path):
            raise UnreadableFile(f"{path} is a directory but not a Minari dataset; give the file inside it")
        _require_no_table_options(path, columns, style)
        return read_minari(path), path
    if not path.exists():
        raise UnreadableFile(f"there is no file {path}; check the name and the directory")
    if not path.is_file():
        raise UnreadableFile(f"{path} is not a regular file")
    if suffix == ".csv":
        return read_csv(path, columns or ColumnMapping(), style), path
    if suffix == ".parquet":
        _require_no_table_options(path, None, style)
        return read_parquet(path, columns or ColumnMapping()), path
    if suffix not in ARRAY_READERS:
        known = ", ".join((*ARRAY_READERS, *TABLES))
        raise UnreadableFile(f"{path} is of a kind ringfence does not read; it reads {known} and Minari datasets")
    _require_no_table_options(path, columns, style)
    return ARRAY_READERS[suffix](path), path


def _require_no_table_options(path: Path, columns: ColumnMapping | None, style: CsvStyle) -> None:
    """Refuse what would be ignored."""
    if style != CsvStyle():
        raise InvalidSetting(f"a delimiter or decimal point is for CSV files; {path.name} is none")
    if columns is not None:
        raise InvalidSetting(f"a column mapping is for tables (.parquet, .csv); {path.name} holds named arrays")


def _unused(log: RawLog, path: Path, mapping: ColumnMapping) -> list[str]:
    """Columns that are left out are noted; one that looks like a column of ours, misspelt, cut short
    or in other words, is refused."""
    used = {name for names in log.labels.values() for name in names} | {ENTRY, *PLAIN_HEADER}
    unused = [name for name in log.present if name not in used]
    wanted = {column: names for column, names in _standard_names(path).items() if getattr(mapping, column)}
    absent = {column: names for column, names in wanted.items() if column not in log.labels}
    for column, names in absent.items():
        for name in unused:
            if means(name.lower(), column) or any(is_near_miss(name.lower(), known) for known in names):
                table = path.suffix.lower() in TABLES
                mapped = f" or say so (--columns {column}={name})" if table and column not in MATRICES else ""
                none = f", or say that there is none (--columns {column}=)" if table else ""
                raise MissingColumns(
                    f"{path} has '{name}' but no '{names[0]}': is it the {column}? Then rename it{mapped}; otherwise give "
                    f"it a name that is less like it{none}"
                )
    return [f"not used: {', '.join(clean(name) or 'a column without a name' for name in unused)}"] if unused else []


def _standard_names(path: Path) -> dict[str, tuple[str, ...]]:
    """What each column that may be absent is called in a file of this kind."""
    if path.suffix.lower() in TABLES:
        names: dict[str, tuple[str, ...]] = {column: (getattr(ColumnMapping, column),) for column in OPTIONAL}
        return names | {"next_observations": (f"{ColumnMapping.next_observations}0",)}
    return {column: KEYS[column] for column in OPTIONAL}


def _what_is_missing(path: Path, missing: list[str], log: RawLog) -> str:
    names = {column: keys[0] for column, keys in KEYS.items()}
    if path.suffix.lower() in TABLES:
        names |= {"observations": "obs_0", "actions": "action_0", "rewards": "reward", "costs": "cost"}
    elif path.is_dir():
        names |= {"costs": "infos['cost']"}
    wanted = ", ".join(f'"{names[column]}"' for column in missing)
    message = f"{path} lacks {wanted}; it has {', '.join(log.present) or 'nothing'}."
    if path.suffix.lower() in TABLES:
        message += (
            " If it has them under other names, say so: --columns observations=NAME,NAME actions=NAME reward=NAME cost=NAME "
            "(columns=ColumnMapping(...) in Python)."
        )
    if "costs" in missing:
        message += (
            f' Only you can say what is unsafe: add "{names["costs"]}" with the cost of each step (0 where nothing bad '
            "happened); in Python you may instead pass cost=function(observations, actions, next_observations)"
        )
    return message
