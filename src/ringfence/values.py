"""What counts as a number, wherever it comes from: the command line, a file or a caller. NumPy is not used: its import
would double the time of `ringfence --help`."""

import struct
from typing import Any

LARGEST = (2.0 - 2.0**-23) * 2.0**127  # of float32
# Of a log's values. Differences and sums of a few numbers of this size are still float32, and nothing measured comes near.
LARGEST_LOGGED = 1e37
LARGEST_COUNT = 2**31 - 1  # of steps and sizes: JAX counts in 32 bits


def is_number(value: Any) -> bool:
    """Whether it is a number that stays finite in float32, in which everything is computed.

    >>> [is_number(value) for value in (3, 0.5, float("nan"), 1e39, 10**400, True, "3")]
    [True, True, False, False, False, False, False]
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def is_fraction(value: Any) -> bool:
    """Whether it is from 0 up to (but not) 1, in float32 as well.

    >>> [is_fraction(value) for value in (0, 0.999, 1, 1 - 1e-9)]
    [True, True, False, False]
    """
    return is_number(value) and 0 <= to_float32(value) < 1


def is_whole(value: Any) -> bool:
    """Whether it is a whole number.

    >>> [is_whole(value) for value in (3, 3.0, True, "3")]
    [True, False, False, False]
    """
    return isinstance(value, int) and not isinstance(value, bool)


def to_float32(value: float) -> float:
    """The nearest number that float32 has."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
