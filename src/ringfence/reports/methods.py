"""The methods and their settings as tables."""

from dataclasses import fields
from importlib import import_module

from rich.console import Console
from rich.table import Table

from ringfence.algorithms import METHODS
from ringfence.algorithms.named import class_of


def print_methods(name: str | None = None) -> None:
    """A line per method, or, given one, a line per setting."""
    console = Console()
    if name is None:
        table = Table("method", "what it is")
        for key, method in METHODS.items():
            table.add_row(key, (import_module(method.__module__).__doc__ or "").strip().splitlines()[0])
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
