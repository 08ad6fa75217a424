"""What an experiment shows while it runs: a live table on a terminal, an occasional line elsewhere. On stderr."""

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ringfence.experiments.grid import Cell
from ringfence.experiments.runner import State

LINE_EVERY = 60.0  # seconds, without a terminal
OVERRUN = 0.1  # of the time that a cell has taken, which it needs at least
ROWS = 12  # running cells shown at most

Estimate = Callable[[Cell], float]
"""How many seconds a cell takes from its start to its end."""


class Display:
    """Shows a state again and again. `estimate` and `slots` give the time left."""

    def __init__(self, name: str, estimate: Estimate, slots: int, enabled: bool = True):
        self.name, self.estimate, self.slots, self.enabled = name, estimate, max(1, slots), enabled
        self.console = Console(stderr=True, quiet=not enabled)
        self.live = Live(console=self.console, auto_refresh=False) if enabled and self.console.is_terminal else None
        self.said: set[str] = set()
        self.last_line, self.last_text = 0.0, ""

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def __call__(self, state: State) -> None:
        for cell, reason in {**state.retried, **state.failed}.items():
            word = "failed" if cell in state.failed else "died and is tried again"
            self._once(f"{cell} {word}: {reason}")
        ended = not state.left or state.interrupted
        if self.live:
            self.live.update(self.render(state), refresh=True)
        elif time.monotonic() - self.last_line > LINE_EVERY or (ended and self.line(state) != self.last_text):
            self._say(self.line(state))

    def line(self, state: State) -> str:
        total, left = len(state.experiment.cells), time_left(state, self.estimate, self.slots)
        failed = f", {len(state.failed)} failed" if state.failed else ""
        running = f", {len(state.began)} running" if state.began else ""
        ended = "all have ended" if state.failed else "all done"
        rest = "stopped and saved" if state.interrupted else f"about {duration(left)} left" if state.left else ended
        return f"{self.name}: {len(state.done)}/{total} cells done{running}{failed}, {rest}"

    def render(self, state: State) -> Group:
        table = Table("running", "step", "for", "about", box=None, pad_edge=False)
        cells = {cell.id: cell for cell in state.experiment.cells}
        for name, began in sorted(state.began.items(), key=lambda item: item[1])[:ROWS]:
            spent, steps = time.monotonic() - began, state.steps.get(name)
            table.add_row(
                name, "-" if steps is None else f"{steps:,}", duration(spent), duration(self.estimate(cells[name]))
            )
        if len(state.began) > ROWS:
            table.add_row(f"and {len(state.began) - ROWS} more", "", "", "")
        return Group(Text(self.line(state), style="bold"), table)

    def _say(self, line: str) -> None:
        self.last_line, self.last_text = time.monotonic(), line
        if self.enabled:
            print(line, file=sys.stderr, flush=True)

    def _once(self, text: str) -> None:
        if text not in self.said and self.enabled:
            self.said.add(text)
            if self.live:
                self.console.print(text, style="bold yellow", markup=False, highlight=False)
            else:
                print(text, file=sys.stderr, flush=True)


def time_left(state: State, estimate: Estimate, slots: int) -> float:
    """Seconds until all cells are done: what is estimated of the rest, corrected by how long finished cells took against
    their estimates and by those that run for longer than theirs, spread over the slots. Nothing is known of what such a
    cell still needs: a tenth of the time that it has taken is assumed."""
    cells = {cell.id: cell for cell in state.experiment.cells}
    spent = {cell.id: time.monotonic() - state.began[cell.id] for cell in state.left if cell.id in state.began}

    def ratio(took: Mapping[str, float]) -> float:
        expected = sum(estimate(cells[name]) for name in took)
        return sum(took.values()) / expected if expected else 1.0

    usual = ratio(state.seconds)
    factor = ratio(
        {**state.seconds, **{n: seconds for n, seconds in spent.items() if seconds > usual * estimate(cells[n])}}
    )
    rest = 0.0
    for cell in state.left:
        so_far = spent.get(cell.id, 0.0)
        rest += max(factor * estimate(cell) - so_far, OVERRUN * so_far)
    return rest / max(1, min(slots, len(state.left) or 1))


def duration(seconds: float) -> str:
    """Such as "2 h 05 min", "12 min" or "40 s"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
