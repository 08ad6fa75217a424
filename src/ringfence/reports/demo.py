"""The demonstration's table, sentence and picture. Everything in them is an episode of the task, of the same length."""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from ringfence.evaluation import Evaluation
from ringfence.files import atomic_write
from ringfence.reports.pictures import mark_limit, without_box
from ringfence.training.record import Run

Tested = dict[str, list[Evaluation]]  # of each way to get a policy, one for every seed


def limit_of(tested: Tested) -> float:
    limit = tested["CPQ"][0].limit
    assert limit is not None
    return limit


def mean_return(seeds: list[Evaluation]) -> float:
    return float(np.mean([evaluation.returns.mean() for evaluation in seeds]))


def mean_cost(seeds: list[Evaluation]) -> float:
    return float(np.mean([evaluation.discounted_costs.mean() for evaluation in seeds]))


def by_seed(means: list[float], digits: int) -> str:
    """The mean over seeds, and the least and the greatest of them."""
    spread = f"  ({min(means):.{digits}f} to {max(means):.{digits}f})" if len(means) > 1 else ""
    return f"{np.mean(means):.{digits}f}{spread}"


def print_comparison(tested: Tested, console: Console) -> None:
    ours = tested["CPQ"]
    limit = limit_of(tested)
    title = f"{ours[0].task}, limit {limit:g}: mean over {len(ours)} seeds (least to greatest seed)"
    table = Table(title=title, title_justify="left")
    for column in ("", "return", "discounted cost", "episode cost", "episodes over the limit"):
        table.add_column(column, justify="left" if not column else "right")
    for name, seeds in tested.items():
        table.add_row(
            name,
            by_seed([e.returns.mean() for e in seeds], 0),
            by_seed([e.discounted_costs.mean() for e in seeds], 1),
            f"{np.mean([e.costs.mean() for e in seeds]):.0f}",
            f"{np.mean([e.share_over_limit or 0.0 for e in seeds]):.0%}",
            style="" if mean_cost(seeds) <= limit else "red",
        )
    console.print(table)
    console.print(conclusion(tested), highlight=False)


def conclusion(tested: Tested) -> str:
    """What the numbers say of CPQ against the best other policy inside the limit."""
    ours, cost, limit = mean_return(tested["CPQ"]), mean_cost(tested["CPQ"]), limit_of(tested)
    inside = {name: mean_return(e) for name, e in tested.items() if name != "CPQ" and mean_cost(e) <= limit}
    if cost > limit:
        return f"CPQ does not keep the limit here: {cost:.1f} against {limit:g}."
    if not inside:
        return f"CPQ keeps the limit and earns {ours:.0f}; nothing else keeps it."
    best = max(inside, key=lambda name: inside[name])
    return (
        f"CPQ keeps the limit ({cost:.1f} of {limit:g}) and earns {compared(tested['CPQ'], tested[best])} "
        f"the best of the others that keep it ({best}, {inside[best]:.0f})."
    )


def compared(ours: list[Evaluation], theirs: list[Evaluation]) -> str:
    """Such as "12% more than"; "as much as" where the seeds of both overlap."""
    one, other = ([evaluation.returns.mean() for evaluation in seeds] for seeds in (ours, theirs))
    if max(min(one), min(other)) <= min(max(one), max(other)):
        return "as much as"
    ratio = np.mean(one) / np.mean(other)
    return f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'} than"


def plot_demo(run: Run, tested: Tested, path: Path) -> None:
    """Return and discounted cost over training with the limit drawn, and every policy's test episodes."""
    from matplotlib.figure import Figure

    limit, discount = limit_of(tested), tested["CPQ"][0].discount
    figure = Figure(figsize=(12, 3.8), dpi=120, layout="constrained")
    earned, spent, final = figure.subplots(1, 3)
    for axes, name, label in ((earned, "return", "return"), (spent, "discounted_cost", "discounted cost")):
        for i, member in enumerate(run.members):
            rows = run.rows_of(member, "evaluations")
            steps, means = ([row[key] for row in rows] for key in ("step", name))
            spread = np.array([row[f"{name}_std"] for row in rows])
            axes.plot(steps, means, color="C0", alpha=1 - 0.25 * i, label=f"seed {member.seed}")
            axes.fill_between(steps, means - spread, means + spread, color="C0", alpha=0.1, linewidth=0)
        axes.set(xlabel="training step", title=f"CPQ, {len(run.members)} seeds: {label}")
    spent.axhline(limit, color="black", linestyle="--", linewidth=1)
    markers = {"unsafe behaviour": ("C3", "x"), "safe behaviour": ("C2", "+"), "CPQ": ("C0", "*")}
    for i, (name, seeds) in enumerate(tested.items()):
        colour, marker = markers.get(name, (f"C{4 + i}", "o"))
        costs = np.concatenate([evaluation.discounted_costs for evaluation in seeds])
        returns = np.concatenate([evaluation.returns for evaluation in seeds])
        final.scatter(costs, returns, s=50 if name == "CPQ" else 18, color=colour, marker=marker, label=name, alpha=0.7)
    mark_limit(final, limit, f"limit {limit:g}")
    final.set(xlabel=f"discounted cost (at {discount:g})", ylabel="return", title="test episodes of every seed")
    final.legend(fontsize=7, frameon=False)
    for axes in (earned, spent, final):
        without_box(axes)
    with atomic_write(path) as temporary:
        figure.savefig(temporary)
