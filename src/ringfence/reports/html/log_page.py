"""The page of a log: what is in it, what it costs, what it covers, what to watch out for."""

from typing import Any

import numpy as np

from ringfence.data import Dataset
from ringfence.data.summary import EpisodeSummary, Summary
from ringfence.limits import DISCOUNT, Limit
from ringfence.reports.html import plots
from ringfence.reports.html.log_numbers import MOST_COLUMNS, Column, LogNumbers, log_numbers
from ringfence.reports.html.parts import (
    Cell,
    Facts,
    LimitTool,
    Notice,
    Page,
    Plot,
    Plots,
    Section,
    Table,
    Words,
    counted,
    listed,
    number,
    percent,
    row,
    share,
    short,
)


def log_page(log: Dataset, discount: float = DISCOUNT, limit: Limit | None = None) -> Page:
    """Without a limit the page starts with the median cost of an episode."""
    found = log_numbers(log, discount, limit)
    start = float(np.median(found.costs)) if limit is None else limit.discounted
    steady = Limit(start, discount, float(found.horizon))
    episodes = {
        "costs": found.costs.tolist(),
        "returns": found.returns.tolist(),
        "discounted_steps": steady.discounted_steps,
        "horizon": found.horizon,
    }
    sections = (
        Section("What it earned and what it cost", (*_limit_parts(found, steady), *_by_source(found))),
        Section("What to watch out for", _warnings(found.summary)),
        Section("Columns", _columns(found)),
        Section("What it covers", _coverage(found)),
        Section("The log itself", (_facts(found.summary),)),
    )
    return Page("log", found.summary.name, in_words(found), sections, data={"episodes": episodes})


def in_words(found: LogNumbers) -> str:
    summary = found.summary
    ends = [
        f"{count:,} {word}" for count, word in
        ((summary.terminated, "ended for good (terminated)"), (summary.truncated, "were cut off (truncated)"),
         (summary.unfinished, "did not end")) if count
    ]  # fmt: skip
    wrote = f", written by {listed(found.source_names)}" if summary.sources else ""
    everything = summary.all_episodes
    ended_at = f"{summary.ends_in_words}. " if summary.end_levels else ""
    return (
        f"{counted(summary.rows, 'step')} in {counted(summary.episodes, 'episode')} of at most {found.horizon:,} steps"
        f"{wrote}. At each step the controller saw {counted(summary.observation_size, 'value')} "
        f"({listed(summary.observation_names)}) and chose {counted(summary.action_size, 'action')} "
        f"({listed(summary.action_names)}). Of the episodes {listed(ends)}. {ended_at}"
        f"An episode earned {short(everything.returns.mean)} and cost {short(everything.costs.mean)} on average."
    )


def limit_words(costs: np.ndarray, returns: np.ndarray, limit: Limit) -> str:
    """As the page's script says it when the limit is moved."""
    inside = costs <= limit.discounted
    earned = [f"they earn {short(float(returns[inside].mean()))} on average"] if inside.any() else []
    earned += [f"the others {short(float(returns[~inside].mean()))}"] if not inside.all() else []
    return (
        f"{inside.sum()} of {len(costs)} episodes ({percent(float(inside.mean()))}) are inside a limit of "
        f"{short(limit.discounted)}: {', '.join(earned)}. At a steady pace that is {short(limit.per_step)} per step, "
        f"{short(limit.per_episode)} per episode of {limit.horizon:.0f} steps."
    )


def _limit_parts(found: LogNumbers, limit: Limit) -> tuple[LimitTool, Plots, *tuple[Words, ...]]:
    summary = found.summary
    unit_of = {name: f" [{unit}]" if (unit := summary.units.get(name)) else "" for name in ("rewards", "costs")}
    plot = plots.blank(
        f"discounted cost of the episode{unit_of['costs']} (at {summary.discount:g})",
        f"return of the episode{unit_of['rewards']}",
    )
    drawn = []
    for code, name in enumerate(found.source_names):
        mine = np.flatnonzero(found.codes == code)
        sizes: dict[str, Any] = {"length": found.lengths[mine], "name": np.array([name] * len(mine))}
        size = float(np.clip(400 / np.sqrt(len(found.costs)), 3, 9))
        drawn.append(
            plots.dots(plot, f"{name} ({len(mine):,})", found.costs[mine], found.returns[mine], hue=plots.colour(code),
                       size=size, **sizes)
        )  # fmt: skip
    plots.hover(plot, drawn, {"source": "@name", "cost": "@x", "return": "@y", "steps": "@length"})
    plots.limit_line(plot, limit.discounted, movable=True, beside=float(found.returns.mean()))
    greatest = 1.1 * max(float(found.costs.max()), limit.discounted, 1e-9)
    tool = LimitTool(0.0, greatest, limit.discounted, limit_words(found.costs, found.returns, limit))
    caption = "Each point is an episode. Drag the dashed limit, here or above: left of it is inside."
    thinned = found.summary.episodes > len(found.costs)
    note = (
        (Words(f"Shown: an even sample of {len(found.costs):,} of {summary.episodes:,} episodes."),) if thinned else ()
    )
    return tool, Plots((Plot(plot, "Return against cost", caption),)), *note


