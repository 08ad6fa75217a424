"""Files in another format from a policy."""

from collections.abc import Callable
from pathlib import Path

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.export.c_source import c_files
from ringfence.deploy.export.content import Content, content_of
from ringfence.deploy.export.onnx_file import onnx_files
from ringfence.deploy.policy import Policy
from ringfence.errors import UnknownName, WouldOverwrite
from ringfence.files import atomic_write

# Each gives the files' contents by their suffix.
FORMATS: dict[str, Callable[[Content, str], dict[str, bytes]]] = {"onnx": onnx_files, "c": c_files}


def export(
    policy: Policy | Artifact | str | Path,
    to: str,
    out: str | Path | None = None,
    *,
    limit: float | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write the policy as "onnx" (one file) or "c" (a header and a source file) and return the paths.

    `out` names the file, or a directory; C puts the header beside it. Without it the files stand beside the policy's.
    `limit` is the one that a policy for a range of limits starts with (default: the artifact's)."""
    if to not in FORMATS:
        raise UnknownName(f"there is no export to {to!r}; there are {', '.join(FORMATS)}")
    own = Path(f"policy.{to}")
    if isinstance(policy, str | Path):
        own = Path(policy).with_suffix(f".{to}")
        policy = Artifact.load(policy)
    artifact = policy.artifact if isinstance(policy, Policy) else policy
    path = own if out is None else Path(out)
    path = path / own.name if path.is_dir() else path
    files = FORMATS[to](content_of(artifact, limit), path.stem)
    paths = [path.with_suffix(suffix) for suffix in files]
    for existing in (p for p in paths if p.exists() and not overwrite):
        raise WouldOverwrite(f"{existing} exists already; choose another name with --out or pass --overwrite")
    for target, text in zip(paths, files.values(), strict=True):
        with atomic_write(target) as temporary:
            temporary.write_bytes(text)
    return paths
