"""Code of our own for CPUs, `kernels.cc`, compiled on the machine it runs on: networks and their optimiser."""

from ringfence.kernels.calls import adam, available, mlp, threefry, usable

__all__ = ["adam", "available", "mlp", "threefry", "usable"]
