"""Which columns of a table hold what."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from ringfence.errors import InvalidSetting, MissingColumns, UnreadableFile

MATRICES = ("observations", "actions", "next_observations")
# Other words for our columns: what HDF5 logs and tables call them, and the singular.
ALIASES = {
    "obs": "observations",
    "observation": "observations",
    "action": "actions",
    "next_obs": "next_observations",
    "next_observation": "next_observations",
    "reward": "rewards",
    "cost": "costs",
    "termination": "terminations",
    "terminated": "terminations",
    "terminals": "terminations",
    "truncation": "truncations",
    "truncated": "truncations",
    "timeouts": "truncations",
    "episodes": "episode",
    "sources": "source",
}
# Other names that files use for the ends of episodes.
ENDS = {"terminal": "terminations", "done": "terminations", "dones": "terminations", "timeout": "truncations"}


@dataclass(frozen=True)
class ColumnMapping:
    """What a table calls its columns.

    Observations, actions and next observations: the list of column names in order, the name of a single column, or a
    prefix that is followed by 0, 1, 2, ...; a column of exactly that name wins over a prefix. The rest: one name each.
    Columns with the standard names may be absent where ringfence can do without them; a name given on purpose must
    exist; None leaves a column out.
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

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "ColumnMapping":
        """A mapping from our names, or other words for them, to the table's names."""
        changes: dict[str, Any] = {}
        for word, theirs in given.items():
            ours = _our_name(word)
            if ours in changes:
                raise InvalidSetting(f"the column for {ours} is given twice")
            names = theirs if isinstance(theirs, list | tuple) else [theirs]
            if theirs is not None and not (names and all(isinstance(name, str) and name for name in names)):
                raise InvalidSetting(f"the column for {ours} is a name or a list of names, not {theirs!r}")
            changes[ours] = tuple(theirs) if isinstance(theirs, list) else theirs
        return cls(**changes)

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
            if not isinstance(wanted, str) and item.name not in MATRICES:
                raise InvalidSetting(
                    f"{item.name} is one column, not {', '.join(map(str, wanted))}; put what you mean into one column"
                )
            names = _named((wanted,) if isinstance(wanted, str) else tuple(wanted), present)
            if not names and isinstance(wanted, str) and item.name in MATRICES:
                names = _numbered(wanted, present)
            if names:
                found[item.name] = names
            elif wanted != item.default:
                raise MissingColumns(
                    f"no column for {item.name}: asked for {wanted!r}, {_table_has(str(wanted), present)}"
                )
        _each_used_once(found)
        return found


def split_names(text: str) -> str | tuple[str, ...]:
    """The names in a list with commas, or the one name. A name that has a comma of its own stands in double quotes.

    >>> split_names('speed, "flow, north"'), split_names("speed")
    (('speed', 'flow, north'), 'speed')
    """
    if "," not in text:
        return text
    try:
        names = [name.strip() for name in next(csv.reader([text], skipinitialspace=True))]
    except csv.Error:
        raise InvalidSetting(f"in a list of columns, put a name with a line break in double quotes: {text!r}") from None
    return names[0] if len(names) == 1 else tuple(names)


def join_names(names: str | Sequence[str]) -> str:
    """The text that `split_names` makes these names of."""
    listed = [names] if isinstance(names, str) else names
    special = ',"\n\r' if len(listed) > 1 else ","
    return ",".join(
        '"' + name.replace('"', '""') + '"' if any(character in name for character in special) else name
        for name in listed
    )


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A question that names the nearest known word, or nothing.

    >>> did_you_mean("rewrads", ["rewards", "costs"])
    "; did you mean 'rewards'?"
    """
    lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), lower, n=1, cutoff=0.6)
    return f"; did you mean '{lower[close[0]]}'?" if close else ""


def is_near_miss(word: str, known: str) -> bool:
    """Whether one letter of a short word, or two of a long one, would have to be changed, added, left out or exchanged, or
    the word is more than half of the known one and then breaks off, as the names of a damaged file do.

    >>> is_near_miss("terminatde", "terminated"), is_near_miss("sou9ce", "source"), is_near_miss("resource", "source")
    (True, True, False)
    >>> is_near_miss("next_obser", "next_observations"), is_near_miss("time", "timeouts")
    (True, False)
    """
    if known.startswith(word) and 2 * len(word) > len(known):
        return True
    rows = [list(range(len(known) + 1))]
    for i, letter in enumerate(word, 1):
        row = [i]
        for j, other in enumerate(known, 1):
            cheapest = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != other))
            if i > 1 and j > 1 and word[i - 2 : i] == known[j - 1] + known[j - 2]:
                cheapest = min(cheapest, rows[-2][j - 2] + 1)
            row.append(cheapest)
        rows.append(row)
    return rows[-1][-1] <= (1 if len(known) < 8 else 2)


def means(word: str, column: str) -> bool:
    """Whether a column of a file is one of ours in other words, with or without a number.

    >>> means("timeouts", "truncations"), means("next_observation_0", "next_observations"), means("done", "terminations")
    (True, True, True)
    """
    plain = re.sub("_?[0-9]+$", "", word) if column in MATRICES else word
    return plain == column or (ALIASES | ENDS).get(plain) == column


def _our_name(word: str) -> str:
    known = [item.name for item in fields(ColumnMapping)]
    ours = ALIASES.get(word, word)
    if ours not in known:
        raise InvalidSetting(
            f"ringfence has no column {word!r}{did_you_mean(word, [*known, *ALIASES]) or '; it has ' + _known()}"
        )
    return ours


def _known() -> str:
    return ", ".join(item.name for item in fields(ColumnMapping))


def _table_has(wanted: str, present: Sequence[str]) -> str:
    return f"the table has {', '.join(present)}{did_you_mean(wanted, present)}"


def _named(names: tuple[str, ...], present: Sequence[str]) -> tuple[str, ...]:
    missing = [name for name in names if name not in present]
    if missing and len(names) > 1:
        raise MissingColumns(f"there is no column '{missing[0]}'; {_table_has(missing[0], present)}")
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


def _each_used_once(found: Mapping[str, Sequence[str]]) -> None:
    """Raise if a column is used twice. An observation may also be the cost or the reward."""
    for column in MATRICES:
        names = list(found.get(column, ()))
        repeated = [name for name in names if names.count(name) > 1]
        if repeated:
            raise InvalidSetting(f"column '{repeated[0]}' is listed twice among the {column}")
    for name in found.get("actions", ()):
        if name in found.get("observations", ()):
            raise InvalidSetting(
                f"column '{name}' is listed as an observation and as an action; a policy cannot see the action that it is "
                "about to choose"
            )
