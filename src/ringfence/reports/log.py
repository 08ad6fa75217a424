"""What is in a log: tables in the terminal, and one figure."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringfence.data.dataset import Dataset
from ringfence.data.episodes import EpisodeTable, episode_table
from ringfence.data.summary import EpisodeSummary, Spread, Summary
from ringfence.errors import WouldOverwrite
from ringfence.files import atomic_write
from ringfence.limits import DISCOUNT, Limit
from ringfence.reports.pictures import literal

PLOTTED_EPISODES = 20_000  # more points than this only make the picture slower
SHOWN_COLUMNS = 40  # of observations, and of actions
# Okabe and Ito's colours, which people with colour-blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")


def print_summary(summary: Summary, console: Console) -> None:
    console.print(_contents(summary))
    console.print(_episodes(summary))
    if summary.end_levels:
        console.print(escape(summary.ends_in_words), soft_wrap=True)
    if summary.sources:
        console.print(_groups("By source", summary.sources))
    if summary.limit is not None:
        limit = summary.limit
        console.print(f"[bold]Limit[/bold] {escape(limit.in_words)}")
        episodes, rows = limit.share_of_episodes_inside, limit.share_of_rows_inside
        longest = f"over their logged steps, {summary.all_episodes.lengths.max:.0f} at most"
        console.print(f"  kept by {limit.episodes_inside} of {summary.episodes} episodes ({episodes:.1%}), {longest}")
        console.print(f"  kept from {rows:.1%} of the rows on, to the end of their episodes")
        groups = tuple(group for group in (limit.inside, limit.outside) if group is not None)
        console.print(_groups("Inside and outside the limit", groups))
    for note in summary.notes:
        console.print(f"[cyan]note[/cyan] {escape(note)}")
    for warning in summary.warnings:
        console.print(f"[yellow]warning[/yellow] {escape(warning)}")


def plot_summary(
    dataset: Dataset,
    path: str | Path,
    discount: float = DISCOUNT,
    limit: Limit | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Each episode's return against its discounted cost, with the limit as a dashed line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    if path.exists() and not overwrite:
        raise WouldOverwrite(f"{path} exists; choose another name or ask for it to be overwritten")
    table = episode_table(dataset, discount)
    figure = Figure(figsize=(7.2, 4.5), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shown = np.unique(np.linspace(0, len(table) - 1, PLOTTED_EPISODES).astype(int))
    for name, colour, chosen in _colour_groups(dataset, table):
        rows = shown[chosen[shown]]
        axes.scatter(
            table.discounted_costs[rows],
            table.returns[rows],
            s=float(np.clip(6000 / len(shown), 5, 34)),
            alpha=float(np.clip(300 / len(shown), 0.25, 0.75)),
            color=colour,
            linewidths=0,
            label=f"{literal(name)} ({chosen.sum():,})",
        )
    axes.margins(0.04)
    if limit is not None:
        left, right = axes.get_xlim()
        right = max(right, 1.05 * limit.discounted)
        axes.axvspan(limit.discounted, right, color="#B22222", alpha=0.05, linewidth=0)
        axes.axvline(
            limit.discounted, color="#B22222", linestyle="--", linewidth=1.4, label=f"limit {limit.discounted:.4g}"
        )
        axes.set_xlim(left, right)
    axes.set_title(
        f"{literal(dataset.name)}: what each episode earned and cost", loc="left", fontsize=11, fontweight="bold"
    )
    axes.set_xlabel(
        f"discounted cost of the episode, {dataset.horizon} steps at most (cost units, discount {discount:g})"
    )
    axes.set_ylabel("return of the episode (sum of rewards)")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(frameon=False, fontsize=8, loc="best")
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
    with atomic_write(path) as temporary:
        figure.savefig(temporary)


def _colour_groups(dataset: Dataset, table: EpisodeTable) -> list[tuple[str, str, np.ndarray]]:
    if table.source is None:
        return [("episodes", COLOURS[0], np.ones(len(table), np.bool_))]
    groups = [(name, table.source == code) for code, name in enumerate(dataset.source_names)]
    return [
        (name, COLOURS[index % len(COLOURS)], chosen) for index, (name, chosen) in enumerate(groups) if chosen.any()
    ]


def _contents(summary: Summary) -> Table:
    """The range of every column: one range for all observations would say nothing where units differ."""
    table = Table(title=f"{escape(summary.name)}: {summary.rows:,} rows", title_justify="left")
    for heading in ("column", "name", *(["unit"] if summary.units else []), "least", "greatest"):
        table.add_column(heading, justify="right" if heading in ("least", "greatest") else "left")
    for column, name, low, high in _column_ranges(summary):
        unit = [escape(summary.units.get(name or column, ""))] if summary.units else []
        table.add_row(column, escape(name), *unit, low, high)
    return table


def _column_ranges(summary: Summary) -> Iterator[tuple[str, str, str, str]]:
    """Column, name, least and greatest value; of very many columns the first ones."""
    named = {"observations": summary.observation_names, "actions": summary.action_names}
    for column, values in summary.ranges.items():
        names = named.get(column, ("",))
        for name, low, high in list(zip(names, values.low, values.high, strict=True))[:SHOWN_COLUMNS]:
            yield column, name, f"{low:.4g}", f"{high:.4g}"
        if len(names) > SHOWN_COLUMNS:
            yield column, f"and {len(names) - SHOWN_COLUMNS} more (see --json)", "", ""
    for name, low, high in zip(summary.action_names, summary.action_low, summary.action_high, strict=True):
        yield "action bounds", name, f"{low:.4g}", f"{high:.4g}"


def _episodes(summary: Summary) -> Table:
    ends = f"{summary.terminated} terminated, {summary.truncated} truncated, {summary.unfinished} unfinished"
    table = Table(title=f"{summary.episodes:,} episodes: {ends}", title_justify="left")
    table.add_column("per episode")
    for heading in ("mean", "std", "min", "25 %", "median", "75 %", "max"):
        table.add_column(heading, justify="right")
    everything = summary.all_episodes
    at = f"at {summary.discount:g}"
    rows: dict[str, Spread] = {
        "steps": everything.lengths,
        "return": everything.returns,
        f"return, discounted {at}": everything.discounted_returns,
        "cost": everything.costs,
        f"cost, discounted {at}": everything.discounted_costs,
    }
    for name, spread in rows.items():
        table.add_row(name, *(f"{value:.4g}" for value in vars(spread).values()))
    return table


def _groups(title: str, groups: tuple[EpisodeSummary, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("episodes")
    for heading in ("number", "steps", "return", "cost", "cost, discounted"):
        table.add_column(heading, justify="right")
    for group in groups:
        spreads = (group.lengths, group.returns, group.costs, group.discounted_costs)
        table.add_row(
            escape(group.name), str(group.episodes), *(f"{item.mean:.4g} ± {item.std:.3g}" for item in spreads)
        )
    return table
