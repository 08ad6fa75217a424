"""Minari datasets: a directory of episodes, with the cost of each step in `infos["cost"]`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ringfence.data.hdf5layout import own_dataset, require_sound, require_whole
from ringfence.data.rawlog import RawLog, reading
from ringfence.errors import MissingExtra, UnequalLengths, UnreadableFile, WrongShape

LABELS = {"costs": ("infos['cost']",)}
STORED = ("observations", "actions", "rewards", "terminations", "truncations", "cost")


def is_minari_directory(path: Path) -> bool:
    return _data_directory(path) is not None


def minari_directory(dataset_id: str) -> Path:
    """Where Minari keeps a dataset that was downloaded before."""
    _require_minari()
    from minari.storage import get_dataset_path

    with reading(Path(dataset_id), "the name of a Minari dataset"):
        path = Path(get_dataset_path(dataset_id))
    if not path.is_dir():
        raise UnreadableFile(
            f"Minari has no local dataset '{dataset_id}'; fetch it with 'minari download {dataset_id}'"
        )
    return path


def read_minari(path: Path) -> RawLog:
    _require_minari()
    from gymnasium.spaces import Box
    from minari.dataset.minari_storage import MinariStorage

    with reading(path, "a Minari dataset"):
        directory = _data_directory(path)
        metadata = MinariStorage.read_raw_metadata(directory)
        # Without stored spaces Minari would import and start whatever environment the file names: data must not run.
        if not all(isinstance(metadata.get(f"{kind}_space"), str) for kind in ("observation", "action")):
            raise UnreadableFile(f"{path} does not describe its observation and action space")
        for file in sorted(directory.glob("*.hdf5")) if directory else ():
            _require_sound_hdf5(file)
        storage = MinariStorage.read(directory)
        space = storage.action_space
        if not (isinstance(storage.observation_space, Box) and isinstance(space, Box)):
            raise WrongShape(f"{path} has spaces that are not boxes of numbers; flatten them and save it again")
        episodes = [
            _episode(number, item) for number, item in enumerate(storage.get_episodes(range(storage.total_episodes)))
        ]
        if not episodes:
            raise UnreadableFile(f"{path} holds no episodes")
        steps = sum(len(episode["rewards"]) for episode in episodes)
        if steps != storage.total_steps:
            raise UnreadableFile(f"{path} declares {storage.total_steps} steps but holds {steps}; it is damaged")
        # A column that only some episodes have would be shorter than the others; it counts as missing.
        shared = set.intersection(*(set(episode) for episode in episodes))
        columns = {name: np.concatenate([episode[name] for episode in episodes]) for name in sorted(shared)}
        header = {"name": str(metadata.get("dataset_id", path.name)), "metadata": {"task": metadata.get("env_spec")}}
        header |= {key: metadata[key] for key in ("observation_names", "action_names") if key in metadata}
        if np.isfinite(space.low).all() and np.isfinite(space.high).all():
            header |= {"action_low": space.low.tolist(), "action_high": space.high.tolist()}
    labels: dict[str, tuple[str, ...]] = {name: LABELS.get(name, (name,)) for name in columns}
    return RawLog(columns, header, labels, tuple(name for names in labels.values() for name in names))


def _episode(number: int, item: dict[str, Any]) -> dict[str, Any]:
    """One episode's rows. It holds one observation more than steps: the state after the last step."""
    steps = len(item["rewards"])
    observations = np.asarray(item["observations"], np.float32)
    lengths = {name: len(item[name]) for name in ("actions", "terminations", "truncations")}
    lengths["observations"] = len(observations) - 1
    for name, length in lengths.items():
        if length != steps:
            raise UnequalLengths(f"episode {number} has {steps} rewards but {length} {name}; each step needs both")
    rows = {
        "observations": observations[:-1],
        "next_observations": observations[1:],
        "actions": np.asarray(item["actions"], np.float32),
        "rewards": np.asarray(item["rewards"], np.float32),
        "terminations": np.asarray(item["terminations"]),  # as they are: NaN must not become True
        "truncations": np.asarray(item["truncations"]),
        "episode": np.full(steps, number),
    }
    cost = (item.get("infos") or {}).get("cost")
    if cost is not None:
        if len(cost) not in (steps, steps + 1):
            raise UnequalLengths(f"episode {number} has {steps} rewards but {len(cost)} costs; each step needs both")
        rows["costs"] = np.asarray(cost)[-steps:]  # the first entry, if there is one more, belongs to the reset
    return rows


def _require_sound_hdf5(path: Path) -> None:
    """Minari reads whatever its file links to, and 0 where nothing was written."""
    with h5py.File(path, "r") as file:
        size = path.stat().st_size
        require_whole(path, size)
        require_sound([item for item in _datasets(file) if item.name.rsplit("/", 1)[-1] in STORED], path)


def _datasets(group: h5py.Group) -> Iterator[h5py.Dataset]:
    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.HardLink) and isinstance(group[name], h5py.Group):
            yield from _datasets(group[name])
        else:
            yield own_dataset(group, name)


def _data_directory(path: Path) -> Path | None:
    candidates = (path / "data", path)
    return next((candidate for candidate in candidates if (candidate / "metadata.json").is_file()), None)


def _require_minari() -> None:
    try:
        import minari  # noqa: F401
    except ImportError:
        raise MissingExtra("reading Minari datasets needs the extra: pip install 'ringfence[minari]'") from None
