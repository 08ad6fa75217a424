"""The compiled libraries: which of them were built, which of them this processor can run, and which one is used.

They are part of the installed package (`setup.py` builds them); nothing is compiled or searched for anywhere else.
RINGFENCE_KERNELS=avx2 (or avx512) takes that one instead of the best, RINGFENCE_KERNELS=xla (or 0) none. Nothing here
imports JAX.
"""

import ctypes
import hashlib
import json
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

from ringfence.errors import InvalidSetting

FOLDER = Path(__file__).parent
INSTRUCTION_SETS = ("avx512", "avx2")  # the best first
CHOICES = (*INSTRUCTION_SETS, "xla")


class Library(NamedTuple):
    """The library to use. Without one, `name` is "xla" and `reason` says why."""

    name: str
    path: Path | None = None
    reason: str = ""


@cache
def chosen() -> Library:
    return choose(os.environ.get("RINGFENCE_KERNELS", ""))


def choose(setting: str) -> Library:
    """The best library that was built and that the processor can run, or the one that the setting names."""
    if setting in ("0", "xla"):
        return Library("xla", reason=f"RINGFENCE_KERNELS={setting}")
    if setting not in ("", "1", *INSTRUCTION_SETS):
        raise InvalidSetting(f"RINGFENCE_KERNELS={setting}: it can be one of {', '.join(CHOICES)}")
    candidates = (setting,) if setting in INSTRUCTION_SETS else INSTRUCTION_SETS
    missing = [f"{name}: {reason}" for name in candidates if (reason := obstacle(name))]
    if len(missing) == len(candidates):
        return Library("xla", reason="; ".join(missing))
    name = next(name for name in candidates if not obstacle(name))
    return Library(name, built(name))


def obstacle(name: str) -> str:
    """Why the library of this instruction set cannot be used; empty if it can."""
    for needed in ("processor", name):
        path = built(needed)
        if path is None:
            failed = build_record().get("failed", {})
            return str(failed.get(f"ringfence.kernels._{name}", "not built; `pip install` builds the kernels"))
        if not intact(path):
            return f"{path.name} is not the file that was built; install ringfence again"
    if stale():
        return "its source has changed since it was built; run `pip install` again"
    return processor_lacks(name)


def built(name: str) -> Path | None:
    paths = (FOLDER / f"_{name}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def intact(path: Path) -> bool:
    """Whether the file is as `setup.py` left it: a truncated library would end the process with SIGBUS."""
    built_as = build_record().get("sha256", {}).get(path.name)
    return bool(built_as == hashlib.sha256(path.read_bytes()).hexdigest())


def stale() -> bool:
    """Whether the source beside the libraries is not what they were built from. Without source, and with a record that was
    written before it had the source's digests, nobody knows."""
    files = sorted([*FOLDER.glob("*.cc"), *FOLDER.glob("*.h")])
    built_from = build_record().get("sources")
    if not files or built_from is None:
        return False
    return bool(built_from != {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files})


@cache
def processor_lacks(name: str) -> str:
    try:
        has = getattr(ctypes.CDLL(str(built("processor"))), f"ringfence_has_{name}")
    except (OSError, AttributeError) as error:
        return f"built for another system: {error}"
    return "" if has() else "the processor does not have these instructions"


def build_record() -> dict[str, Any]:
    """What `setup.py` wrote down: the version of jaxlib it built with, the digests of the libraries and of their source, and
    what failed. Empty if it never ran, or if the file is damaged."""
    try:
        record = json.loads((FOLDER / "build.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
