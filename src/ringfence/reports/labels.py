"""Words in figures, where nothing else is: names at the ends of lines, names of single points.

Everything here is in shares of a panel's width and height, whose limits must not change any more.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

SMALL = 6.5  # points
CHARACTER, HEIGHT = 0.0215, 0.06  # of small text in a panel, estimated for the size that all panels have
GAP = 0.012  # between a word and what it names
MARGIN, LINE = 1.1, 0.073  # where names at the ends of lines begin, and how far apart they are at least
BOX = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.2}


class Place(NamedTuple):
    """A corner or side of a text: `across` is "left", "center" or "right", `up` is "bottom", "center" or "top"."""

    x: float
    y: float
    across: str
    up: str

    def box(self, text: str) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of the text."""
        width = CHARACTER * len(text)
        left = self.x - {"left": 0.0, "center": 0.5, "right": 1.0}[self.across] * width
        low = self.y - {"bottom": 0.0, "center": 0.5, "top": 1.0}[self.up] * HEIGHT
        return left, left + width, low, low + HEIGHT


class Room:
    """Where a panel is empty. What is drawn later is not known to it, but its own words are."""

    def __init__(self, axes: Any):
        axes.set_xlim(axes.get_xlim())
        axes.set_ylim(axes.get_ylim())
        self.axes = axes
        self.points = np.concatenate([np.empty((0, 2)), *(dense(path) for path in paths(axes))])
        self.words: list[tuple[float, float, float, float]] = []

    def write(self, text: str, places: Iterable[Place], colour: str = "0.25") -> None:
        """The text at the first of the places where it covers least."""
        best = min(places, key=lambda place: self.covered(place.box(text)))
        self.words.append(best.box(text))
        self.axes.annotate(
            text, (best.x, best.y), xycoords="axes fraction", fontsize=SMALL, color=colour, ha=best.across, va=best.up,
            bbox=BOX, zorder=4,
        )  # fmt: skip

    def covered(self, box: tuple[float, float, float, float]) -> float:
        """How much lies in a box; to leave the panel or to meet another word is worse than any line."""
        left, right, low, high = box
        x, y = self.points.T
        lines = np.sum((left <= x) & (x <= right) & (low <= y) & (y <= high))
        words = sum(left < r and le < right and low < h and lo < high for le, r, lo, h in self.words)
        outside = max(0.0, -left) + max(0.0, right - 1) + max(0.0, -low) + max(0.0, high - 1)
        return float(lines + 1000 * words + 100_000 * outside)

    def share(self, x: float, y: float) -> tuple[float, float]:
        """A point of the data, in shares of the panel."""
        found = self.axes.transAxes.inverted().transform(self.axes.transData.transform((x, y)))
        return float(found[0]), float(found[1])


def paths(axes: Any) -> list[np.ndarray]:
    """All lines and error bars of a panel, in shares of it."""
    inverse = axes.transAxes.inverted()
    drawn = [line.get_transform().transform(line.get_xydata()) for line in axes.lines]
    bars = [bar for bars in axes.collections if hasattr(bars, "get_segments") for bar in bars.get_segments()]
    return [inverse.transform(path) for path in [*drawn, *(axes.transData.transform(bar) for bar in bars)] if len(path)]


def dense(path: np.ndarray, spacing: float = 0.004) -> np.ndarray:
    """Points on a path, so close together that no word fits between two."""
    pieces = [path[-1:]]
    for start, end in pairwise(path):
        count = int(np.clip(np.abs(end - start).max() / spacing, 1, 1000))
        pieces.append(start + np.linspace(0, 1, count, endpoint=False)[:, None] * (end - start))
    return np.concatenate(pieces)


def along(start: tuple[float, float], end: tuple[float, float]) -> list[Place]:
    """Places above a rising line, from its middle to its ends, then under it."""
    shares = (0.6, 0.7, 0.5, 0.8, 0.4, 0.9, 0.3, 1.0, 0.2)
    points = [(start[0] + t * (end[0] - start[0]), start[1] + t * (end[1] - start[1])) for t in shares]
    above = [Place(x - GAP, y + GAP, "right", "bottom") for x, y in points]
    return above + [Place(x + GAP, y - GAP, "left", "top") for x, y in points]


def around(x: float, y: float, radius: float = 0.03) -> list[Place]:
    """Places beside a single point."""
    sides = [
        (0, 1, "center", "bottom"), (0, -1, "center", "top"), (1, 0, "left", "center"), (-1, 0, "right", "center"),
        (1, 1, "left", "bottom"), (-1, 1, "right", "bottom"), (1, -1, "left", "top"), (-1, -1, "right", "top"),
    ]  # fmt: skip
    return [Place(x + radius * dx, y + radius * dy, across, up) for dx, dy, across, up in sides]


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names at the right of the lines' ends, moved apart where they would overlap."""
    if not ends:
        return
    low, high = axes.get_ylim()
    heights = apart([(y - low) / (high - low) for _, y, _, _ in ends], LINE)
    for (x, y, text, colour), height in zip(ends, heights, strict=True):
        axes.annotate(
            text, (x, y), (MARGIN, height), xycoords="data", textcoords="axes fraction", color=colour, fontsize=7,
            va="center", annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 1,
                "relpos": (0, 0.5),  # to the middle of the text's left side, so that it crosses no other text
            },
        )  # fmt: skip


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """The heights in the same order, at least `gap` from each other, within [0, 1] and otherwise as near as can be to where
    they were. More than fit are as far apart as they can be."""
    gap = min(gap, 1 / max(1, len(heights) - 1))
    order = np.argsort(heights, kind="stable")
    ranks = gap * np.arange(len(heights))
    # Moving labels apart with the least change is isotonic regression of the heights less their ranks. Within bounds its
    # solution is the one without, cut off at them.
    shifted = np.clip(isotonic(np.asarray(heights, float)[order] - ranks), 0, max(0.0, 1 - ranks[-1])) + ranks
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
