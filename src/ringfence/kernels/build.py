"""Compile `kernels.cc` for this machine's processor, once, and hand it to XLA.

A compiler is not required: without one (or with RINGFENCE_KERNELS=0, or on a GPU, or over several devices) XLA's own
products do the work. The result lies in ringfence's cache directory, under a name that tells the source, the compiler and
the processor.
"""

import ctypes
import hashlib
import os
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jax

from ringfence.files import atomic_write, cache_directory, machine_fingerprint

SOURCE = Path(__file__).with_name("kernels.cc")
OPTIONS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math", "-w")
CALLS = ("forward", "backward", "adam", "threefry")
LONGEST_BUILD = 120.0  # seconds


@cache
def library_name() -> str | None:
    """The prefix of the calls' names in XLA once they are there, or None if they cannot be had."""
    if os.environ.get("RINGFENCE_KERNELS", "1") == "0":
        return None
    ffi: Any = jax.ffi
    try:
        path = build()
        library = ctypes.CDLL(str(path))
        functions = {call: getattr(library, f"ringfence_{call}") for call in CALLS}
    except (OSError, AttributeError, subprocess.SubprocessError):
        return None  # no compiler, one that cannot do it, or no place to put the result
    for call, function in functions.items():
        ffi.register_ffi_target(f"{path.stem}.{call}", ffi.pycapsule(function), platform="cpu")
    return path.stem


def build() -> Path:
    """The compiled library, from the cache if it is there."""
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    parts = [SOURCE, *sorted(SOURCE.parent.glob("*.h"))]
    source = "".join(part.read_text(encoding="utf-8") for part in parts)
    described = f"{source} {compiler} {OPTIONS} {jax.__version__} {machine_fingerprint()}"
    target = cache_directory() / f"kernels-{hashlib.sha256(described.encode()).hexdigest()[:12]}.so"
    if not target.exists():
        with atomic_write(target) as temporary:
            command = [*compiler, *OPTIONS, f"-I{jax.ffi.include_dir()}", str(SOURCE), "-o", str(temporary)]
            subprocess.run(command, check=True, capture_output=True, timeout=LONGEST_BUILD)
    return target
