"""Hyper-parameters that make no sense are refused when the method is made, by name and with what is allowed."""

from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from ringfence.errors import InvalidSetting
from ringfence.values import LARGEST_COUNT, is_fraction, is_number, is_whole


def check_settings(method: Any) -> None:
    """Every field has a value of its type, and no number is NaN or infinite. Then what every method has: a limit,
    unless it comes with the run, a discount, a batch size and a learning rate."""
    field_types(method)
    if method.limit is not None:
        positive(method, "limit", zero=True)
    positive(method, "batch_size", "learning_rate")
    fraction(method, "discount")


def positive(method: Any, *fields: str, zero: bool = False) -> None:
    for field in fields:
        value = getattr(method, field)
        if not (is_number(value) and (np.float32(value) > 0 or (zero and value == 0))):
            wanted = "a number of at least 0" if zero else "a positive number"
            raise InvalidSetting(f"{field} must be {wanted}, not {value!r}")


def fraction(method: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(method, field)
        if not is_fraction(value):
            raise InvalidSetting(f"{field} must be a number from 0 up to (but not) 1, not {value!r}")


def at_most_one(method: Any, *fields: str, zero: bool = False) -> None:
    """For rates and weights of an average."""
    for field in fields:
        value = getattr(method, field)
        if not (is_number(value) and (0 < value <= 1 or (zero and value == 0))):
            wanted = "a number from 0 to 1" if zero else "a number above 0, at most 1"
            raise InvalidSetting(f"{field} must be {wanted}, not {value!r}")


def one_of(method: Any, field: str, allowed: tuple[str, ...]) -> None:
    value = getattr(method, field)
    if value not in allowed:
        raise InvalidSetting(f"{field} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def field_types(method: Any) -> None:
    """Each setting is of the type that its field states, whether it was typed, computed or read from a file. A whole number
    that stands for a float becomes one: some functions of JAX refuse integers."""
    hints = get_type_hints(type(method))
    for field in fields(method):
        value = getattr(method, field.name)
        if not is_of(value, hints[field.name]):
            raise InvalidSetting(f"{field.name} must be {in_words(hints[field.name])}, not {value!r}")
        if is_number(value) and hints[field.name] in (float, float | None):
            object.__setattr__(method, field.name, float(value))


def is_of(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(is_of(value, one) for one in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple and arguments[-1] is ...:
        return isinstance(value, tuple) and all(is_of(item, arguments[0]) and item > 0 for item in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(is_of, value, arguments))
    if hint is float:
        return is_number(value)
    if hint is int:
        return is_whole(value) and abs(value) <= LARGEST_COUNT
    return value is None if hint is NoneType else isinstance(value, hint)


def in_words(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(in_words(one) for one in arguments)
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin is tuple and arguments[-1] is not ...:
        return f"{len(arguments)} finite numbers, such as (20, 60)"
    if origin is tuple:
        return "a list of positive whole numbers, such as [256, 256]"
    names = {
        float: "a finite number (of at most 3.4e38)",
        int: f"a whole number (of at most {LARGEST_COUNT})",
        bool: "true or false",
        str: "text",
        NoneType: "null",
    }
    return names.get(hint, str(hint))