def _by_source(found: LogNumbers) -> tuple[Table, ...]:
    summary = found.summary
    groups = (*summary.sources, summary.all_episodes) if summary.sources else (summary.all_episodes,)
    headings = ["episodes of", "number", "steps", "return", "cost", f"cost, discounted at {summary.discount:g}"]
    rows = [_group(group) for group in groups]
    if summary.limit is not None:
        rows += [_group(group) for group in (summary.limit.inside, summary.limit.outside) if group is not None]
    return (
        Table(
            tuple(headings), tuple(rows), "Who wrote it", "Means over episodes ± standard deviations.", name="sources"
        ),
    )


def _group(group: EpisodeSummary) -> tuple[Cell, ...]:
    spreads = (group.lengths, group.returns, group.costs, group.discounted_costs)
    cells = [Cell(f"{short(s.mean)} ± {short(s.std, 3)}", s.mean) for s in spreads]
    return (*row(group.name), number(group.episodes), *cells)


def _warnings(summary: Summary) -> tuple[Notice | Words, ...]:
    found: list[Notice | Words] = [
        Notice(text, advice) for text, advice in zip(summary.warnings, summary.advice, strict=True)
    ]
    if not found:
        found.append(Words("Nothing was found that would keep a policy from being learned."))
    return (*found, *(Words(f"Note: {note}.") for note in summary.notes))


def _columns(found: LogNumbers) -> tuple[Table | Plots | Words, ...]:
    headings = ("column", "unit", "what it is", "least", "5 %", "median", "95 %", "greatest")
    rows = tuple(row(c.name, c.unit, c.role, *c.quantiles) for c in found.columns)
    observed = [c for c in found.columns if c.role == "observation"]
    drawn = observed[:MOST_COLUMNS] + [c for c in found.columns if c.role != "observation"][: MOST_COLUMNS + 2]
    left = len(found.columns) - len(drawn)
    note = (Words(f"Histograms of the first columns; {left} more are in the table."),) if left else ()
    figures = tuple(Plot(_histogram(c, found.source_names), c.name + _unit(c)) for c in drawn)
    return (
        Table(headings, rows, tools=len(rows) > 12, name="columns"),
        *note,
        Plots(figures, small=True),
        _legend(found),
    )


def _legend(found: LogNumbers) -> Words:
    if len(found.source_names) == 1:
        return Words("Heights are shares of the rows.")
    return Words("Heights are shares of each source's rows; colours as in the first figure.")


def _histogram(column: Column, names: tuple[str, ...]) -> object:
    plot = plots.small("", "")
    plot.y_range.start = 0
    plot.yaxis.visible = False
    for code, heights in enumerate(column.shares):
        if len(names) == 1:
            plots.bars(plot, column.edges, heights, hue=plots.colour(code))
        else:
            plots.steps(plot, column.edges, heights, hue=plots.colour(code))
    return plot


def _coverage(found: LogNumbers) -> tuple[Words | Plots | Table, ...]:
    sentences = []
    if found.open_share is not None:
        sentences.append(
            f"In the same state the logged actions still vary: {percent(found.open_share)} of their variance is not a "
            "function of the state. Near 0 % the log shows no alternatives; more gives a policy more to choose from."
        )
    if found.mixed is not None:
        sentences.append(
            f"The sources were in the same states {percent(found.mixed)} as often as if their states had been drawn at "
            "random. Near 0 % each kept to states of its own, and little is known of what one would have done where "
            "the other was."
        )
    plot = plots.blank("first direction", "second direction", height=320)
    for code, name in enumerate(found.source_names):
        mine = found.map.points[found.map.codes == code]
        plots.dots(plot, name, mine[:, 0], mine[:, 1], hue=plots.colour(code), size=4, alpha=0.4)
    right, up = found.map.axes
    caption = (
        f"A sample of states, in the plane that shows most of their variation ({percent(found.map.explained)} of it), in "
        f"standard deviations. To the right: {right}. Upwards: {up}."
    )
    rows = tuple((*row(a.name, a.low, a.high), share(a.used), share(a.at_bounds)) for a in found.actions)
    headings = ("action", "least allowed", "greatest allowed", "range used (5 % to 95 %)", "rows at a bound")
    return (
        *(Words(text) for text in sentences),
        Plots((Plot(plot, "Where the log has been", caption),)),
        Table(headings, rows, "How much of each action's range was tried", name="actions"),
    )


def _facts(summary: Summary) -> Facts:
    stated = {name: str(value) for name, value in summary.metadata.items() if isinstance(value, str | int | float)}
    pairs = [("fingerprint", summary.fingerprint), ("discount of this page", f"{summary.discount:g}")]
    return Facts((*pairs, *((f"in the file: {name}", value) for name, value in stated.items())))


def _unit(column: Column) -> str:
    return f" [{column.unit}]" if column.unit and f"[{column.unit}]" not in column.name else ""
