"""Reads and checks what a file says about its log besides the rows. Any program may have written it; it may be damaged."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ringfence.data.names import clean, texts
from ringfence.errors import DataError, WrongShape
from ringfence.values import is_number


def checked_header(header: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The header with every entry of its kind. Raises one line that names the file and the entry."""
    try:
        return {key: CHECKS[key](key, value) for key, value in header.items() if value is not None and key in CHECKS}
    except DataError as error:
        raise type(error)(f"{path}: {error}") from None


def _text(key: str, value: Any) -> str:
    if not isinstance(value, (str, int, float)):
        raise WrongShape(f"'{key}' must be text, not {_shown(value)}")
    return clean(str(value))


def _numbers(key: str, value: Any) -> list[float]:
    """One finite number or a list of them; each single number in a list of its own counts as well."""
    flat = value if isinstance(value, list) else [value]
    if len(flat) == 1 and isinstance(flat[0], list):
        flat = flat[0]
    if not flat or not all(is_number(item) for item in flat):
        raise WrongShape(f"'{key}' must be a list of finite numbers, not {_shown(value)}")
    return [float(item) for item in flat]


def _texts(key: str, value: Any) -> list[str]:
    return list(texts(f"'{key}'", value))


def _units(key: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(unit, str) for unit in value.values()):
        raise WrongShape(f"'{key}' must name the unit of each column, not {_shown(value)}")
    return value


def _metadata(key: str, value: Any) -> dict[str, Any]:
    """JSON values; numbers that JSON cannot hold are kept as text."""
    if not isinstance(value, dict):
        raise WrongShape(f"'{key}' must be a table of names and values, not {_shown(value)}")
    odd = {name for name, item in value.items() if isinstance(item, float) and not math.isfinite(item)}
    return {clean(name): str(item) if name in odd else item for name, item in value.items()}


def _shown(value: Any) -> str:
    text = clean(repr(value))
    return text if len(text) <= 60 else f"{text[:60]}..."


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "name": _text,
    "notes": _texts,
    "metadata": _metadata,
    "source_names": _texts,
    "action_low": _numbers,
    "action_high": _numbers,
    "observation_names": _texts,
    "action_names": _texts,
    "units": _units,
}
