"""Figures of an experiment, for print: vector and PNG, colours that colour-blind readers can tell apart (Okabe and Ito),
the limit dashed, a label at the end of each line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ringfence.files import atomic_write
from ringfence.limits import Limit
from ringfence.reports.labels import Room, along, around, label_ends
from ringfence.reports.results import Gathered, Group, spread

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
# Where two methods do the same, the later line is dashed and its marks are smaller, so that both are seen.
MARKERS = {"cpq": "s", "cpq-paper": "X", "bc-safe": "o", "bcq-lag": "^", "bear-lag": "v", "cbpl": "D", "bc": "P"}
DASHED = {"cpq-paper", "bcq-lag"}
DASHES = (0, (4, 2))
STYLE: Any = {
    "font.size": 8,
    "text.parse_math": False,  # labels are the user's; a dollar is a dollar
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
                for method in drawing_order(gathered):
                    for group in gathered.of(log, method):
                        steps, mean, std = group.curve(measure)
                        if len(steps):
                            look = look_of(gathered, method)
                            axes.plot(steps, mean, linewidth=1.3, **look)
                            axes.fill_between(
                                steps, mean - std, mean + std, color=look["color"], alpha=0.15, linewidth=0
                            )
                            ends.append((steps[-1], mean[-1], named(gathered, method), look["color"]))
                notes = reference_lines(gathered, log, axes, measure)
                if measure == "discounted_cost":
                    for limit in gathered.limits(log):
                        axes.axhline(limit, color="black", linestyle="--", linewidth=1)
                        notes.append((limit, f"limit {limit:g}", "black"))
                axes.margins(x=0.02, y=0.08)
                right = axes.get_xlim()[1]
                label_ends(axes, ends + [(right, height, text, colour) for height, text, colour in notes])
                axes.set_ylabel(label if column == 0 else "")
            panels[0, column].set_title(log)
            panels[1, column].set_xlabel(f"training step\n{simulated(gathered, log)}")
        figure.supxlabel(f"{spread_of(gathered, 'bands')}; dotted: behaviours as they wrote the log", fontsize=7)
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
                for method in drawing_order(gathered):
                    groups = sorted((g for g in gathered.of(log, method) if g.tested), key=lambda group: group.limit)
                    if groups:
                        at = np.array([group.limit for group in groups])
                        values = [group.last(measure) for group in groups]
                        mean, std = np.array([v.mean() for v in values]), np.array([spread(v) for v in values])
                        look = look_of(gathered, method)
                        axes.errorbar(at, mean, std, linewidth=1.2, capsize=2, **look)
                        ends.append((at[-1], mean[-1], named(gathered, method), look["color"]))
                stars = ends_of_frontier(gathered, log, axes, measure)
                if measure != "return":
                    allowed = limits if measure == "discounted_cost" else per_step(gathered, log, limits)
                    axes.plot(limits, allowed, color="black", linestyle="--", linewidth=1)
                axes.margins(0.1)
                room = Room(axes)
                for text, x, y in stars:
                    room.write(text, around(*room.share(x, y)), "black")
                if measure != "return":
                    first, last = (room.share(limits[end], allowed[end]) for end in (0, -1))
                    room.write(
                        "limit" if measure == "discounted_cost" else pace_words(gathered, log), along(first, last)
                    )
                label_ends(axes, ends)
                axes.set_ylabel(label if column == 0 else "")
            panels[0, column].set_title(log)
            panels[2, column].set_xlabel(f"limit l (discounted)\n{simulated(gathered, log)}")
        stars_and_line = "stars: behaviours without noise; dotted: one of the two, drawn for each episode"
        figure.supxlabel(f"{spread_of(gathered, 'bars')}; {stars_and_line}", fontsize=7)
        return save(figure, path)


def spread_of(gathered: Gathered, drawn: str) -> str:
    """What the lines are, and what is drawn about them."""
    several = any(len(group.results) > 1 for group in gathered.groups)
    return f"lines: means over seeds; {drawn}: standard deviations over seeds" if several else "one seed"


def drawing_order(gathered: Gathered) -> list[str]:
    """Dashed lines last: what they cover shows in the gaps."""
    return sorted(gathered.labels, key=lambda label: label in DASHED)


def look_of(gathered: Gathered, label: str) -> dict[str, Any]:
    """Colour, line and marks of a method."""
    order = drawing_order(gathered).index(label) / max(1, len(gathered.labels) - 1)
    colour, marker = colour_and_marker(gathered, label)
    return {
        "color": colour,
        "linestyle": DASHES if label in DASHED else "-",
        "marker": marker,
        "markersize": 5.5 - 2 * order,
        "markeredgecolor": "white",
        "markeredgewidth": 0.4,
    }


def simulated(gathered: Gathered, log: str) -> str:
    return f"(simulated episodes of up to {gathered.longest_episode(log)} steps)"


def per_step(gathered: Gathered, log: str, limits: np.ndarray) -> np.ndarray:
    """The limits as costs per step over an episode of full length."""
    discount, horizon = discount_and_horizon(gathered, log)
    return np.array([Limit(float(limit), discount, horizon).per_step for limit in limits])


def pace_words(gathered: Gathered, log: str) -> str:
    """What `per_step` is called: over long episodes the pace is as good as that without an end."""
    discount, horizon = discount_and_horizon(gathered, log)
    return f"limit's pace{' l (1 - γ)' if discount**horizon < 0.005 else f' over {horizon} steps'}"


def discount_and_horizon(gathered: Gathered, log: str) -> tuple[float, int]:
    """The discount of a log's policies, and the steps of an episode of full length."""
    group: Group = next(group for group in gathered.groups if group.log == log)
    horizon = gathered.references.get(log, {}).get("log", {}).get("horizon") or gathered.longest_episode(log)
    return group.results[0]["cell"]["hyperparameters"]["discount"], horizon


