"""Progress for people: a bar on a terminal, an occasional line elsewhere. Always on stderr."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY = 15.0  # seconds, without a terminal


class TrainingProgress:
    """Shows one stage at a time: steps, speed, time left and the numbers that matter."""

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

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def start(self, stage: str, done: int, total: int) -> None:
        self.stage, self.total = stage, total
        self.began, self.first = time.monotonic(), done
        self.last_line = time.monotonic()
        self.numbers = ""
        self.bar.reset(self.task, description=stage, total=total, completed=done, visible=True, speed="", numbers="")

    def advance(self, done: int, numbers: dict[str, float] | None = None) -> None:
        if numbers:
            self.numbers = "  ".join(f"{name} {value:.3g}" for name, value in numbers.items())
        elapsed = time.monotonic() - self.began
        speed = f"{(done - self.first) / elapsed:.0f} steps/s" if elapsed > 0 else ""
        self.bar.update(self.task, completed=done, speed=speed, numbers=self.numbers)
        finished = done == self.total and numbers
        if not self.live and (finished or time.monotonic() - self.last_line > LINE_EVERY):
            self.last_line = time.monotonic()
            self.say(f"{self.stage}: {done}/{self.total} steps, {speed}  {self.numbers}")

    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""
        if self.live:
            self.console.print(text, style=style, highlight=False)
        elif not self.console.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", style="bold yellow")
