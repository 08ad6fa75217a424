"""Compiled programs are kept between runs, so that the second run starts at once."""

from typing import Any

import jax

from ringfence.files import cache_directory, machine_fingerprint


def use_compilation_cache() -> None:
    """Turn on JAX's persistent cache, unless the user has set one up (JAX_COMPILATION_CACHE_DIR)."""
    config: Any = jax.config
    if config.jax_compilation_cache_dir is None:
        config.update("jax_compilation_cache_dir", str(cache_directory() / "xla" / machine_fingerprint()))
        # Small programs too: there are dozens of them, and together they take seconds.
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
