"""Checkpoints: a pytree of arrays as safetensors, and a JSON manifest with its checksum.

The manifest is written last, so a checkpoint without one never counts. Nothing in them is ever executed.
"""

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ringfence.errors import CheckpointError
from ringfence.files import atomic_write, write_json

FORMAT = 1
KEEP = 2  # the newest, and the one before in case the newest is damaged

Tree = TypeVar("Tree")


def save_checkpoint(folder: Path, step: int, tree: Any, progress: dict[str, Any]) -> None:
    """Write the arrays of `tree` and `progress` (JSON) as checkpoint number `step`; drop all but the newest few."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    content = save({jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in leaves})
    with atomic_write(_arrays(folder, step)) as temporary:
        temporary.write_bytes(content)
    manifest = {"format": FORMAT, "sha256": _checksum(content, progress), "progress": progress}
    write_json(_manifest(folder, step), manifest)
    for old in steps_saved(folder)[:-KEEP]:
        _manifest(folder, old).unlink(missing_ok=True)
        _arrays(folder, old).unlink(missing_ok=True)


def load_newest(folder: Path, template_of: Callable[[dict[str, Any]], Tree]) -> tuple[Tree, dict[str, Any]] | None:
    """The newest checkpoint that is whole, in the shape of `template_of(progress)`, and its progress; None if there is
    none at all. A damaged one is passed over with a warning."""
    saved = steps_saved(folder)
    problems: list[str] = []
    for step in reversed(saved):
        try:
            loaded = _load(folder, step, template_of)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warnings.warn(f"{problem}; going on from the checkpoint before it", stacklevel=2)
        return loaded
    if saved:
        raise CheckpointError(f"no checkpoint in {folder} is usable: {'; '.join(problems)}")
    return None


def steps_saved(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.json"))


def _load(folder: Path, step: int, template_of: Callable[[dict[str, Any]], Tree]) -> tuple[Tree, dict[str, Any]]:
    path = _arrays(folder, step)
    try:
        manifest = json.loads(_manifest(folder, step).read_text())
        content = path.read_bytes()
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {path.name} has format {manifest['format']}, this ringfence reads {FORMAT}"
            )
        progress: dict[str, Any] = manifest["progress"]
        if _checksum(content, progress) != manifest["sha256"]:
            raise CheckpointError(f"checkpoint {path.name} is damaged (its checksum does not match)")
        arrays = load(content)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {path.name} is damaged ({error})") from error
    return _fill(template_of(progress), arrays, path.name), progress


def _fill(template: Tree, arrays: dict[str, np.ndarray], name: str) -> Tree:
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    wanted = {name: (leaf.shape, leaf.dtype) for name, (_, leaf) in zip(names, leaves, strict=True)}
    if wanted != {name: (array.shape, array.dtype) for name, array in arrays.items()}:
        raise CheckpointError(f"checkpoint {name} belongs to another version or configuration of ringfence")
    filled: Tree = jax.tree_util.tree_unflatten(structure, [jax.numpy.asarray(arrays[n]) for n in names])
    return filled


def _checksum(content: bytes, progress: dict[str, Any]) -> str:
    return hashlib.sha256(content + json.dumps(progress, sort_keys=True).encode()).hexdigest()


def _arrays(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.safetensors"


def _manifest(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.json"
