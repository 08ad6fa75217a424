"""Figures for pages, all in one style: transparent, so that they are readable on light and dark paper.

Names out of a log enter a figure as data or as `PlainText`, never as a template, as HTML or as TeX.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Okabe and Ito's colours, which people with colour-blindness can tell apart, at a brightness for light and for dark paper.
COLOURS = ("#1b86c7", "#e0651f", "#13a37c", "#cc79a7", "#d99a00", "#6cb6e8", "#8f959e")
LIMIT_COLOUR, POLICY_COLOUR, LOG_COLOUR = "#d6402b", "#1b86c7", "#8a93a0"
HEIGHT, SMALL_HEIGHT = 360, 200
TOOLS = "pan,wheel_zoom,box_zoom,reset"
OUTLIER = 30.0
OUTSIDE = " Values far from all others lie outside the figure; the table has them."


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def blank(x: str, y: str, *, height: int = HEIGHT, tools: str = TOOLS, **options: Any) -> Any:
    """An empty figure with named axes. The wheel scrolls the page until the reader picks the zoom tool."""
    from bokeh.models import PlainText
    from bokeh.plotting import figure

    made: Any = figure(
        height=height, sizing_mode="stretch_width", tools=tools, active_scroll=None, output_backend="canvas",
        background_fill_alpha=0.0, border_fill_alpha=0.0, outline_line_color=None, **options,
    )  # fmt: skip
    made.toolbar.logo, made.toolbar.autohide = None, True
    for axis, label in ((made.xaxis[0], x), (made.yaxis[0], y)):
        axis.axis_label = PlainText(text=label)
        axis.axis_label_text_font_style, axis.axis_label_text_font_size = "normal", "12px"
        axis.minor_tick_line_color = None
    return made


def small(x: str, y: str, **options: Any) -> Any:
    return blank(x, y, height=SMALL_HEIGHT, tools="", toolbar_location=None, **options)


def source(**columns: Any) -> Any:
    from bokeh.models import ColumnDataSource

    return ColumnDataSource({name: _column(values) for name, values in columns.items()})


def _column(values: Any) -> Any:
    array = np.asarray(values)
    return (
        array.astype(np.float32)
        if array.dtype.kind == "f"
        else [str(v) for v in values]
        if array.dtype.kind in "US"
        else array
    )


def dots(
    plot: Any, label: str | None, x: Any, y: Any, *, hue: str, size: float = 5.0, marker: str = "circle",
    alpha: float = 0.7, **more: Any,
) -> Any:  # fmt: skip
    """Points; further columns, such as names, are for the hover tool."""
    drawn = plot.scatter(
        "x",
        "y",
        source=source(x=x, y=y, **more),
        size=size,
        marker=marker,
        fill_color=hue,
        line_color=None,
        alpha=alpha,
    )
    add_legend(plot, label, hue)
    return drawn


def lines(
    plot: Any, label: str | None, x: Any, y: Any, *, hue: str, dash: str = "solid", width: float = 2.0, **more: Any
) -> Any:
    drawn = plot.line("x", "y", source=source(x=x, y=y, **more), color=hue, line_width=width, line_dash=dash)
    add_legend(plot, label, hue, dash)
    return drawn


def band(plot: Any, x: Any, low: Any, high: Any, *, hue: str, label: str | None = None) -> Any:
    drawn = plot.varea("x", "low", "high", source=source(x=x, low=low, high=high), fill_color=hue, fill_alpha=0.18)
    add_legend(plot, label, hue, "area")
    return drawn


def bars(plot: Any, edges: Any, heights: Any, *, hue: str, label: str | None = None) -> Any:
    data = source(left=edges[:-1], right=edges[1:], top=heights)
    drawn = plot.quad(
        left="left", right="right", top="top", bottom=0, source=data, fill_color=hue, fill_alpha=0.55, line_color=None
    )
    add_legend(plot, label, hue, "area")
    return drawn


def steps(plot: Any, edges: Any, heights: Any, *, hue: str, label: str | None = None) -> Any:
    """The outline of a histogram."""
    x, y = np.repeat(edges, 2), np.concatenate([[0], np.repeat(heights, 2), [0]])
    return lines(plot, label, x, y, hue=hue, width=1.6)


def whiskers(plot: Any, x: Any, y: Any, *, x_bounds: Any = None, y_bounds: Any = None, hue: str) -> None:
    """Intervals of points, as lines through them."""
    if x_bounds is not None:
        ends = source(x0=x_bounds[0], x1=x_bounds[1], y=y)
        plot.segment("x0", "y", "x1", "y", source=ends, color=hue, line_width=1.6)
    if y_bounds is not None:
        ends = source(y0=y_bounds[0], y1=y_bounds[1], x=x)
        plot.segment("x", "y0", "x", "y1", source=ends, color=hue, line_width=1.6)


def limit_line(plot: Any, limit: float, dimension: str = "height", *, beside: float, movable: bool = False) -> Any:
    """The limit, dashed; with `movable` it can be dragged and is found by its name. `beside` is a place on the other axis: a
    point there, which is not seen, keeps the limit in view."""
    from bokeh.models import Span

    wide = 3.0 if movable else 1.5
    line = Span(
        location=limit, dimension=dimension, line_color=LIMIT_COLOUR, line_dash="dashed", line_width=wide,
        editable=movable, name="limit" if movable else None, hover_line_width=wide + 2,
    )  # fmt: skip
    plot.add_layout(line)
    x, y = (limit, beside) if dimension == "height" else (beside, limit)
    plot.scatter([x], [y], alpha=0.0)
    return line


def without_outliers(axis_range: Any, values: Sequence[float | None]) -> bool:
    """Fit an axis to most of the values that it must show, and tell whether some are left out: those of more than
    OUTLIER times the median size. One estimate that diverged would make everything else one point."""
    known = np.array([value for value in values if value is not None and np.isfinite(value)], float)
    usual = OUTLIER * float(np.median(np.abs(known))) if len(known) else 0.0
    kept = known[np.abs(known) <= usual]
    if len(kept) == len(known) or usual == 0.0:
        return False
    room = 0.06 * float(np.ptp(kept)) or 1.0
    axis_range.start, axis_range.end = float(kept.min()) - room, float(kept.max()) + room
    return True


def diagonal(plot: Any, label: str, low: float, high: float) -> None:
    lines(plot, label, [low, high], [low, high], hue=LIMIT_COLOUR, dash="dashed", width=1.5)


def add_legend(plot: Any, label: str | None, hue: str, mark: str = "dot") -> None:
    """An entry of the legend, which the page shows as text below the figure: it wraps, and hides nothing."""
    if label is not None:
        plot.tags = [*plot.tags, {"label": label, "colour": hue, "mark": mark}]


def hover(plot: Any, drawn: Sequence[Any], rows: Mapping[str, str]) -> None:
    """What is shown under the pointer: a column of the source for each heading. Values are shown as text."""
    from bokeh.models import HoverTool

    plot.add_tools(HoverTool(renderers=list(drawn), tooltips=[(heading, column) for heading, column in rows.items()]))


def thinned(count: int, most: int) -> np.ndarray:
    """Evenly chosen indices, at most so many."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
