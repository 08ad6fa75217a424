"""Progress: a bar on a terminal, an occasional line elsewhere. Always on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY = 15.0  # seconds, without a terminal


class ProgressBar:
    """Shows one piece of work at a time: how far it is, its speed, the time left and the numbers that matter."""

    def __init__(self, enabled: bool = True):
        self.console = Console(stderr=True, quiet=not enabled)
        self.live = enabled and self.console.is_terminal
        self.bar = Progress(
            TextColumn("{task.description:>9}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=self.console,
            disable=not self.live,
        )
        self.task = self.bar.add_task("", visible=False, speed="", numbers="")
        self.total = -1

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def start(self, what: str, done: int, total: int, unit: str = "steps") -> None:
        self.what, self.total, self.unit = what, total, unit
        self.began, self.first = time.monotonic(), done
        self.last_line = time.monotonic()
        self.numbers = ""
        self.bar.reset(self.task, description=what, total=total, completed=done, visible=True, speed="", numbers="")

    def advance(self, done: int, numbers: dict[str, float] | None = None, *, last: bool = True) -> None:
        """`last` is whether the end deserves a line where there is no bar: once for each piece of work."""
        if numbers:
            self.numbers = "  ".join(f"{name} {value:.3g}" for name, value in numbers.items())
        elapsed = time.monotonic() - self.began
        speed = f"{(done - self.first) / elapsed:,.0f} {self.unit}/s" if elapsed > 0 else ""
        self.bar.update(self.task, completed=done, speed=speed, numbers=self.numbers)
        due = time.monotonic() - self.last_line > LINE_EVERY or (done >= self.total and last)
        if not self.live and due:
            self.last_line = time.monotonic()
            self.say(f"{self.what}: {done:,}/{self.total:,} {self.unit}, {speed}  {self.numbers}".rstrip())

    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""
        if self.live:
            self.console.print(text, style=style, markup=False, highlight=False)
        elif not self.console.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", style="bold yellow")


@contextmanager
def counting(what: str, unit: str) -> Iterator[Callable[..., None]]:
    """A function to call with (done, total), and if there are any, numbers to show."""
    with ProgressBar() as shown:

        def advance(done: int, total: int, numbers: dict[str, float] | None = None) -> None:
            if shown.total != total:
                shown.start(what, 0, total, unit)
            shown.advance(done, numbers)

        yield advance
