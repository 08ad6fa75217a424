"""The page of a sweep or of several runs: what to choose, everything in a table, return against cost, limits."""

from typing import Any

import numpy as np

from ringfence.reports.html import plots
from ringfence.reports.html.compare_numbers import Candidate, Comparison, GroupMeans
from ringfence.reports.html.parts import (
    Cell,
    Command,
    Headline,
    Notice,
    Page,
    Part,
    Plot,
    Plots,
    Section,
    Table,
    Words,
    counted,
    listed,
    number,
    row,
    share,
    short,
)
from ringfence.reports.html.run_page import TONES


def compare_page(found: Comparison) -> Page:
    sections = [
        Section("Every policy", (_table(found), *_missing(found))),
        Section("Return against cost", _frontiers(found)),
        Section("What the limit does", _limits(found)),
        Section("Which one to take", _choices(found)),
    ]
    if found.command:
        sections.append(
            Section(
                "What made it", (Words("The command that goes on with it, or makes it again:"), Command(found.command))
            )
        )
    methods = list(dict.fromkeys(c.method for c in found.candidates))
    limits = sorted({c.limit for c in found.candidates})
    policies = counted(len(found.candidates), "policy", "policies")
    lead = (
        f"{policies} of {listed(methods)}, on {listed(_logs(found))}, with {counted(len(limits), 'limit')} "
        f"({listed([f'{limit:g}' for limit in limits])}). Numbers are by {found.evidence}: {found.measure}."
    )
    return Page(found.kind, found.title, lead, tuple(sections), _headlines(found))


def _headlines(found: Comparison) -> tuple[Headline, ...]:
    if not found.choices:
        return (
            Headline(
                "Nothing is chosen", "unsure", f"ringfence choose cannot say which one to take: {found.why_no_choice}."
            ),
        )
    return tuple(
        Headline(
            f"At a limit of {c.limit:g} take {c.name}" if c.name else f"At a limit of {c.limit:g} none can be taken",
            "good" if c.name else "bad",
            f"{c.reason}.",
        )
        for c in found.choices
    )


def _table(found: Comparison) -> Table:
    chosen = {(choice.limit, choice.name) for choice in found.choices}
    with_log, judged = len(_logs(found)) > 1, any(c.judged for c in found.candidates)
    headings = (
        *(("log",) if with_log else ()), "method", "limit", "seed", "chosen",
        *(("by episodes set aside",) if judged else ()), "verdict of training", "return", "interval", "discounted cost",
        "interval", "cost over limit", "episodes over", "steps", "seconds", "policy",
    )  # fmt: skip
    rows = tuple(_row(c, any(c.name == name for _, name in chosen), with_log, judged) for c in found.candidates)
    caption = (
        f"By {found.evidence} ({found.measure}). A click on a heading sorts. Intervals: 95 % of the mean over episodes in "
        "simulation; the one-sided bounds where episodes were set aside. Verdict of training: by "
        "simulation, or by the critic's sum over an infinite horizon."
    )
    return Table(headings, rows, caption=caption, tools=True, name="policies")


def _row(c: Candidate, chosen: bool, with_log: bool, judged: bool) -> tuple[Cell, ...]:
    over: Cell = Cell("")
    if c.cost is not None and c.limit > 0:
        over = Cell(short(c.cost / c.limit, 3), c.cost / c.limit, "good" if c.cost <= c.limit else "bad")
    return (
        *(row(c.log) if with_log else ()),
        *(Cell(c.method), number(c.limit), number(c.seed), Cell("chosen", None, "good") if chosen else Cell("")),
        *((Cell(c.judged, None, TONES.get(c.judged, "")),) if judged else ()),
        *(Cell(c.verdict, None, TONES.get(c.verdict, "")), number(c.returned), _interval(c.return_interval)),
        *(number(c.cost), _interval(c.cost_interval), over, share(c.over_limit)),
        *(Cell(f"{c.steps:,}", c.steps), number(c.seconds), Cell(c.name)),
    )


def _interval(bounds: tuple[float, float] | None) -> Cell:
    return Cell("") if bounds is None else Cell(f"{short(bounds[0])} to {short(bounds[1])}", bounds[1] - bounds[0])


def _missing(found: Comparison) -> tuple[Part, ...]:
    if not found.missing:
        return ()
    text = f"{counted(len(found.missing), 'cell')} without a result: {listed(found.missing)}."
    return (Notice(text, "run the same command again: it goes on with what is missing"),)


def _logs(found: Comparison) -> list[str]:
    return list(dict.fromkeys(c.log for c in found.candidates))


def _hues(found: Comparison) -> dict[str, str]:
    return {name: plots.colour(i) for i, name in enumerate(dict.fromkeys(c.method for c in found.candidates))}


