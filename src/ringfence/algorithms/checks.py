"""Hyper-parameters that make no sense are refused when the method is made, by name and with what is allowed."""

import math
from typing import Any

from ringfence.errors import InvalidSetting


def positive(method: Any, field: str, *, zero: bool = False) -> None:
    value = getattr(method, field)
    if not (is_number(value) and (value > 0 or (zero and value == 0))):
        wanted = "a number of at least 0" if zero else "a positive number"
        raise InvalidSetting(f"{field} must be {wanted}, not {value!r}")


def share(method: Any, field: str) -> None:
    value = getattr(method, field)
    if not (is_number(value) and 0 <= value < 1):
        raise InvalidSetting(f"{field} must be a number from 0 up to (but not) 1, not {value!r}")


def one_of(method: Any, field: str, allowed: tuple[str, ...]) -> None:
    value = getattr(method, field)
    if value not in allowed:
        raise InvalidSetting(f"{field} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
