"""The machine: what it is, how loaded it is, and how fast it multiplies matrices."""

import os
import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = ("ringfence", "jax", "jaxlib", "equinox", "optax", "numpy")


def describe() -> dict[str, Any]:
    from ringfence.kernels import computation  # not where peers are measured

    cpuinfo = Path("/proc/cpuinfo")
    models = [line.split(":")[1].strip() for line in _lines(cpuinfo) if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "vector_instructions": _vectors(cpuinfo),
        "system": platform.system(),
        "python": platform.python_version(),
        "computation": computation(),
        "versions": {name: version(name) for name in PACKAGES},
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "load_average": load_average(),
    }


def load_average() -> float | None:
    """Programs that wanted a core in the last minute: well above our own use, others disturbed the measurement."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


class Seconds(NamedTuple):
    """On the clock, and of processor time over all threads. On one core the second hardly feels what else runs there."""

    wall: float
    cpu: float


def timed(call: Callable[[], object]) -> Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def best_seconds(call: Callable[[], object], seconds: float) -> Seconds:
    """The shortest times that `call` took, trying again until `seconds` have passed. Anything else that runs on the
    machine only ever adds time, so the shortest is the least disturbed."""
    call()
    until = time.perf_counter() + seconds
    taken = [timed(call)]
    while time.perf_counter() < until:
        taken.append(timed(call))
    return Seconds(min(t.wall for t in taken), min(t.cpu for t in taken))


def quick_peak(size: int = 2048) -> "Callable[[], float]":
    """A function that gives the GFLOP/s of a large product just now, through XLA or NumPy's BLAS, whichever is faster. It
    ends with a rest: threads of a BLAS spin for some 25 ms after their work, on cores that the next measurement needs."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    multiply = jax.jit(lambda a: a @ a)
    host = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    device = jnp.asarray(host)
    calls = (lambda: multiply(device).block_until_ready(), lambda: host @ host)
    for call in calls:
        call()

    def peak() -> float:
        seconds = min(timed(call).wall for call in calls * 2)
        time.sleep(0.2)
        return 2e-9 * size**3 / seconds

    return peak


def matmul_peak(sizes: tuple[int, ...] = (256, 512, 1024, 2048), seconds: float = 1.0) -> dict[str, Any]:
    """The most GFLOP/s that float32 products of square matrices reach, through XLA or NumPy's BLAS, at any size."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    multiply = jax.jit(lambda a, b: a @ b)
    gflops: dict[str, float] = {}
    per_cpu: dict[str, float] = {}
    for size in sizes:
        host = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
        device = jnp.asarray(host)
        work = 2e-9 * size**3
        times = {
            "xla": best_seconds(lambda x=device: multiply(x, x).block_until_ready(), seconds),
            "numpy": best_seconds(lambda x=host: x @ x, seconds),
        }
        gflops |= {f"{library} {size}": work / taken.wall for library, taken in times.items()}
        per_cpu |= {f"{library} {size}": work / taken.cpu for library, taken in times.items() if taken.cpu > 0.002}
    return {
        "gflops": max(gflops.values()),
        "gflop_per_cpu_second": max(per_cpu.values(), default=0.0),
        "by_size": gflops,
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _vectors(cpuinfo: Path) -> str:
    flags = " ".join(line for line in _lines(cpuinfo) if line.startswith("flags")).split()
    return next((name for name in ("avx512f", "avx2", "avx") if name in flags), "unknown")
