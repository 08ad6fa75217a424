"""Which columns of a table hold what."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from ringfence.errors import MissingColumns, UnreadableFile

MATRICES = ("observations", "actions", "next_observations")


@dataclass(frozen=True)
class ColumnMapping:
    """What a table calls its columns.

    Observations, actions and next observations: a prefix that is followed by 0, 1, 2, ..., or the list of column
    names in order. The rest: one name each. Columns with the standard names may be absent where ringfence can do
    without them; a name given on purpose must exist; None leaves a column out.
    """

    observations: str | Sequence[str] = "obs_"
    actions: str | Sequence[str] = "action_"
    next_observations: str | Sequence[str] | None = "next_obs_"
    rewards: str = "reward"
    costs: str | None = "cost"
    terminations: str | None = "terminated"
    truncations: str | None = "truncated"
    episode: str | None = "episode"
    source: str | None = "source"

    def resolve(self, present: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """For each of our columns that the table has: the names of its columns, in order."""
        repeated = sorted({name for name in present if list(present).count(name) > 1})
        if repeated:
            raise UnreadableFile(f"column '{repeated[0]}' appears more than once; rename or remove one of them")
        found: dict[str, tuple[str, ...]] = {}
        for item in fields(self):
            wanted = getattr(self, item.name)
            if wanted is None:
                continue
            if isinstance(wanted, str) and item.name in MATRICES:
                names = _numbered(wanted, present)
            else:
                names = _named((wanted,) if isinstance(wanted, str) else tuple(wanted), present)
            if names:
                found[item.name] = names
            elif wanted != item.default:
                raise MissingColumns(
                    f"no column for {item.name}: asked for {wanted!r}, the table has {', '.join(present)}"
                )
        return found


def _named(names: tuple[str, ...], present: Sequence[str]) -> tuple[str, ...]:
    missing = [name for name in names if name not in present]
    if missing and len(names) > 1:
        raise MissingColumns(f"there is no column '{missing[0]}'; the table has {', '.join(present)}")
    return () if missing else names


def _numbered(prefix: str, present: Sequence[str]) -> tuple[str, ...]:
    """prefix0, prefix1, ... in the order of their numbers, without gaps."""
    pattern = re.compile(re.escape(prefix) + r"([0-9]+)")
    matches = sorted((int(match[1]), name) for name in present if (match := pattern.fullmatch(name)))
    for expected, (number, name) in enumerate(matches):
        if number != expected:
            raise MissingColumns(
                f"column '{prefix}{expected}' should stand where '{name}' is; number the columns 0, 1, 2, ... or "
                "list their names in a ColumnMapping"
            )
    return tuple(name for _, name in matches)
