"""How a run learned, and whether its critics and its detector are to be believed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ringfence.limits import horizon_words
from ringfence.reports.html import plots
from ringfence.reports.html.parts import Folded, Notice, Part, Plot, Plots, Table, Words, number, row
from ringfence.reports.html.run_numbers import named
from ringfence.training import Run

LINES = ("solid", "dashed", "dotted", "dashed")
IDENTITY = ("stage", "step", "overall_step", "seed", "limit")
SHARES = {"indicator"}  # from 0 to 1; a share of foreign actions is small, and its course matters
# Title, what it tells, and the metrics with their names.
SIGNS: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "Actions that count as safe (indicator)",
        "The share of the policy's actions whose expected cost is inside the limit. Near 0 it has stalled.",
        {"indicator": "share"},
    ),
    (
        "Weight of the push on foreign actions (alpha)",
        "How hard the cost critic is pushed up where actions are unlike the log.",
        {"alpha": "alpha"},
    ),
    (
        "How unlike the log actions look (KL)",
        "The detector's score of logged actions and of the policy's. The policy's should not run away.",
        {"kl_data": "logged actions", "kl_policy": "the policy's"},
    ),
    (
        "Share of foreign actions",
        "Of the policy's actions drawn in each step, those that the detector calls foreign.",
        {"ood_rate": "foreign"},
    ),
    (
        "Distance to the logged actions",
        "Root mean square, with every action's range scaled to [-1, 1].",
        {"policy_distance": "distance"},
    ),
    (
        "Multiplier of the cost",
        "It rises while the cost is over the limit.",
        {"lambda": "multiplier", "lambda_cost": "multiplier"},
    ),
)


def learning_plots(run: Run) -> tuple[Part, ...]:
    """Expected and simulated return and cost over training, with the limit."""
    configuration = run.configuration
    part = horizon_words(configuration.discount, configuration.horizon)
    endless = f"The critics' sum over an infinite horizon; over {configuration.horizon} steps it is {part}."
    made = []
    for key, what in (("qc_start", "Cost that the critic expects"), ("qr_start", "Return that the critics expect")):
        plot = plots.blank("step", "discounted")
        if _curves(run, plot, "metrics", {key: ""}):
            made.append(_with_limits(run, Plot(plot, what, endless), key == "qc_start"))
    for key, what in (("discounted_cost", "Simulated cost"), ("return", "Simulated return")):
        plot = plots.blank("step", key.replace("_", " "))
        if _curves(run, plot, "evaluations", {key: ""}, spread=f"{key}_std"):
            caption = (
                f"Mean of the episodes of each evaluation, of {simulated_lengths(run)} steps on average; the band is one "
                "standard deviation."
            )
            made.append(_with_limits(run, Plot(plot, what, caption), key == "discounted_cost"))
    return (Plots(tuple(made)),) if made else (Words("The run has no curves of return and cost yet."),)


def simulated_lengths(run: Run) -> str:
    lengths = [round(row["length"]) for row in run.evaluations if isinstance(row.get("length"), int | float)]
    least, most = (f(lengths, default=0) for f in (min, max))
    return f"{least}" if least == most else f"{least} to {most}"


def health_parts(run: Run) -> tuple[Part, ...]:
    parts: list[Part] = [
        Notice(f"{line.get('text', '')} ({line['stage']} stage, step {line['step']:,})") for line in run.warnings
    ]
    parts += [Notice(sentence, "the line was left out", "bad") for sentence in run.damage]
    if not parts:
        parts.append(Words("The run gave no warning."))
    made = [*_critic_plots(run)]
    for title, caption, keys in SIGNS:
        plot = plots.blank("step", "", height=240)
        if _curves(run, plot, "metrics", keys):
            made.append(Plot(plot, title, caption))
    parts += [Plots(tuple(made))] if made else []
    last = [row for member in run.members[:1] for row in run.rows_of(member)[-1:]]
    rows = tuple((*row(name), number(float(value), 6)) for line in last for name, value in line.items()
                 if name not in IDENTITY and isinstance(value, int | float))  # fmt: skip
    return *parts, Folded(
        f"All numbers of the last line ({named(run, run.members[0])})", (Table(("metric", "value"), rows, name="last"),)
    )


def _critic_plots(run: Run) -> list[Plot]:
    """Critics against what really followed in the log."""
    caption = (
        "In the log's own states. Critics' sums are over an infinite horizon. What followed stops with its episode, in "
        "states with at least 95 % of a sum ahead; if all episodes are shorter, it is extrapolated at a steady pace. Both "
        "should settle."
    )
    cost = {"sample_qc_data": "critic, logged actions", "sample_cost_to_go": "what followed"}
    earned = {"sample_qr_data": "critics, logged actions", "sample_qr_policy": "critics, the policy's"}
    made = []
    for title, keys in (
        ("Cost: critic against what followed", cost),
        ("Return: critics against what followed", {**earned, "sample_return_to_go": "what followed"}),
    ):
        plot = plots.blank("step", "discounted", height=240)
        if _curves(run, plot, "metrics", keys):
            made.append(Plot(plot, title, caption))
    return made


def _curves(run: Run, plot: Any, stream: str, keys: dict[str, str], spread: str | None = None) -> int:
    """A line for each member and metric of the policy's stage; how many there are. Training begins at step 0, and so does
    the axis: a short run with a single line of metrics would else be drawn from step 799 to 801."""
    drawn = 0
    plot.x_range.start = 0
    if SHARES & set(keys):
        plot.y_range.start, plot.y_range.end = -0.02, 1.02
    for index, member in enumerate(run.members):
        rows = [row for row in run.rows_of(member, stream) if row["stage"] == "policy"]
        for line, (key, label) in zip(LINES, keys.items(), strict=False):
            steps, values = _series(rows, key)
            if not len(steps):
                continue
            drawn += 1
            hue = plots.colour(index if len(run.members) > 1 else list(keys).index(key))
            words = ", ".join(filter(None, (named(run, member) if len(run.members) > 1 else "", label)))
            plots.lines(plot, words or None, steps, values, hue=hue, dash=line if len(run.members) > 1 else "solid")
            if len(steps) == 1:
                plots.dots(plot, None, steps, values, hue=hue, alpha=1)
            if spread is not None:
                _, width = _series(rows, spread)
                if len(width) == len(values):
                    plots.band(plot, steps, values - width, values + width, hue=hue)
    return drawn


def _series(rows: Sequence[dict[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    found = [(float(row["step"]), float(row[key])) for row in rows if isinstance(row.get(key), int | float)]
    steps, values = np.array(found, float).reshape(-1, 2).T
    return steps, values


def _with_limits(run: Run, plot: Plot, wanted: bool) -> Plot:
    for limit in sorted({member.limit for member in run.members}) if wanted else ():
        plots.limit_line(plot.model, limit, "width", beside=run.configuration.schedule.steps)
    if wanted:
        plots.add_legend(plot.model, "limit", plots.LIMIT_COLOUR, "dashed")
    return plot
