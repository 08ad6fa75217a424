"""A progress bar for work that counts: on a terminal a bar, elsewhere an occasional line. Always on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

LINE_EVERY = 15.0  # seconds, without a terminal


@contextmanager
def counting(what: str, unit: str) -> Iterator[Callable[..., None]]:
    """A function to call with (done, total), and if there are any, numbers to show."""
    console = Console(stderr=True)
    began = last = time.monotonic()

    def speed(done: int) -> str:
        return f"{done / max(time.monotonic() - began, 1e-9):,.0f} {unit}/s"

    def line(done: int, total: int, numbers: dict[str, float] | None = None) -> None:
        nonlocal last
        if time.monotonic() - last > LINE_EVERY or done >= total:
            last = time.monotonic()
            print(f"{what}: {done:,}/{total:,} {unit}, {speed(done)}{_shown(numbers)}", file=sys.stderr, flush=True)

    if not console.is_terminal:
        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console) as bar:
        task = bar.add_task(what, total=None, note="")
        yield lambda done, total, numbers=None: bar.update(
            task, completed=done, total=total, note=speed(done) + _shown(numbers)
        )


def _shown(numbers: dict[str, float] | None) -> str:
    return "".join(f"  {name} {value:.3g}" for name, value in (numbers or {}).items())
