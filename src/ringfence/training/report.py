"""What a run says when it is done: a table, a picture, and a sentence about the limit."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ringfence.data import Dataset, episode_table
from ringfence.training.loop import Result
from ringfence.training.population import Member

Row = dict[str, Any]


def last_rows(rows: list[Row], member: Member) -> Row:
    """The member's latest line that has numbers of the policy, or nothing."""
    mine = [row for row in rows if row["seed"] == member.seed and row["limit"] == member.limit]
    return mine[-1] if mine else {}


def verdict(result: Result, member: Member) -> str:
    """One or two sentences: does the limit hold, and why believe it. An estimate from the log alone is called one."""
    limit, trained = member.limit, last_rows(result.metrics, member)
    evaluated = last_rows(result.evaluations, member)
    sentences = []
    if evaluated:
        cost, over = evaluated["discounted_cost"], evaluated["share_over_limit"]
        word = "holds" if cost <= limit else "is BROKEN"
        sentences.append(
            f"The limit {word} in simulation: discounted cost {cost:.3g} ± {evaluated['discounted_cost_std']:.2g} against "
            f"{limit:g}, {over:.0%} of episodes over it."
        )
    if "qc_start" in trained:
        expected = trained["qc_start"]
        word = "inside" if expected <= limit else "OUTSIDE"
        sentences.append(
            f"The cost critic expects {expected:.3g} from the states where logged episodes start, {word} the limit of "
            f"{limit:g}; this is an estimate from the log, not a guarantee."
        )
        needed = critic_steps(result)
        if result.plan.steps < needed:
            sentences.append(
                f"After only {result.plan.steps} steps it is not one to trust: the critics need some {needed:,}."
            )
    mine = [w for w in result.warnings if (w["seed"], w["limit"]) == (member.seed, member.limit)]
    if mine:
        sentences.append(f"Do not rely on it before reading the {len(mine)} warning(s) of this run.")
    return " ".join(sentences)


def critic_steps(result: Result) -> int:
    """How many steps critics need to reach their scale: targets follow at the rate tau, and each backup covers the
    share 1 - discount of the way, so that after 3 / (tau (1 - discount)) steps 5 % of the way is left."""
    method = result.plan.method
    return round(3.0 / (getattr(method, "tau", 1.0) * (1.0 - method.discount)))


def print_result(result: Result, console: Console) -> None:
    """A line per member, then the verdict on each."""
    method = result.plan.method
    table = Table(title=f"{method.name}, {result.plan.steps} steps", title_justify="left")
    evaluated = bool(result.evaluations)
    columns = ["seed", "limit", "expected cost", "expected return"]
    columns += ["return", "discounted cost", "episode cost", "over limit"] if evaluated else []
    for column in columns:
        table.add_column(column, justify="right")
    for member in result.plan.members:
        trained, tested = last_rows(result.metrics, member), last_rows(result.evaluations, member)
        cells = [str(member.seed), f"{member.limit:g}", _number(trained, "qc_start"), _number(trained, "qr_start")]
        if evaluated:
            cells += [_spread(tested, "return"), _spread(tested, "discounted_cost")]
            cells += [_number(tested, "episode_cost"), f"{tested.get('share_over_limit', float('nan')):.0%}"]
        table.add_row(*cells)
    console.print(table)
    for member in result.plan.members:
        prefix = f"seed {member.seed}, limit {member.limit:g}: " if len(result.plan.members) > 1 else ""
        if sentence := verdict(result, member):
            console.print(prefix + sentence, highlight=False, soft_wrap=True)


def plot_result(result: Result, dataset: Dataset, path: Path) -> Path:
    """Reward against cost with the limit drawn: the log's episodes, what the critics expect of each policy, and, with a
    task, return and cost over training."""
    from matplotlib.figure import Figure

    discount = result.plan.method.discount
    episodes = episode_table(dataset, discount)
    figure = Figure(figsize=(10.5 if result.evaluations else 5.2, 3.8), dpi=120, layout="constrained")
    panels = figure.subplots(1, 3 if result.evaluations else 1, squeeze=False)[0]
    axes = panels[-1]
    axes.scatter(
        episodes.discounted_costs, episodes.discounted_returns, s=8, color="0.6", linewidths=0, label="logged episodes"
    )
    for i, member in enumerate(result.plan.members):
        tested, trained = last_rows(result.evaluations, member), last_rows(result.metrics, member)
        colour, label = f"C{i % 10}", f"policy, seed {member.seed}"
        if tested:
            point = tested["discounted_cost"], tested["discounted_return"]
            axes.scatter(*point, marker="*", s=130, color=colour, label=f"{label} (simulated)", zorder=3)
        elif "qc_start" in trained:
            point = trained["qc_start"], trained["qr_start"]
            axes.scatter(*point, marker="*", s=130, color=colour, label=f"{label} (expected)", zorder=3)
    axes.set(xlabel=f"discounted cost (at {discount:g})", ylabel="discounted return")
    limits = sorted({member.limit for member in result.plan.members})
    for limit in limits:
        axes.axvline(limit, color="black", linestyle="--", linewidth=1)
        axes.annotate(
            f"limit {limit:g}", (limit, 1), (3, -3), xycoords=("data", "axes fraction"),
            textcoords="offset points", va="top", fontsize=8,
        )  # fmt: skip
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    if result.evaluations:
        for panel, name, title in zip(
            panels, ("return", "discounted_cost"), ("return", "discounted cost"), strict=False
        ):
            for i, member in enumerate(result.plan.members):
                mine = [r for r in result.evaluations if (r["seed"], r["limit"]) == (member.seed, member.limit)]
                steps = [r["step"] for r in mine]
                means = [r[name] for r in mine]
                spread = [r[f"{name}_std"] for r in mine]
                panel.plot(steps, means, color=f"C{i % 10}")
                low = [m - s for m, s in zip(means, spread, strict=True)]
                high = [m + s for m, s in zip(means, spread, strict=True)]
                panel.fill_between(steps, low, high, color=f"C{i % 10}", alpha=0.2, linewidth=0)
            if name == "discounted_cost":
                for limit in limits:
                    panel.axhline(limit, color="black", linestyle="--", linewidth=1)
            panel.set(xlabel="step", title=title)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
    return path


def _number(row: Row, name: str) -> str:
    return f"{row[name]:.4g}" if name in row else "-"


def _spread(row: Row, name: str) -> str:
    return f"{row[name]:.4g} ± {row[f'{name}_std']:.2g}" if name in row else "-"
