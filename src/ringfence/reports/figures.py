"""Figures of an experiment, for print: vector and PNG, colours that colour-blind readers can tell apart (Okabe and Ito),
the limit dashed, a label at the end of each line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ringfence.files import atomic_write
from ringfence.limits import Limit
from ringfence.reports.results import Gathered, Group

SUFFIXES = (".pdf", ".svg", ".png")
COLOURS = {
    "cpq": "#0072B2",
    "cpq-paper": "#D55E00",
    "bc-safe": "#009E73",
    "bcq-lag": "#E69F00",
    "bear-lag": "#CC79A7",
    "cbpl": "#56B4E9",
    "bc": "#777777",
}
NAMES = {
    "cpq": "CPQ (our default)",
    "cpq-paper": "CPQ as printed",
    "bc-safe": "BC-Safe",
    "bcq-lag": "BCQ-Lag",
    "bear-lag": "BEAR-Lag",
    "cbpl": "CBPL",
    "bc": "BC",
}
MARKERS = "os^vDPX<>"
STYLE: Any = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "ringfence",
    "svg.fonttype": "none",  # text that can be searched
    "pdf.fonttype": 42,
}


def curves_figure(gathered: Gathered, path: Path) -> list[Path]:
    """Return and discounted cost over training: a column for each log, mean and standard deviation over seeds."""
    measures = (("return", "return"), ("discounted_cost", "discounted cost"))
    with styled(2, len(gathered.logs)) as (figure, panels):
        for column, log in enumerate(gathered.logs):
            for axes, (measure, label) in zip(panels[:, column], measures, strict=True):
                ends = []
                for method in gathered.labels:
                    for group in gathered.of(log, method):
                        steps, mean, std = group.curve(measure)
                        if len(steps):
                            colour = colour_of(gathered, method)
                            axes.plot(steps, mean, color=colour, linewidth=1.3)
                            axes.fill_between(steps, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
                            ends.append((steps[-1], mean[-1], named(method), colour))
                reference_lines(gathered, log, axes, measure)
                if measure == "discounted_cost":
                    for limit in gathered.limits(log):
                        axes.axhline(limit, color="black", linestyle="--", linewidth=1)
                        note(axes, limit, f"limit {limit:g}", at=0.5)  # behaviours often lie at the limit
                label_ends(axes, ends)
                axes.set_ylabel(label if column == 0 else "")
            panels[0, column].set_title(log)
            panels[1, column].set_xlabel(f"training step\n{simulated(gathered, log)}")
        return save(figure, path)


def limits_figure(gathered: Gathered, path: Path) -> list[Path]:
    """Realised discounted cost, cost per step and return against the limit: a column for each log, mean and standard
    deviation over seeds of the last iterate; the dashed diagonal is where cost equals limit."""
    measures = (("discounted_cost", "discounted cost"), ("step_cost", "cost per step"), ("return", "return"))
    with styled(3, len(gathered.logs)) as (figure, panels):
        for column, log in enumerate(gathered.logs):
            limits = np.array(gathered.limits(log))
            for axes, (measure, label) in zip(panels[:, column], measures, strict=True):
                ends = []
                for number, method in enumerate(gathered.labels):
                    groups = sorted((g for g in gathered.of(log, method) if g.tested), key=lambda group: group.limit)
                    if groups:
                        at = np.array([group.limit for group in groups])
                        values = [group.last(measure) for group in groups]
                        mean, std = np.array([v.mean() for v in values]), np.array([v.std() for v in values])
                        colour = colour_of(gathered, method)
                        marker = MARKERS[number % len(MARKERS)]
                        axes.errorbar(
                            at, mean, std, color=colour, marker=marker, markersize=4, linewidth=1.2, capsize=2
                        )
                        ends.append((at[-1], mean[-1], named(method), colour))
                ends_of_frontier(gathered, log, axes, measure)
                if measure != "return":
                    allowed = limits if measure == "discounted_cost" else per_step(gathered, log, limits)
                    axes.plot(limits, allowed, color="black", linestyle="--", linewidth=1)
                label_ends(axes, ends)
                axes.set_ylabel(label if column == 0 else "")
            panels[0, column].set_title(log)
            panels[2, column].set_xlabel(f"limit (discounted)\n{simulated(gathered, log)}")
        return save(figure, path)


def simulated(gathered: Gathered, log: str) -> str:
    return f"(simulated episodes of up to {gathered.longest_episode(log)} steps)"


def per_step(gathered: Gathered, log: str, limits: np.ndarray) -> np.ndarray:
    """The limits as costs per step over an episode of full length."""
    group: Group = next(group for group in gathered.groups if group.log == log)
    discount = group.results[0]["cell"]["hyperparameters"]["discount"]
    horizon = gathered.references.get(log, {}).get("log", {}).get("horizon") or gathered.longest_episode(log)
    return np.array([Limit(float(limit), discount, horizon).per_step for limit in limits])


def reference_lines(gathered: Gathered, log: str, axes: Any, measure: str) -> None:
    """Both behaviours as they wrote the log, dotted."""
    for which in ("safe", "unsafe"):
        if behaviour := gathered.behaviour(log, which, "sampled"):
            axes.axhline(behaviour[measure], color="0.45", linestyle=":", linewidth=1)
            note(axes, behaviour[measure], f"{which} behaviour")


def ends_of_frontier(gathered: Gathered, log: str, axes: Any, measure: str) -> None:
    """Both behaviours without noise, at the limits that they would just keep; each name away from the axis."""
    for which, place, side in (("safe", (0, 6), "left"), ("unsafe", (-5, 3), "right")):
        if behaviour := gathered.behaviour(log, which, "noise-free"):
            axes.plot(behaviour["discounted_cost"], behaviour[measure], "*", color="black", markersize=8, zorder=3)
            axes.annotate(which, (behaviour["discounted_cost"], behaviour[measure]), place, fontsize=6.5, ha=side,
                          textcoords="offset points")  # fmt: skip


def note(axes: Any, height: float, text: str, at: float = 0.0) -> None:
    """A word on a horizontal line, from the share `at` of its length on."""
    axes.annotate(text, (at, height), (2, 2), xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=6.5,
                  color="0.3")  # fmt: skip


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names at the right of the lines' ends, moved apart where they would overlap."""
    if not ends:
        return
    low, high = axes.get_ylim()
    heights = apart([(y - low) / (high - low) for _, y, _, _ in ends], 0.075)
    for (x, y, text, colour), height in zip(ends, heights, strict=True):
        axes.annotate(
            text, (x, y), (1.02, height), xycoords="data", textcoords="axes fraction", color=colour, fontsize=7,
            va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 1},
        )  # fmt: skip


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """The heights in the same order, at least `gap` from each other and centred about where they were."""
    order = np.argsort(heights, kind="stable")
    ranks = gap * np.arange(len(heights))
    # Moving labels apart with the least change is isotonic regression of the heights less their ranks.
    shifted = isotonic(np.asarray(heights, float)[order] - ranks) + ranks
    placed = np.empty(len(heights))
    placed[order] = shifted
    return [float(height) for height in placed]


