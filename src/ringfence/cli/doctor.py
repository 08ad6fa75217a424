"""What ringfence runs on here: versions, what computes, and which optional parts are installed."""

import argparse
import platform
from typing import Any

from ringfence import __version__
from ringfence.cli.options import add_verb
from ringfence.errors import NoCacheDirectory
from ringfence.files import cache_directory

EXTRAS = {
    "mujoco": ("gymnasium", "mujoco", "imageio"),
    "minari": ("minari",),
    "tensorboard": ("tensorboardX",),
    "export": ("onnx",),
    "ray": ("ray", "fsspec"),
}


def add_doctor(verbs: Any) -> None:
    add_verb(verbs, "doctor", doctor, "show what ringfence runs on here, what computes, and what is installed")


def doctor(options: argparse.Namespace) -> None:
    for name, text in report():
        print(f"{name + ':':<13}{text}")


def report() -> list[tuple[str, str]]:
    import jax

    from ringfence.kernels import computation, explanation

    devices = jax.devices()
    computes = computation()
    why = explanation()
    lines = [
        ("ringfence", __version__),
        ("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"),
        ("JAX", f"{jax.__version__}, {len(devices)} {devices[0].platform} device{'s' * (len(devices) > 1)}"),
        ("computation", computes if not why else f"{computes}, because {' '.join(why.split())}"),
        ("cache", _cache()),
    ]
    return lines + [(name, _installed(packages)) for name, packages in EXTRAS.items()]


def _cache() -> str:
    from ringfence.training.compilation import why_not_kept  # imports JAX

    try:
        folder = cache_directory()
    except NoCacheDirectory as error:
        return f"none, because {error}"
    why = why_not_kept()
    return f"{folder}, but every run compiles anew, because {why}" if why else str(folder)


def _installed(packages: tuple[str, ...]) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return ", ".join(f"{package} {version(package)}" for package in packages)
    except PackageNotFoundError as error:
        return f"not installed ({error.name} is missing)"
