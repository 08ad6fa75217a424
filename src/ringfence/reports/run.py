"""A run as a table, a picture and a verdict in words.

Logged episodes stop, at the latest, at the log's horizon H; critics' values are over an infinite horizon. Beside logged
episodes a critic's value is therefore shown over H steps: times (1 - discount^H), as if it came at a steady pace.
"""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ringfence.data import Dataset, episode_table
from ringfence.files import atomic_write
from ringfence.limits import horizon_words, over_horizon
from ringfence.reports.pictures import mark_limit, without_box
from ringfence.training.record import Run
from ringfence.training.verdict import ALMOST_ALL, last_row

Row = dict[str, Any]


def print_run(run: Run, console: Console) -> None:
    """A line per member, then the verdict on each."""
    configuration = run.configuration
    discount, horizon = configuration.discount, configuration.horizon
    table = Table(title=f"{configuration.method}, {configuration.schedule.steps:,} steps", title_justify="left")
    evaluated = bool(run.evaluations)
    short = over_horizon(1.0, discount, horizon) <= ALMOST_ALL
    columns = ["seed", "limit", "expected cost, infinite horizon"]
    columns += (
        [f"expected {what}, {horizon} steps" for what in ("cost", "return")]
        if short
        else ["expected return, infinite horizon"]
    )
    columns += ["discounted return", "discounted cost", "return", "cost", "episodes over limit"] if evaluated else []
    for column in columns:
        table.add_column(column, justify="right")
    for member in run.members:
        trained, tested = last_row(run.metrics, member, "policy"), last_row(run.evaluations, member)
        part = over_horizon(1.0, discount, horizon) if short else 1.0
        cells = [str(member.seed), f"{member.limit:g}", _number(trained, "qc_start")]
        cells += [_number(trained, "qc_start", part)] if short else []
        cells += [_number(trained, "qr_start", part)]
        if evaluated:
            cells += [
                _number(tested, "discounted_return"),
                _spread(tested, "discounted_cost"),
                _spread(tested, "return"),
            ]
            cells += [_number(tested, "episode_cost"), f"{tested.get('share_over_limit', float('nan')):.0%}"]
        table.add_row(*cells)
    console.print(table)
    lengths = [row["length"] for row in run.evaluations if "length" in row]
    simulated = f"; the other columns are simulated episodes of up to {max(lengths):.0f} steps" if lengths else ""
    console.print(
        f"expected: the critics' discounted sums (at {discount:g}) over an infinite horizon; over the log's horizon of "
        f"{horizon} steps they are {horizon_words(discount, horizon)}{simulated}",
        highlight=False,
        soft_wrap=True,
    )
    for verdict in run.verdicts:
        prefix = f"seed {verdict.seed}, limit {verdict.limit:g}: " if len(run.members) > 1 else ""
        console.print(f"{prefix}{verdict.judgement}. {verdict.words}", highlight=False, soft_wrap=True)


def plot_run(run: Run, dataset: Dataset, path: Path) -> Path:
    """Return against cost with the limit drawn, all over the log's horizon: the log's episodes and what the critics expect
    of each policy. With a task, also return and cost over training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5 if run.evaluations else 5.2, 3.8), dpi=120, layout="constrained")
    panels = figure.subplots(1, 3 if run.evaluations else 1, squeeze=False)[0]
    _plot_beside_log(run, dataset, panels[-1])
    if run.evaluations:
        for panel, name in zip(panels, ("return", "discounted_cost"), strict=False):
            _plot_training(run, panel, name)
    for panel in panels:
        without_box(panel)
    with atomic_write(path) as temporary:
        figure.savefig(temporary)
    return path


def _plot_beside_log(run: Run, dataset: Dataset, axes: Any) -> None:
    discount, horizon = run.configuration.discount, run.configuration.horizon
    episodes = episode_table(dataset, discount)
    axes.scatter(
        episodes.discounted_costs, episodes.discounted_returns, s=8, color="0.6", linewidths=0, label="logged episodes"
    )
    share = over_horizon(1.0, discount, horizon)
    for i, member in enumerate(run.members):
        trained = last_row(run.metrics, member, "policy")
        if "qc_start" in trained:
            point = share * trained["qc_start"], share * trained["qr_start"]
            label = f"policy, seed {member.seed} (expected{_later(trained['qc_start'], share, member.limit)})"
            axes.scatter(*point, marker="*", s=130, color=f"C{i % 10}", label=label, zorder=3)
    for limit in sorted({member.limit for member in run.members}):
        mark_limit(axes, limit, f"limit {limit:g}")
    axes.set(
        xlabel=f"discounted cost (at {discount:g}) over {horizon} steps",
        ylabel=f"discounted return over {horizon} steps",
    )
    axes.legend(fontsize=7, frameon=False, loc="lower right")


def _later(cost: float, share: float, limit: float) -> str:
    """A star left of the limit whose sum over an infinite horizon, which the verdict goes by, is on the other side of it."""
    return f"; OUTSIDE over an infinite horizon: {cost:.3g}" if share * cost <= limit < cost else ""


def _plot_training(run: Run, axes: Any, name: str) -> None:
    """Mean and standard deviation of simulated episodes."""
    length = max(row["length"] for row in run.evaluations)
    for i, member in enumerate(run.members):
        rows = run.rows_of(member, "evaluations")
        steps, means = [row["step"] for row in rows], [row[name] for row in rows]
        spread = [row[f"{name}_std"] for row in rows]
        alone = len(steps) == 1  # a line and a band of one point would not be seen
        axes.plot(steps, means, color=f"C{i % 10}", marker="o" if alone else None)
        low = [m - s for m, s in zip(means, spread, strict=True)]
        high = [m + s for m, s in zip(means, spread, strict=True)]
        axes.fill_between(steps, low, high, color=f"C{i % 10}", alpha=0.2, linewidth=2 if alone else 0)
    if name == "discounted_cost":
        for limit in sorted({member.limit for member in run.members}):
            axes.axhline(limit, color="black", linestyle="--", linewidth=1)
    title = name.replace("_", " ")
    axes.set(xlabel="step", title=f"{title}, simulated episodes of up to {length:.0f} steps")
    axes.title.set_fontsize(8)


def _number(row: Row, name: str, part: float = 1.0) -> str:
    return f"{part * row[name]:.4g}" if name in row else "-"


def _spread(row: Row, name: str) -> str:
    return f"{row[name]:.4g} ± {row[f'{name}_std']:.2g}" if name in row else "-"
