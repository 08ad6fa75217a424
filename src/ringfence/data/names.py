"""What the columns of a log are called, and in which units they are measured."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringfence.errors import WrongShape

UNIT_IN_NAME = re.compile(r".*\S\s*\[(?P<unit>[^\[\]]+)\]")


def column_names(column: str, given: Sequence[str] | None, values: NDArray[Any], prefix: str) -> tuple[str, ...]:
    """One name for each dimension: those given, else prefix0, prefix1, ...

    >>> import numpy as np
    >>> column_names("observations", None, np.zeros((4, 2)), "obs_")
    ('obs_0', 'obs_1')
    """
    dimensions = values.shape[1]
    if not given:
        return tuple(f"{prefix}{index}" for index in range(dimensions))
    found = texts(f"the names of the {column}", given)
    if len(found) != dimensions:
        raise WrongShape(f"there are {len(found)} names for the {column}, which have {dimensions} dimensions")
    repeated = [name for name in found if found.count(name) > 1]
    if repeated or not all(name.strip() for name in found):
        reason = f"{repeated[0]!r} appears more than once" if repeated else "one is empty"
        raise WrongShape(f"the names of the {column} must be distinct and not empty: {reason}")
    return found


def plain(given: Any) -> Any:
    """Names in an array or in an index of pandas, such as the columns of a table, as a list; others as they are."""
    return given.tolist() if hasattr(given, "tolist") else given


def names_in_table(values: Any) -> list[str] | None:
    """The column names of a DataFrame; None for anything else, or if its columns are numbered."""
    found = list(getattr(values, "columns", ()))
    return found if found and all(isinstance(name, str) for name in found) else None


def checked_units(units: Mapping[str, str], *names: Iterable[str]) -> dict[str, str]:
    """Units of columns that exist, as text."""
    known = {name for group in names for name in group} | {"rewards", "costs"}
    for name, unit in units.items():
        if name not in known or not isinstance(unit, str):
            raise WrongShape(f"the unit of {name!r} is {unit!r}; needed: text, for a column that exists")
    return {name: clean(unit) for name, unit in units.items()}


def units_in_names(names: Iterable[str]) -> dict[str, str]:
    """Units that stand in brackets behind a name.

    >>> units_in_names(["Tc [K]", "flow", "c_A [mol/l]"])
    {'Tc [K]': 'K', 'c_A [mol/l]': 'mol/l'}
    """
    found = {name: UNIT_IN_NAME.fullmatch(name) for name in names}
    return {name: match["unit"].strip() for name, match in found.items() if match and match["unit"].strip()}


def texts(what: str, values: Any) -> tuple[str, ...]:
    """A sequence of text, such as names; a single text counts as a sequence of one."""
    found = [values] if isinstance(values, str) else values
    if not isinstance(found, (list, tuple)) or not all(isinstance(value, str) for value in found):
        raise WrongShape(f"{what} must be a list of text, not {str(values)[:60]!r}")
    return tuple(clean(value) for value in found)


def clean(text: str) -> str:
    """Text that can be printed and written in UTF-8: what cannot is shown by its number."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def name_of(value: Any) -> str:
    """An id in words; a whole number without a decimal point.

    >>> [name_of(value) for value in (3, 3.0, 1.5, "öl")]
    ['3', '3', '1.5', 'öl']
    """
    plain = value.item() if isinstance(value, np.generic) else value
    return str(int(plain)) if isinstance(plain, float) and plain.is_integer() else str(plain)


def labels(
    given: Mapping[str, Sequence[str]], observations: Sequence[str] | None, actions: Sequence[str] | None
) -> dict[str, Sequence[str]]:
    """What error messages call the columns: the file's words first, then the names given."""
    called = {"observations": observations, "actions": actions}
    return {column: names for column, names in called.items() if names} | dict(given)