def reference_lines(gathered: Gathered, log: str, axes: Any, measure: str) -> list[tuple[float, str, str]]:
    """Both behaviours as they wrote the log, dotted: where their names belong, and in which colour."""
    notes = []
    for which in ("safe", "unsafe"):
        if behaviour := gathered.behaviour(log, which, "sampled"):
            axes.axhline(behaviour[measure], color="0.45", linestyle=":", linewidth=1)
            notes.append((behaviour[measure], f"{which} behaviour", "0.35"))
    return notes


def ends_of_frontier(gathered: Gathered, log: str, axes: Any, measure: str) -> list[tuple[str, float, float]]:
    """Both behaviours without noise, at the limits that they would just keep: their names and places. The dotted line
    between their returns is what drawing one of the two for each episode earns, with its expected cost at the limit."""
    stars = []
    for which in ("safe", "unsafe"):
        if behaviour := gathered.behaviour(log, which, "noise-free"):
            place = behaviour["discounted_cost"], behaviour[measure]
            axes.plot(*place, "*", color="black", markersize=8, zorder=3)
            stars.append((which, *place))
    if measure == "return" and len(stars) == 2:
        axes.plot(*zip(*(place for _, *place in stars), strict=True), color="0.45", linestyle=":", linewidth=1)
    return stars


def colour_and_marker(gathered: Gathered, label: str) -> tuple[str, str]:
    """A method's own; others take the pairs that are left, in order: first those of methods that are not there, then each
    colour with the marker of another method. All 49 pairs are used before one comes again."""
    if label in COLOURS:
        return COLOURS[label], MARKERS[label]
    names = list(COLOURS)
    pairs = [
        (COLOURS[name], MARKERS[names[(place + shift) % len(names)]])
        for shift in range(len(names))
        for place, name in enumerate(names)
        if shift or name not in gathered.labels
    ]
    others = [name for name in gathered.labels if name not in COLOURS]
    return pairs[others.index(label) % len(pairs)]


def named(gathered: Gathered, label: str) -> str:
    """The name of a method that runs as it is; one with settings of the user's own keeps the user's label."""
    variants = [r["cell"]["variant"] for group in gathered.groups if group.label == label for r in group.results]
    return NAMES.get(label, label) if all(is_plain(variant, label) for variant in variants) else label


def is_plain(variant: Mapping[str, Any], label: str) -> bool:
    """Whether a variant is the method that its label names, with settings of its own for the networks' width at most."""
    method, preset = variant.get("method", label), variant.get("preset", "default")
    name = method if preset == "default" else f"{method}-{preset}"
    return name == label and set(variant.get("settings", {})) <= {"hidden"}


class styled:
    """A figure of so many rows and columns in the style of all figures."""

    def __init__(self, rows: int, columns: int):
        self.rows, self.columns = rows, columns

    def __enter__(self) -> tuple[Any, np.ndarray]:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        self.style = mpl.rc_context(STYLE)
        self.style.__enter__()
        figure = Figure(figsize=(3.6 * self.columns, 2.5 * self.rows), layout="constrained")
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
