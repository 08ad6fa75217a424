"""The logs that the campaigns damage: written by ringfence, and by other programs in their usual ways."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ringfence.data import Dataset, load_file, save
from tests.data.example_logs import DSRL_KEYS, columns, full_dataset, table_columns, write_foreign

ROWS = 120
MINARI = ".minari"


@dataclass(frozen=True)
class Original:
    """A file's bytes, the log in them, and where its bare values lie: (first byte, end) pieces."""

    name: str
    suffix: str
    content: bytes
    log: Dataset
    payload: tuple[tuple[int, int], ...]
    ours: bool
    guarded: bool  # by checksums over the values


def originals() -> list[Original]:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        ours = [_ours(root, suffix) for suffix in (".h5", ".npz", ".parquet")]
        return [*ours, *_hdf5(root), *_npz(root), *_parquet(root), _csv(root), _minari(root)]


def foreign_columns() -> dict[str, np.ndarray]:
    return columns(ROWS) | {"source": np.repeat([4, 7, 4], ROWS // 3)}


def _original(name: str, path: Path, payload: list[tuple[int, int]], ours: bool, guarded: bool) -> Original:
    return Original(name, path.suffix, path.read_bytes(), load_file(path), tuple(payload), ours, guarded)


def _ours(root: Path, suffix: str) -> Original:
    path = root / f"log{suffix}"
    save(full_dataset(), path)
    return _original(f"ours{suffix}", path, [], True, True)


def _hdf5(root: Path) -> list[Original]:
    found = []
    styles = {"plain": {}, "chunked": {"chunks": True}, "gzip": {"compression": "gzip", "shuffle": True}}
    for version in ("earliest", "latest"):
        for style, options in styles.items():
            path = root / "log.h5"
            with h5py.File(path, "w", libver=version) as file:
                for name, values in foreign_columns().items():
                    file.create_dataset(DSRL_KEYS.get(name, name), data=values, **options)
                file.attrs["action_low"], file.attrs["action_high"] = [-1.0, -1.0], [1.0, 1.0]
            with h5py.File(path) as file:
                payload = [piece for item in file.values() for piece in _pieces(item)]
            found.append(_original(f"hdf5 {version} {style}", path, payload, False, style == "gzip"))
    return found


def _pieces(item: h5py.Dataset) -> list[tuple[int, int]]:
    if item.chunks is None:
        return [(item.id.get_offset(), item.id.get_offset() + item.nbytes)]
    chunks: list[h5py.h5d.StoreInfo] = []
    item.id.chunk_iter(chunks.append)
    return [(chunk.byte_offset, chunk.byte_offset + chunk.size) for chunk in chunks]


def _npz(root: Path) -> list[Original]:
    found = []
    for name, write in {"npz": np.savez, "npz compressed": np.savez_compressed}.items():
        path = root / "log.npz"
        write(path, **{DSRL_KEYS.get(key, key): values for key, values in foreign_columns().items()})
        found.append(_original(name, path, [], False, True))
    return found


def _parquet(root: Path) -> list[Original]:
    table = pa.table({name: pa.array(values) for name, values in table_columns(foreign_columns()).items()})
    styles = {
        "default": {},
        "bare": {"compression": "none", "use_dictionary": False},
        "groups": {"row_group_size": 30, "compression": "zstd", "data_page_version": "2.0"},
        "without Arrow's schema": {"store_schema": False},
        "checksums": {"write_page_checksum": True},
    }
    found = []
    for style, options in styles.items():
        path = root / "log.parquet"
        pq.write_table(table, path, **options)
        footer = pq.ParquetFile(path).metadata
        payload = [(4, path.stat().st_size - footer.serialized_size - 8)]
        found.append(_original(f"parquet {style}", path, payload, False, style == "checksums"))
    return found


def _minari(root: Path) -> Original:
    """The data file of a Minari dataset with two episodes; its metadata stay as they are."""
    path = root / "data.h5"
    log = foreign_columns()
    with h5py.File(path, "w") as file:
        for number, rows in enumerate((slice(0, ROWS // 2), slice(ROWS // 2, ROWS))):
            episode = file.create_group(f"episode_{number}")
            last = log["next_observations"][rows][-1:]
            episode["observations"] = np.concatenate([log["observations"][rows], last])
            for name in ("actions", "rewards", "terminations", "truncations"):
                episode[name] = log[name][rows]
            episode["infos/cost"] = log["costs"][rows]
            episode.attrs["id"], episode.attrs["total_steps"] = number, ROWS // 2
    with h5py.File(path) as file:
        groups = [group for episode in file.values() for group in (episode, episode["infos"])]
        items = [item for group in groups for item in group.values() if isinstance(item, h5py.Dataset)]
        payload = [piece for item in items for piece in _pieces(item)]
    content = path.read_bytes()
    directory = root / "log.minari"
    write_minari_directory(directory, content)
    return Original("minari", MINARI, content, load_file(directory), tuple(payload), False, False)


def write_minari_directory(path: Path, content: bytes) -> None:
    boxes = {"observation_space": (3, "-inf", "inf"), "action_space": (2, "-1.0", "1.0")}
    spaces = {
        key: {"type": "Box", "dtype": "float32", "shape": [n], "low": [float(low)] * n, "high": [float(high)] * n}
        for key, (n, low, high) in boxes.items()
    }
    metadata = {key: json.dumps(space) for key, space in spaces.items()}
    metadata |= {"total_episodes": 2, "total_steps": ROWS, "data_format": "hdf5", "dataset_id": "log"}
    (path / "data").mkdir(parents=True)
    (path / "data" / "main_data.hdf5").write_bytes(content)
    (path / "data" / "metadata.json").write_text(json.dumps(metadata))


def _csv(root: Path) -> Original:
    path = write_foreign(foreign_columns(), root / "log.csv")
    header = path.read_bytes().index(b"\n")
    return _original("csv", path, [(header, path.stat().st_size)], False, False)
