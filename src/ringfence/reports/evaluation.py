"""An evaluation as a table and a picture."""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from ringfence.evaluation.result import Evaluation
from ringfence.evaluation.statistics import bootstrap_interval
from ringfence.files import atomic_write
from ringfence.reports.pictures import mark_limit, without_box


def print_evaluation(evaluation: Evaluation, console: Console | None = None) -> None:
    """A line per measure, and how many episodes are over the limit."""
    how = "deterministic" if evaluation.deterministic else "sampled"
    count, longest = len(evaluation.returns), int(evaluation.lengths.max())
    title = f"{evaluation.task}, {count} episodes of up to {longest} steps, {how} policy"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in ("mean", "std", "95 % of mean", "least", "most"):
        table.add_column(column, justify="right")
    for name, values in evaluation.measures().items():
        low, high = bootstrap_interval(values)
        cells = (np.mean(values), np.std(values), None, np.min(values), np.max(values))
        table.add_row(name, *(f"{low:.1f} to {high:.1f}" if c is None else f"{c:.1f}" for c in cells))
    console = console or Console()
    console.print(table)
    if evaluation.limit is not None:
        share = evaluation.share_over_limit or 0.0
        console.print(
            f"over the limit of {evaluation.limit:g} (discounted at {evaluation.discount:g}): {share:.0%} of episodes"
        )


def plot_evaluation(evaluation: Evaluation, path: str | Path) -> Path:
    """Return against discounted cost, a dot per episode, the limit drawn."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.scatter(evaluation.discounted_costs, evaluation.returns, s=18, alpha=0.7, linewidths=0)
    if evaluation.limit is not None:
        mark_limit(axes, evaluation.limit, f"limit {evaluation.limit:g}")
    longest = int(evaluation.lengths.max())
    axes.set(
        xlabel=f"discounted cost (at {evaluation.discount:g}) over up to {longest} steps",
        ylabel="return",
        title=evaluation.task,
    )
    without_box(axes)
    with atomic_write(path) as temporary:
        figure.savefig(temporary)
    return Path(path)
