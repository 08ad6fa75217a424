"""Names of episodes and of behaviours, compared exactly as they were written: whole numbers, floats or text."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringfence.data.names import texts
from ringfence.data.rawlog import RawLog
from ringfence.errors import UnreadableFile


def text_codes(values: Iterable[str]) -> tuple[NDArray[np.int32], list[str]]:
    """Each text as the number of its first appearance, and the texts: far smaller than text of one fixed width."""
    numbers: dict[str, int] = {}
    codes = np.fromiter((numbers.setdefault(value, len(numbers)) for value in values), np.int32)
    return codes, list(numbers)


def set_text_ids(log: RawLog, column: str, codes: NDArray[Any], names: Sequence[str]) -> None:
    """Put ids given as numbers of `names` into the log; sources keep the order of names that the header states."""
    if column == "source":
        known = list(texts("'source_names'", log.header.get("source_names") or list(names)))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UnreadableFile(f"the source column names {unknown[0]!r}, the list of source names does not")
        log.header.setdefault("source_names", known)
        if codes.dtype.kind in "iu" and len(names):  # otherwise a cell is empty, which the checks report
            codes = np.array([known.index(name) for name in names], np.int32)[codes]
    log.columns[column] = codes