def _frontiers(found: Comparison) -> tuple[Part, ...]:
    known = list(dict.fromkeys(g.log for g in found.groups))
    if not known:
        return (Words("No policy has an estimate of return and cost: there was no simulation, and no cost critic."),)
    return (Plots(tuple(_frontier(found, log) for log in known)),)


def _frontier(found: Comparison, log: str) -> Plot:
    """The mean of each method's seeds at each limit with its interval; each seed as a small point."""
    plot = plots.blank(*found.axes)
    groups, drawn = [g for g in found.groups if g.log == log], []
    for method, hue in _hues(found).items():
        mine = [g for g in groups if g.method == method]
        if not mine:
            continue
        seeds = [c for g in mine for c in g.seeds]
        plots.dots(plot, None, [c.cost for c in seeds], [c.returned for c in seeds], hue=hue, size=5, alpha=0.4)
        _whiskers(plot, mine, hue)
        labels: dict[str, Any] = {
            "name": np.array([f"{method}, limit {g.limit:g}" for g in mine]),
            "seeds": np.array([len(g.seeds) for g in mine]),
        }
        points = [g.cost for g in mine], [g.returned for g in mine]
        drawn.append(plots.dots(plot, method, *points, hue=hue, size=12, marker="diamond", alpha=1, **labels))
    plots.hover(plot, drawn, {"policy": "@name", "cost": "@x", "return": "@y", "seeds": "@seeds"})
    for limit in sorted({g.limit for g in groups}):
        plots.limit_line(plot, limit, beside=float(np.mean([g.returned for g in groups])))
    plots.add_legend(plot, "limits", plots.LIMIT_COLOUR, "dashed")
    caption = "Diamonds: means over seeds with their 95 % intervals (of a single seed its own). Small points: seeds."
    costs = [x for g in groups for x in (g.cost, g.limit, *(g.cost_interval or ()))]
    returns = [x for g in groups for x in (g.returned, *(g.return_interval or ()))]
    left_out = [plots.without_outliers(plot.x_range, costs), plots.without_outliers(plot.y_range, returns)]
    return Plot(plot, log, caption + (plots.OUTSIDE if any(left_out) else ""))


def _whiskers(plot: Any, groups: list[GroupMeans], hue: str) -> None:
    for g in groups:
        bounds = {"x_bounds": g.cost_interval, "y_bounds": g.return_interval}
        known: dict[str, Any] = {
            name: [np.array([value]) for value in pair] for name, pair in bounds.items() if pair is not None
        }
        plots.whiskers(plot, [g.cost], [g.returned], **known, hue=hue)


def _limits(found: Comparison) -> tuple[Part, ...]:
    """Cost and return against the limit, where a method was trained for several."""
    figures = []
    for log in _logs(found):
        groups = [g for g in found.groups if g.log == log]
        if len({g.limit for g in groups}) < 2:
            continue
        for attribute, interval, label in (
            ("cost", "cost_interval", found.axes[0]),
            ("returned", "return_interval", found.axes[1]),
        ):
            plot = plots.blank("limit", label)
            for method, hue in _hues(found).items():
                mine = sorted((g for g in groups if g.method == method), key=lambda g: g.limit)
                x, y = [g.limit for g in mine], [getattr(g, attribute) for g in mine]
                if mine:
                    plots.lines(plot, method, x, y, hue=hue)
                    plots.dots(plot, None, x, y, hue=hue, size=7, alpha=1)
                known = [g for g in mine if getattr(g, interval) is not None]
                for g in known:
                    ends = [np.array([value]) for value in getattr(g, interval)]
                    plots.whiskers(plot, [g.limit], [getattr(g, attribute)], y_bounds=ends, hue=hue)
            if attribute == "cost":
                plots.diagonal(plot, "cost = limit", min(g.limit for g in groups), max(g.limit for g in groups))
            figures.append(Plot(plot, f"{log}: {label} against the limit", "Means over seeds with 95 % intervals."))
    if not figures:
        return (
            Words("All policies of a log have one limit. With several the page shows how cost and return follow it."),
        )
    return (Plots(tuple(figures)),)


def _choices(found: Comparison) -> tuple[Part, ...]:
    if not found.choices:
        return (Notice(f"ringfence choose cannot choose here: {found.why_no_choice}."),)
    parts: list[Part] = [
        Words(
            "As ringfence choose does it: the greatest lower bound of return among the policies whose upper bound of cost "
            "is inside the limit, confirmed on episodes that had no part in the choice."
        )
    ]
    for choice in found.choices:
        rows = tuple(row(name, sentence) for name, sentence in choice.sentences.items())
        title = f"At a limit of {choice.limit:g}: {choice.name or 'none'}"
        parts += [
            Table(
                ("candidate, best first", "what the log says of it"),
                rows,
                title,
                f"{choice.reason}.",
                name=f"choice-{choice.limit:g}",
            )
        ]
    return tuple(parts)
