"""Compile `kernels.cc` for this machine's processor, once.

A compiler is not required: without one (or with RINGFENCE_KERNELS=0, or on a GPU, or over several devices) XLA's own
products do the work. The result lies in ringfence's cache directory, under a name that tells the source, the compiler and
the processor. Nothing here imports JAX, so that a command can have this done while it does.
"""

import hashlib
import importlib.util
import os
import shlex
import subprocess
import threading
from importlib.metadata import version
from pathlib import Path

from ringfence.files import atomic_write, cache_directory, machine_fingerprint

SOURCE = Path(__file__).with_name("kernels.cc")
OPTIONS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-w")
LONGEST_BUILD = 120.0  # seconds
one_at_a_time = threading.Lock()


def start() -> None:
    """Compile in the background; `build` waits for it."""
    threading.Thread(target=build, daemon=True).start()


def build() -> Path | None:
    """The compiled library, from the cache if it is there; None without a compiler that can make it and a place for it."""
    if os.environ.get("RINGFENCE_KERNELS", "1") == "0":
        return None
    with one_at_a_time:
        try:
            return _build()
        except (OSError, subprocess.SubprocessError):
            return None


def _build() -> Path:
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    source = "".join(part.read_text(encoding="utf-8") for part in [SOURCE, *sorted(SOURCE.parent.glob("*.h"))])
    described = f"{source} {compiler} {OPTIONS} {version('jaxlib')} {machine_fingerprint()}"
    target = cache_directory() / f"kernels-{hashlib.sha256(described.encode()).hexdigest()[:12]}.so"
    if not target.exists():
        with atomic_write(target) as temporary:
            command = [*compiler, *OPTIONS, f"-I{_headers()}", str(SOURCE), "-o", str(temporary)]
            subprocess.run(command, check=True, capture_output=True, timeout=LONGEST_BUILD)
    return target


def _headers() -> Path:
    """Where XLA's headers are: `jax.ffi.include_dir()`, without JAX."""
    found = importlib.util.find_spec("jaxlib")
    if found is None or found.origin is None:
        raise FileNotFoundError("jaxlib")
    return Path(found.origin).parent / "include"
