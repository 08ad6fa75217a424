"""The kernels of every instruction set that can be run here, for tests that try them all."""

import importlib.util
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import jax
import pytest

from ringfence.kernels import calls, library

# "sixteen lanes" is the code for AVX-512, compiled so that a processor with AVX2 can run it.
SETS = ("avx512", "avx2", "sixteen lanes")


@cache
def kernels_of(name: str) -> library.Library:
    """The library of this name; the test is skipped where it cannot be run."""
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        pytest.skip("the kernels are for one CPU device")
    if reason := library.obstacle("avx2" if name == "sixteen lanes" else name):
        pytest.skip(reason)
    found = library.choose(name) if name in library.INSTRUCTION_SETS else library.Library(name, sixteen_lanes())
    return calls.registered(found)


def sixteen_lanes() -> Path:
    compiler = os.environ.get("CXX", "").split() or ["c++"]
    if shutil.which(compiler[0]) is None:
        pytest.skip("no compiler")
    headers = Path(importlib.util.find_spec("jaxlib").origin).parent / "include"
    target = Path(mkdtemp(prefix="ringfence-test-kernels-")) / "kernels.so"
    options = ["-O1", "-std=c++17", "-fPIC", "-shared", "-mavx2", "-mfma", "-w", "-DRINGFENCE_LANES=16"]
    source = library.FOLDER / "avx512.cc"
    subprocess.run([*compiler, *options, f"-I{headers}", str(source), "-o", str(target)], check=True)
    return target
