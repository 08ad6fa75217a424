"""The machine: what it is, how loaded it is, and how fast it multiplies matrices."""

import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("ringfence", "jax", "jaxlib", "equinox", "optax", "numpy")


def describe() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    models = [line.split(":")[1].strip() for line in _lines(cpuinfo) if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "vector_instructions": _vectors(cpuinfo),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "load_average": load_average(),
    }


def load_average() -> float | None:
    """Programs that wanted a core in the last minute: well above our own use, others disturbed the measurement."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def best_seconds(call: Callable[[], object], seconds: float) -> float:
    """The shortest time that `call` took, trying again until `seconds` have passed. Anything else that runs on the
    machine only ever adds time, so the shortest is the least disturbed."""
    call()
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best


def matmul_peak(sizes: tuple[int, ...] = (256, 512, 1024, 2048), seconds: float = 1.0) -> dict[str, Any]:
    """The most GFLOP/s that float32 products of square matrices reach, through XLA or NumPy's BLAS, at any size."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    multiply = jax.jit(lambda a, b: a @ b)
    gflops: dict[str, float] = {}
    for size in sizes:
        host = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
        device = jnp.asarray(host)
        work = 2e-9 * size**3
        times = {
            "xla": best_seconds(lambda x=device: multiply(x, x).block_until_ready(), seconds),
            "numpy": best_seconds(lambda x=host: x @ x, seconds),
        }
        gflops |= {f"{library} {size}": work / taken for library, taken in times.items()}
    return {"gflops": max(gflops.values()), "by_size": gflops}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _vectors(cpuinfo: Path) -> str:
    flags = " ".join(line for line in _lines(cpuinfo) if line.startswith("flags")).split()
    return next((name for name in ("avx512f", "avx2", "avx") if name in flags), "unknown")
