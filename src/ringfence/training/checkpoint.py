"""Checkpoints: a pytree of arrays as safetensors, and a JSON manifest with its checksum.

The manifest is written last, so a checkpoint without one never counts. It carries the identity of the run that wrote it,
and no other run can use it. Nothing in them is ever executed, and no number in them is NaN or infinite.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ringfence.errors import CheckpointError, NonFiniteLoss
from ringfence.files import atomic_write, write_json
from ringfence.training.configuration import differences

FORMAT = 2
KEEP = 2  # the newest, and the one before in case the newest is damaged
MANIFEST = re.compile(r"step-(\d{9,18})\.json")

Tree = TypeVar("Tree")


class ForeignCheckpoint(CheckpointError):
    """A whole checkpoint, but of another run."""


def save_checkpoint(
    folder: Path, step: int, tree: Any, progress: dict[str, Any], identity: Mapping[str, Any] | None = None
) -> None:
    """Write the arrays of `tree` and `progress` (JSON) as checkpoint number `step` of the run with this identity (JSON);
    drop all but the newest few. `NonFiniteLoss`, and nothing is written, if a number is NaN or infinite."""
    arrays = named_arrays(tree)
    if bad := non_finite(arrays):
        raise NonFiniteLoss(f"{bad[0]}{f' and {len(bad) - 1} more arrays' if bad[1:] else ''} became NaN or infinite")
    content = save(arrays)
    with atomic_write(_arrays(folder, step)) as temporary:
        temporary.write_bytes(content)
    bound = {"format": FORMAT, "progress": progress, "identity": json.loads(json.dumps(dict(identity or {})))}
    write_json(_manifest(folder, step), {**bound, "sha256": _checksum(content, bound)})
    for old in steps_saved(folder)[:-KEEP]:
        _manifest(folder, old).unlink(missing_ok=True)
        _arrays(folder, old).unlink(missing_ok=True)


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf, order="C") for path, leaf in leaves}


def non_finite(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """The names of the arrays that hold NaN or infinity."""
    return [
        name
        for name, array in arrays.items()
        if jax.numpy.issubdtype(array.dtype, jax.numpy.inexact) and not np.isfinite(array).all()
    ]


def load_newest(
    folder: Path, template_of: Callable[[dict[str, Any]], Tree], identity: Mapping[str, Any] | None = None
) -> tuple[Tree, dict[str, Any]] | None:
    """The newest checkpoint that is whole, in the shape of `template_of(progress)`, and its progress; None if there is
    none at all. A damaged one is passed over with a warning; one of another run is refused."""
    saved = steps_saved(folder)
    problems: list[str] = []
    for step in reversed(saved):
        try:
            loaded = _load(folder, step, template_of, dict(identity or {}))
        except ForeignCheckpoint:
            raise
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
    """The numbers of the checkpoints in a folder, oldest first; other files are none of ours."""
    found = (MANIFEST.fullmatch(path.name) for path in folder.glob("step-*.json"))
    return sorted(int(match[1]) for match in found if match)


def _load(
    folder: Path, step: int, template_of: Callable[[dict[str, Any]], Tree], identity: dict[str, Any]
) -> tuple[Tree, dict[str, Any]]:
    path = _arrays(folder, step)
    try:
        manifest = json.loads(_manifest(folder, step).read_bytes())
        content = path.read_bytes()
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {path.name} has format {manifest['format']}, this ringfence reads {FORMAT}"
            )
        progress: dict[str, Any] = manifest["progress"]
        if _checksum(content, {name: manifest[name] for name in manifest if name != "sha256"}) != manifest["sha256"]:
            raise CheckpointError(f"checkpoint {path.name} is damaged (its checksum does not match)")
        theirs = manifest["identity"]
        arrays = load(content)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {path.name} is damaged ({error})") from error
    if theirs != identity:
        reasons = "; ".join(differences(identity, theirs)[:3])
        raise ForeignCheckpoint(f"checkpoint {path.name} belongs to another run: {reasons}")
    return _fill(template_of(progress), arrays, path.name), progress


def _fill(template: Tree, arrays: dict[str, np.ndarray], name: str) -> Tree:
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    wanted = {name: (leaf.shape, leaf.dtype) for name, (_, leaf) in zip(names, leaves, strict=True)}
    if wanted != {name: (array.shape, array.dtype) for name, array in arrays.items()}:
        raise CheckpointError(f"checkpoint {name} belongs to another version or configuration of ringfence")
    filled: Tree = jax.tree_util.tree_unflatten(structure, [jax.numpy.asarray(arrays[n]) for n in names])
    return filled


def _checksum(content: bytes, manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(content + json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _arrays(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.safetensors"


def _manifest(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}.json"