def isotonic(values: np.ndarray) -> np.ndarray:
    """The nearest non-decreasing sequence, by pooling neighbours that are in the wrong order."""
    blocks: list[list[float]] = []
    for value in values:
        blocks.append([float(value)])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    return np.concatenate([np.full(len(block), np.mean(block)) for block in blocks])


def colour_of(gathered: Gathered, label: str) -> str:
    """A method's own colour; others take what is left, in order."""
    if label in COLOURS:
        return COLOURS[label]
    free = [colour for name, colour in COLOURS.items() if name not in gathered.labels] or list(COLOURS.values())
    others = [name for name in gathered.labels if name not in COLOURS]
    return free[others.index(label) % len(free)]


def named(label: str) -> str:
    return NAMES.get(label, label)


class styled:
    """A figure of so many rows and columns in the style of all figures."""

    def __init__(self, rows: int, columns: int):
        self.rows, self.columns = rows, columns

    def __enter__(self) -> tuple[Any, np.ndarray]:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        self.style = mpl.rc_context(STYLE)
        self.style.__enter__()
        figure = Figure(figsize=(3.6 * self.columns, 2.2 * self.rows), layout="constrained")
        return figure, figure.subplots(self.rows, self.columns, squeeze=False)

    def __exit__(self, *details: Any) -> None:
        self.style.__exit__(*details)


def save(figure: Any, path: Path) -> list[Path]:
    """The figure with each suffix, without dates, so that the same numbers give the same file."""
    dates: dict[str, dict[str, Any]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}
    written = []
    for suffix in SUFFIXES:
        with atomic_write(file := path.with_suffix(suffix)) as temporary:
            figure.savefig(temporary, dpi=200, metadata=dates[suffix])
        written.append(file)
    return written
