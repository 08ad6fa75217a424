"""What computes a run. Its numbers depend on it, down to the last digit, so the run remembers it."""

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import jax

from ringfence import __version__, kernels
from ringfence.files import processor_flags
from ringfence.training.configuration import differences

NUMERICAL = ("jaxlib", "numpy", "optax")  # packages besides JAX whose versions can change a number
VECTORS = ("avx512f", "avx2", "fma", "asimd", "sve")  # what XLA compiles for, and so the order in which it adds


def computed_by() -> dict[str, str]:
    """What can change a number: our version, JAX's, the products' kernels, the processor's vectors and the devices."""
    return {
        "ringfence": __version__,
        "jax": jax.__version__,
        "products": kernels.computation(),
        "processor": " ".join([platform.machine(), *(flag for flag in VECTORS if flag in processor_flags())]),
        "devices": f"{jax.device_count()} {jax.default_backend()}",
    }


def versions() -> dict[str, str]:
    """For the record."""
    found = {"ringfence": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in ("jax", "jaxlib", "numpy", "equinox", "optax"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # e.g. a build without its metadata
            found[package] = "unknown"
    return found


def changes_since(recorded: Mapping[str, str], recorded_versions: Mapping[str, str]) -> list[str]:
    """How what computes now differs from what a run remembers."""
    now = versions()
    before, after = ({name: of.get(name) for name in NUMERICAL} for of in (recorded_versions, now))
    return [*differences(recorded, computed_by()), *differences(before, after)]
