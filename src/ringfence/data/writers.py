"""A Dataset becomes a file, whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile

from ringfence.data.dataset import ROW_COLUMNS, Dataset
from ringfence.data.hdf5files import write_hdf5
from ringfence.data.npzfiles import write_npz
from ringfence.data.parquetfiles import write_parquet
from ringfence.data.rawlog import RawLog
from ringfence.errors import InvalidSetting, WouldOverwrite
from ringfence.files import atomic_write

WRITERS: dict[str, Callable[[RawLog, Path], None]] = {
    ".h5": write_hdf5,
    ".hdf5": write_hdf5,
    ".npz": write_npz,
    ".parquet": write_parquet,
}


def save(dataset: Dataset, path: str | Path, *, overwrite: bool = False) -> None:
    """Write everything a dataset holds; `load_file` gives it back unchanged."""
    path = Path(path)
    require_writable(path, overwrite=overwrite)
    log = to_raw_log(dataset)
    with atomic_write(path) as temporary:
        WRITERS[path.suffix.lower()](log, temporary)


def require_writable(path: Path, *, overwrite: bool = False) -> None:
    """Raise now what `save` would raise after the work is done. Missing directories are made."""
    if path.suffix.lower() not in WRITERS:
        raise InvalidSetting(f"cannot write {path.name}: the name must end in {', '.join(WRITERS)}")
    if path.exists() and not overwrite:
        raise WouldOverwrite(f"{path} exists already; choose another name or ask for it to be overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=path.parent):  # the one sure way to find out
        pass


def to_raw_log(dataset: Dataset) -> RawLog:
    names = ROW_COLUMNS if dataset.source is None else (*ROW_COLUMNS, "source")
    columns = {name: getattr(dataset, name) for name in names}
    header = {
        "name": dataset.name,
        "notes": list(dataset.notes),
        "metadata": dict(dataset.metadata),
        "source_names": list(dataset.source_names),
        "action_low": dataset.action_low.tolist(),
        "action_high": dataset.action_high.tolist(),
        "observation_names": list(dataset.observation_names),
        "action_names": list(dataset.action_names),
        "units": dict(dataset.units),
    }
    return RawLog(columns, header)
