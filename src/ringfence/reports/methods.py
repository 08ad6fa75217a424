"""The methods and their settings as tables."""

import re
from dataclasses import fields
from importlib import import_module
from typing import Any

from rich.console import Console
from rich.table import Table

from ringfence.algorithms import METHODS
from ringfence.algorithms.named import class_of
from ringfence.training.defaults import steps_of


def first_sentence(text: str) -> str:
    """
    >>> first_sentence("CBPL (Le et al. 2019): a game.\\n\\nIts players")
    'CBPL (Le et al. 2019): a game.'
    """
    words = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s+(?=[A-Z])", words)[0]


def print_methods(name: str | None = None) -> None:
    """A line per method, or, given one, a line per setting and how many steps a run makes without `--steps`."""
    console = Console()
    if name is None:
        table = Table("method", "what it is")
        for key, method in METHODS.items():
            table.add_row(key, first_sentence(import_module(method.__module__).__doc__ or ""))
        console.print(table)
        return
    kind = class_of(name)
    paper = kind.paper() if hasattr(kind, "paper") else None
    default = kind()
    table = Table("setting", "default", *(["paper"] if paper else []), title=name, title_justify="left")
    for field in fields(kind):
        ours, printed = getattr(default, field.name), getattr(paper, field.name, "-")
        differs = paper is not None and ours != printed
        table.add_row(field.name, str(ours), *([f"[bold]{printed}[/]" if differs else ""] if paper else []))
    console.print(table)
    console.print(steps_in_words(default, paper), soft_wrap=True)


def steps_in_words(default: Any, paper: Any | None) -> str:
    """How many steps a run makes that is not told."""
    ours, printed = steps_of_stages(default), steps_of_stages(default if paper is None else paper)
    other = "" if printed == ours else f", with the paper's preset {printed}"
    return f"without --steps a run makes {ours}{other}"


def steps_of_stages(method: Any) -> str:
    """The steps of the last stage, after those of the stages before it, which --steps does not change."""
    *earlier, last = method.stages(steps_of(method))
    before = " and ".join(f"{stage.steps:,} of the {stage.name}" for stage in earlier)
    return f"{last.steps:,} steps" + (f" after {before}" if before else "")
