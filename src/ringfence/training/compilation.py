"""Compiled programs are kept between runs, so that the second run starts at once."""

import os
from pathlib import Path
from typing import Any

import jax

from ringfence.errors import NoCacheDirectory
from ringfence.files import cache_directory, is_this_users_alone, machine_fingerprint


def use_compilation_cache() -> None:
    """Turn on JAX's persistent cache, unless the user has set one up (JAX_COMPILATION_CACHE_DIR) or there is no safe
    place for it: a run that compiles again is slower, and gives the same numbers."""
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None:
        return
    try:
        folders = program_folders()
        for folder in folders:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (NoCacheDirectory, OSError):
        return
    if any(objection(folder) for folder in folders):
        return
    config.update("jax_compilation_cache_dir", str(folders[-1]))
    # Small programs too: there are dozens of them, and together they take seconds.
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def why_not_kept() -> str:
    """Why compiled programs are not kept on this machine; empty if they are, or if the user has set up JAX's own cache."""
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None:
        return ""
    try:
        objections = [objection(folder) for folder in program_folders() if os.path.lexists(folder)]
    except NoCacheDirectory as error:
        return str(error)
    return next(filter(None, objections), "")


def program_folders() -> list[Path]:
    """The folder of compiled programs, last, and the folders of ringfence's that it lies in."""
    root = cache_directory()
    return [root, root / "xla", root / "xla" / machine_fingerprint()]


def objection(folder: Path) -> str:
    """Why no programs may be loaded from here; empty if they may. JAX runs what it finds, whoever wrote it."""
    try:
        alone = is_this_users_alone(folder)
    except OSError as error:
        return str(error)
    if not alone:
        return f"{folder} is not a directory that this user owns and nobody else can write (`chmod go-w`)"
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return f"{folder} cannot be read and written"
    return ""
