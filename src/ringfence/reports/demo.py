"""The demonstration's table, sentence and picture. Everything in them is an episode of the task, of the same length."""

from pathlib import Path

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.table import Table

from ringfence.evaluation import Evaluation
from ringfence.files import atomic_write
from ringfence.reports.pictures import mark_limit, without_box

OURS, PACED, CLONE = "CPQ", "CPQ, paced", "cloning what is inside"

Tested = list[tuple[str, float | None, Evaluation]]  # the policy, the limit it was trained for if any, its episodes


def print_comparison(tested: Tested, console: Console) -> None:
    first = tested[0][2]
    table = Table(
        title=f"{first.task}: means of {len(first.returns)} episodes of up to {first.lengths.max()} steps",
        title_justify="left",
    )
    for column in ("", "limit", "return", "discounted cost", "cost per step", "episodes over the limit"):
        table.add_column(column, justify="left" if not column else "right")
    for name, limit, found in tested:
        table.add_row(
            name,
            "-" if limit is None else f"{limit:g}",
            f"{found.returns.mean():.0f}",
            f"{found.discounted_costs.mean():.1f}",
            f"{found.costs.sum() / found.lengths.sum():.3f}",
            "-" if limit is None else f"{found.share_over_limit:.0%}",
            style="" if limit is None or inside(found, limit) else "red",
        )
    console.print(table)
    for sentence in conclusions(tested):
        console.print(sentence, highlight=False)


def inside(found: Evaluation, limit: float) -> bool:
    return bool(found.discounted_costs.mean() <= limit)


def conclusions(tested: Tested) -> list[str]:
    """For each limit what CPQ did with it, without and with a pacer, beside cloning what the log has inside it."""
    clones = {limit: found for name, limit, found in tested if name == CLONE}
    return [
        conclusion(name, limit, ours, clones.get(limit))
        for name, limit, ours in tested
        if name in (OURS, PACED) and limit is not None
    ]


def conclusion(name: str, limit: float, ours: Evaluation, clone: Evaluation | None) -> str:
    cost = f"{ours.discounted_costs.mean():.1f}"
    if not inside(ours, limit):
        return f"limit {limit:g}: {name} does not keep it ({cost})."
    said = f"limit {limit:g}: {name} keeps it ({cost})"
    pace = limit * (1.0 - ours.discount)
    later = ours.costs.sum() / ours.lengths.sum()
    if later > pace:
        said += f", but costs {later:.3f} a step over the whole episode, more than the limit's pace of {pace:.3f}"
    if clone is None:
        return f"{said}."
    ratio = ours.returns.mean() / clone.returns.mean()
    return f"{said}, and earns {ratio:.2f} times what cloning earns."


def steady_costs(found: Evaluation) -> Float[np.ndarray, " episodes"]:
    """Each episode's cost per step, as the discounted cost that it would add up to."""
    costs: np.ndarray = found.costs / found.lengths / (1.0 - found.discount)
    return costs


def plot_demo(tested: Tested, path: Path) -> None:
    """Return against cost: CPQ's points, without and with a pacer, and the clones', each beside its limit, and the
    behaviours. The cost is that of a step over 1 - discount, which a steady cost adds up to: so that it can be compared with
    the limits, and depends on the whole episode."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.subplots()
    limits = sorted({limit for _, limit, _ in tested if limit is not None})
    colours = {limit: f"C{i}" for i, limit in enumerate(limits)}
    for each in limits:
        mark_limit(axes, each, f"{each:g}")
        axes.lines[-1].set_color(colours[each])
    markers = {OURS: ("*", 130), PACED: ("D", 45), CLONE: ("o", 40)}
    for name, limit, found in tested:
        marker, size = markers.get(name, ("x", 40))
        costs = steady_costs(found)
        at, spread = (costs.mean(), found.returns.mean()), (costs.std(), found.returns.std())
        colour = "grey" if limit is None else colours[limit]
        axes.errorbar(*at, xerr=spread[0], yerr=spread[1], color=colour, linewidth=0.8, alpha=0.6)
        axes.scatter(*at, s=size, marker=marker, color=colour, zorder=3)
        if limit is None:
            axes.annotate(name, at, (6, 6), textcoords="offset points", fontsize=8, color="grey")
    for ours, style in ((OURS, "-"), (PACED, ":")):
        means = [(steady_costs(found).mean(), found.returns.mean()) for name, _, found in tested if name == ours]
        axes.plot(*np.reshape(means, (-1, 2)).T, color="black", linewidth=0.8, linestyle=style, zorder=1)
    for name, (marker, _) in markers.items():
        axes.scatter([], [], marker=marker, color="black", label=name)
    axes.set(
        xlabel=f"cost per step / (1 - {tested[0][2].discount:g})",
        ylabel="return",
        title="One log, four limits (dashed): means and standard deviations over test episodes",
    )
    title = "policies, each in the colour of its limit:"
    figure.legend(title=title, fontsize=8, title_fontsize=8, frameon=False, ncols=3, loc="outside lower center")
    without_box(axes)
    with atomic_write(path) as temporary:
        figure.savefig(temporary)
