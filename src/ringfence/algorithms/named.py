"""A method by its name, as the command line, experiments and configuration files give it."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ringfence.algorithms import METHODS
from ringfence.errors import UnknownName


def class_of(name: str) -> Any:
    if name not in METHODS:
        raise UnknownName(f"no method is called {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


def method_of(name: str, settings: Mapping[str, Any] | None = None, preset: str | None = None) -> Any:
    """A method by its name, with some of its settings changed."""
    kind = class_of(name)
    make = kind
    if preset not in (None, "default"):
        make = getattr(kind, str(preset), None)
        if preset != "paper" or make is None:
            raise UnknownName(f"{name} has no preset {preset!r}; there are 'default' and, where it differs, 'paper'")
    known = [field.name for field in fields(make())]
    for setting in settings or {}:
        if setting not in known:
            raise UnknownName(f"{make().name} has no setting {setting!r}; it has {', '.join(known)}")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in (settings or {}).items()}
    return make(**values)
