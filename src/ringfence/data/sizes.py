"""What a file says of its size is checked against the file before anything is allocated or read."""

from collections.abc import Iterable

from ringfence.errors import UnreadableFile

# Columns of one value may shrink to a thousandth, but the measurements of a log shrink to a tenth at best. Below the
# floor a wrong size costs no one anything.
GREATEST_RATIO = 100
FLOOR_BYTES = 64_000_000


def require_plausible(declared: int, stored: int) -> None:
    """Raise if columns of `declared` bytes cannot come out of a file of `stored` bytes."""
    if declared < 0 or declared > max(FLOOR_BYTES, GREATEST_RATIO * stored):
        raise UnreadableFile(
            f"its columns are declared to hold {declared:,} bytes, which a file of {stored:,} bytes cannot; it is damaged"
        )


def require_apart(extents: Iterable[tuple[int, int, str]], end: int) -> int:
    """Raise if pieces of data, each (first byte, bytes, name), overlap or reach beyond byte `end` of the file; where the
    last of them ends."""
    reached, last = 0, ""
    for first, size, name in sorted(extents):
        if first < reached:
            raise UnreadableFile(f"the data of '{name}' and of '{last}' lie in the same place; the file is damaged")
        if size < 0 or first + size > end:
            raise UnreadableFile(f"the data of '{name}' reach beyond the end of the file; it was cut short or damaged")
        if size:
            reached, last = first + size, name
    return reached
