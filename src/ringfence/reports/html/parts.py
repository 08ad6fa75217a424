"""What a page is made of: plain data, which `render.py` turns into one HTML file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar, Literal

Tone = Literal["", "good", "bad", "unsure"]


@dataclass(frozen=True)
class Cell:
    """A cell of a table. `value` is what it is sorted by, where that is not its text."""

    text: str
    value: float | None = None
    tone: Tone = ""


@dataclass(frozen=True)
class Words:
    kind: ClassVar[str] = "words"
    text: str


@dataclass(frozen=True)
class Notice:
    """Something that the reader must see: what it is, and what to do about it."""

    kind: ClassVar[str] = "notice"
    text: str
    advice: str = ""
    tone: Tone = "unsure"


@dataclass(frozen=True)
class Facts:
    """Names and values side by side."""

    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """With `tools` the reader can sort it by a click on a heading and filter its rows by words."""

    kind: ClassVar[str] = "table"
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    caption: str = ""
    tools: bool = False
    name: str = "table"


@dataclass(frozen=True)
class Plot:
    """A Bokeh model with a title above and a sentence below."""

    model: Any
    title: str
    caption: str = ""

    @property
    def legend(self) -> list[dict[str, str]]:
        """What `plots.add_legend` noted."""
        return [tag for tag in self.model.tags if isinstance(tag, dict)]


@dataclass(frozen=True)
class Plots:
    """Side by side where there is room; `small` for many of a kind."""

    kind: ClassVar[str] = "plots"
    plots: tuple[Plot, ...]
    small: bool = False


@dataclass(frozen=True)
class Command:
    kind: ClassVar[str] = "command"
    text: str


@dataclass(frozen=True)
class LimitTool:
    """The limit that can be moved, here or in the figure whose span is named "limit"; `words` is what it says at first."""

    kind: ClassVar[str] = "limit"
    least: float
    greatest: float
    value: float
    words: str


@dataclass(frozen=True)
class Choice:
    """Which of several variants the figures of a page show: the script swaps the data of the sources that are named."""

    kind: ClassVar[str] = "choice"
    label: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class Folded:
    """Details that are closed until they are asked for. Holds no figures: they need a size when they are drawn."""

    kind: ClassVar[str] = "folded"
    title: str
    parts: tuple[Any, ...]


Part = Words | Notice | Facts | Table | Plots | Command | LimitTool | Choice | Folded


@dataclass(frozen=True)
class Section:
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Headline:
    """What the page says first."""

    word: str
    tone: Tone
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Page:
    kind: str  # "log", "run", "sweep", "comparison" or "guard"
    title: str
    lead: str
    sections: tuple[Section, ...]
    headlines: tuple[Headline, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)  # for the page's script: plain JSON values

    @property
    def plots(self) -> list[Plot]:
        return [
            plot
            for section in self.sections
            for part in section.parts
            if isinstance(part, Plots)
            for plot in part.plots
        ]


# Numbers in words


def short(value: float | None, digits: int = 4) -> str:
    """A number with so many digits; a whole one, which counts or names something, with all; nothing where there is none."""
    if isinstance(value, Integral):
        return str(value)
    return "" if value is None or value != value else f"{value:.{digits}g}"


def number(value: float | None, digits: int = 4) -> Cell:
    return Cell(short(value, digits), value)


def share(value: float | None) -> Cell:
    return Cell("" if value is None else percent(value), value)


def percent(value: float) -> str:
    """As few digits as say something: 34 %, 3.4 %, 0.34 %."""
    size = abs(100 * value)
    return f"{100 * value:.{0 if size >= 9.95 or size == 0 else 1 if size >= 0.995 else 2}f} %"


def row(*cells: Cell | str | float | None) -> tuple[Cell, ...]:
    return tuple(c if isinstance(c, Cell) else Cell(c) if isinstance(c, str) else number(c) for c in cells)


def listed(words: Sequence[str], most: int = 12) -> str:
    """a, b and c; of many the first ones."""
    shown = list(words[:most])
    if len(words) > most:
        return f"{', '.join(shown)} and {len(words) - most} more"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) if shown else "none"


def counted(count: int, word: str, words: str | None = None) -> str:
    """1 episode, 2,000 episodes, 3 policies."""
    return f"{count:,} {word if count == 1 else words or word + 's'}"
