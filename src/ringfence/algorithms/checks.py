"""Hyper-parameters that make no sense are refused when the method is made, by name and with what is allowed."""

import math
from typing import Any

from ringfence.errors import InvalidSetting


def common(method: Any) -> None:
    """What every method has: a limit, unless it comes with the run, a discount, a batch size and a learning rate."""
    if method.limit is not None:
        positive(method, "limit", zero=True)
    positive(method, "batch_size", "learning_rate")
    share(method, "discount")


def positive(method: Any, *fields: str, zero: bool = False) -> None:
    for field in fields:
        value = getattr(method, field)
        if not (is_number(value) and (value > 0 or (zero and value == 0))):
            wanted = "a number of at least 0" if zero else "a positive number"
            raise InvalidSetting(f"{field} must be {wanted}, not {value!r}")


def share(method: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(method, field)
        if not (is_number(value) and 0 <= value < 1):
            raise InvalidSetting(f"{field} must be a number from 0 up to (but not) 1, not {value!r}")


def one_of(method: Any, field: str, allowed: tuple[str, ...]) -> None:
    value = getattr(method, field)
    if value not in allowed:
        raise InvalidSetting(f"{field} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
