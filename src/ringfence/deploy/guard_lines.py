"""A line of a guard's log: JSON that ends with a checksum of its own, and has what its readers need.

Lines of version 1 have no checksum: what they hold is checked all the same, so that a damaged one is named and not read."""

import json
import re
import sys
import zlib
from typing import Any

VERSION = 2
ENCODER = json.JSONEncoder(allow_nan=False)
CHECK = re.compile(r', "crc32": "([0-9a-f]{8})"\}\n?$')


def encode(value: dict[str, Any]) -> str:
    """The line of a value; `ValueError` if one of its numbers is not finite."""
    text = ENCODER.encode(value)
    return f'{text[:-1]}, "crc32": "{zlib.crc32(text.encode()):08x}"}}\n'


def decode(text: str, version: int | None = None) -> dict[str, Any] | None:
    """What a line says, None if it is damaged. `version` is that of the log; the first line of a run states its own."""
    check = CHECK.search(text)
    if check and zlib.crc32((text[: check.start()] + "}").encode()) != int(check[1], 16):
        return None
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    line.pop("crc32", None)
    if not check and (line.get("version") if line.get("event") == "start" else version) != 1:
        return None
    return line if _is_opening(line) or _is_step(line) else None


def has_its_end(text: str) -> bool:
    """Whether a line has its end: if it cannot be decoded, it was not cut off but changed."""
    return CHECK.search(text) is not None


def _is_opening(line: dict[str, Any]) -> bool:
    return (
        line.get("event") == "start"
        and all(_are_texts(line.get(name)) for name in ("observation_names", "action_names", "active"))
        and all(isinstance(line.get(name), dict) for name in ("thresholds", "rules", "units"))
        and isinstance(line.get("policy"), str)
        and isinstance(line.get("method"), str | None)
        and all(_is_number(line.get(name)) for name in ("limit", "discount"))
        and all(_is_number(value) or _are_numbers(value) for value in line["thresholds"].values())
    )


def _is_step(line: dict[str, Any]) -> bool:
    scores = ("together", "detector_score", "cost_to_go", "spent")
    return (
        line.get("event") == "step"
        and line.get("time") is not None
        and all(_is_number(line.get(name)) for name in ("time", *scores))
        and all(isinstance(line.get(name), int) for name in ("episode", "step"))
        and isinstance(line.get("trusted"), bool)
        and all(_are_numbers(line.get(name)) for name in ("observation", "action"))
        and _are_texts(line.get("corrected"))
        and isinstance(line.get("reasons"), list)
        and all(map(_is_reason, line["reasons"]))
    )


def _is_reason(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("rule"), str)
        and all(isinstance(value.get(name), str | None) for name in ("column", "detail"))
        and all(_is_number(value.get(name)) for name in ("value", "threshold"))
    )


def _is_number(value: Any) -> bool:
    """A finite number, or none: what was missing or infinite."""
    if isinstance(value, bool):
        return False
    return value is None or (isinstance(value, int | float) and abs(value) <= sys.float_info.max)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(map(_is_number, values))


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
