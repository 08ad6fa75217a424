"""Compiled programs are kept between runs, so that the second run starts at once."""

import os
from typing import Any

import jax

from ringfence.errors import NoCacheDirectory
from ringfence.files import cache_directory, machine_fingerprint


def use_compilation_cache() -> None:
    """Turn on JAX's persistent cache, unless the user has set one up (JAX_COMPILATION_CACHE_DIR) or there is no
    place for it: a run that compiles again is slower, and gives the same numbers."""
    config: Any = jax.config
    if config.jax_compilation_cache_dir is None:
        try:
            folder = cache_directory() / "xla" / machine_fingerprint()
            folder.mkdir(parents=True, exist_ok=True)
        except (NoCacheDirectory, OSError):
            return
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            return
        config.update("jax_compilation_cache_dir", str(folder))
        # Small programs too: there are dozens of them, and together they take seconds.
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
