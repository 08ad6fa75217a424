"""The two pictures of docs/theory.md. Colours are Okabe and Ito's, readable by the colour-blind; markers differ too."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ringfence.files import atomic_write
from ringfence.reports.pictures import without_box
from ringfence.tabular.cmdp import Cmdp, Mask
from ringfence.tabular.lp import frontier
from ringfence.tabular.methods import AlphaSweep, Point

BLACK, ORANGE, SKY, GREEN, BLUE, VERMILLION, PURPLE, GREY, YELLOW = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#777777", "#F0E442",
)  # fmt: skip

# Colour, marker and size; drawn in this order, so CPQ lies on top.
STYLES: dict[str, tuple[str, str, float]] = {
    "cloning": (GREY, "s", 70),
    "cloning, safe rows": (GREEN, "D", 60),
    "naive, KL ≤ 0.1": (ORANGE, "^", 75),
    "naive, KL ≤ 1": (PURPLE, "v", 75),
    "linear program": (BLACK, "*", 200),
    "CPQ without the push": (VERMILLION, "X", 90),
    "default's hinge": (GREEN, "h", 110),
    "CPQ, stays put": (YELLOW, "P", 190),
    "CPQ, recovery": (SKY, "P", 130),
    "CPQ slow, stays put": (VERMILLION, "o", 70),
    "CPQ slow, recovery": (BLUE, "o", 45),
}
LABELS = {
    "linear program": "optimum (linear program)",
    "CPQ, recovery": "CPQ greedy, recovery where nothing is safe (whole cycle)",
    "CPQ, stays put": "CPQ greedy, stays put where nothing is safe (whole cycle)",
    "CPQ slow, recovery": "CPQ slow, recovery where nothing is safe",
    "CPQ slow, stays put": "CPQ slow, stays put (as the printed gradient)",
    "CPQ without the push": "CPQ slow, recovery, without the push (α = 0)",
    "default's hinge": "the default's ideas (hinge, anchor, ending costs)",
}


# In this order: where two bounds agree, the thin line lies on the thick one.
BOUND_STYLES: dict[str, tuple[str, Any, float, str]] = {
    "printed, as an operator": (PURPLE, (0, (5, 1.5)), 2.0, "printed α, read as an operator"),
    "ours": (GREEN, "-", 4.0, "our sufficient α, 2ε max(l − Qc)"),
    "smallest": (BLACK, (0, (1, 1.2)), 1.8, "smallest α that works"),
}


def draw_alpha_sweeps(sweeps: Sequence[AlphaSweep], path: Path) -> None:
    """Qc-hat against alpha: rare pairs must cross the limit, logged pairs must not move."""
    figure = Figure(figsize=(10, 4.3), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(sweeps), sharey=True)
    for axes, sweep in zip(panels, sweeps, strict=True):
        axes.plot(sweep.alphas, sweep.logged, color=BLUE, linewidth=1.5)
        axes.plot(sweep.alphas, sweep.rare, color=VERMILLION, linewidth=1.5, linestyle=(0, (6, 1)))
        axes.axhline(sweep.limit, color=BLACK, linewidth=1.2)
        for name, alpha in sweep.bounds.items():
            colour, dashes, width, _ = BOUND_STYLES[name]
            axes.axvline(alpha, color=colour, linestyle=dashes, linewidth=width)
        axes.set_title(sweep.title, fontsize=10)
        axes.set_xlabel("α, weight of the push")
        axes.set_xlim(0, sweep.alphas[-1])
        without_box(axes)
    panels[0].set_ylabel("Qc-hat, expected discounted cost")
    handles = [
        Line2D([], [], color=VERMILLION, linestyle=(0, (6, 1)), label="rare pairs (out of distribution)"),
        Line2D([], [], color=BLUE, label="logged pairs (in distribution)"),
        Line2D([], [], color=BLACK, linewidth=1.2, label="limit l"),
        *(
            Line2D([], [], color=colour, linestyle=dashes, linewidth=width, label=label)
            for colour, dashes, width, label in BOUND_STYLES.values()
        ),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    _save(figure, path)


def draw_methods(
    names: Sequence[str],
    cmdps: Sequence[Cmdp],
    allowed: Sequence[Mask],
    exact: Sequence[Sequence[Point]],
    sampled: Sequence[Sequence[Point]],
    path: Path,
) -> None:
    """Return against cost: the frontier of the linear program on the log's support, and where each method lies.

    Upper row: exact expectations. Lower row: one dot per sampled log.
    """
    figure = Figure(figsize=(11, 8.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(names), squeeze=False)
    for column, (name, cmdp, mask) in enumerate(zip(names, cmdps, allowed, strict=True)):
        for axes, points, many in (
            (panels[0, column], exact[column], False),
            (panels[1, column], sampled[column], True),
        ):
            _scatter(axes, points, many)
            _frontier(axes, cmdp, mask)
            without_box(axes)
            axes.set_xlabel("expected discounted cost")
        panels[0, column].set_title(name, fontsize=11)
    panels[0, 0].set_ylabel("exact expectations\nexpected discounted reward")
    panels[1, 0].set_ylabel("learned from logs\nexpected discounted reward")
    handles = [
        Line2D([], [], color=BLACK, linewidth=1.4, label="best return for each cost (linear program)"),
        Line2D([], [], color=BLACK, linestyle="--", linewidth=1, label="limit; over it, shaded"),
        *(
            Line2D([], [], linestyle="", marker=marker, color=colour, markersize=8, label=LABELS.get(method, method))
            for method, (colour, marker, _) in STYLES.items()
        ),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    _save(figure, path)


def _scatter(axes: Axes, points: Sequence[Point], many: bool) -> None:
    for method, (colour, marker, size) in STYLES.items():
        chosen = [point for point in points if point.method == method]
        axes.scatter(
            [point.expected_cost for point in chosen],
            [point.expected_return for point in chosen],
            color=colour,
            marker=marker,
            s=0.5 * size if many else size,
            alpha=0.7 if many else 1.0,
            linewidths=0.5,
            edgecolors="white",
            zorder=3,
        )


def _frontier(axes: Axes, cmdp: Cmdp, mask: Mask) -> None:
    left, right = axes.get_xlim()
    right = max(right, 1.15 * cmdp.limit)
    limits = np.linspace(0, right, 40)
    axes.plot(limits, frontier(cmdp, limits, mask), color=BLACK, linewidth=1.4, zorder=2)
    axes.axvline(cmdp.limit, color=BLACK, linestyle="--", linewidth=1, zorder=1)
    axes.axvspan(cmdp.limit, right, color=VERMILLION, alpha=0.07, linewidth=0, zorder=0)
    axes.set_xlim(min(left, -0.03 * right), right)


def _save(figure: Figure, path: Path) -> None:
    with atomic_write(path) as temporary:
        # No version in the file: the same numbers give the same bytes on one machine.
        figure.savefig(temporary, metadata={"Software": None})
