"""The page of a guard's log: a day of a policy at the plant."""

from datetime import UTC, datetime
from typing import Any

import numpy as np

from ringfence.reports.html import plots
from ringfence.reports.html.guard_numbers import MOST_POINTS, GuardNumbers
from ringfence.reports.html.parts import (
    Facts,
    Headline,
    Notice,
    Page,
    Part,
    Plot,
    Plots,
    Section,
    Table,
    Tone,
    Words,
    counted,
    number,
    percent,
    row,
    share,
    short,
)

QUIET = 0.99  # share of trusted steps from which a day counts as nominal
MOST_COLUMNS = 24
MOST_HAND_OVERS = 200
MOST_SHOWN = 3.0  # times its threshold: one score far above would make the others a line at the bottom
RULES = {
    "missing": "a value is missing, or not a number",
    "range": "a column lies outside the log's range",
    "together": "the columns do not go together as in the log",
    "stuck": "a column repeats its value for too long",
    "detector": "observation and action are unlike the log",
    "cost_to_go": "the cost critic expects more than the limit",
    "budget": "the episode has spent its limit",
    "policy": "the policy failed",
    "fallback": "the fallback failed",
    "fault": "the guard itself failed",
}
TO_DO = {
    "missing": "look at the sensor or the connection of the column named",
    "range": "the log has no such values; if the sensor is right, add such rows to the log and train again",
    "together": "look for a sensor that drifts: each column may be inside its range while they contradict each other",
    "stuck": "look at the sensor of the column named",
    "detector": "let operators run there, add these rows to the log and train again",
    "cost_to_go": "the plant came where the limit is hard to keep; look at what led there",
    "budget": "the limit was spent: see which steps cost it",
    "policy": "the policy's own code failed: see the detail, and report it",
    "fallback": "mend the fallback: it must give a finite action for any observation",
    "fault": "see the detail, and report it",
}


def guard_page(found: GuardNumbers) -> Page:
    sections = (
        Section("Who acted, and how near the rules were", (_timeline(found),)),
        Section("When the policy was taken out", _hand_overs(found)),
        Section("Rules", (_rules(found),)),
        Section("Has the plant moved away from the log?", _drift(found)),
        Section("Columns over time", _columns(found)),
        Section("The guard", (_facts(found),)),
    )
    first, last = (
        datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S") for t in (found.time[0], found.time[-1])
    )
    partly = "" if found.every_step else " The guard recorded events alone: shares are of the steps that it wrote down."
    lead = (
        f"{counted(found.steps, 'step')} in {counted(found.episodes, 'episode')}, from {first} to {last} UTC, by "
        f"{counted(found.starts, 'start')} of a guard with a limit of "
        f"{', then '.join(short(limit) or 'none' for limit in found.limits)}.{partly}"
    )
    return Page("guard", found.name, lead, sections, _headlines(found))


def _headlines(found: GuardNumbers) -> tuple[Headline, ...]:
    trusted = found.share_trusted
    tone: Tone = "good" if trusted >= QUIET else "unsure" if trusted >= 0.5 else "bad"
    word = f"The policy acted in {percent(trusted)} of the steps"
    times = counted(len(found.hand_overs), "time")
    text = (
        f"It was taken out {times}, for {counted(int((~found.trusted).sum()), 'step')} in all."
        if found.hand_overs
        else "It was never taken out."
    )
    lines = [Headline(word, tone, text)]
    if found.drift is not None and found.drift.warnings:
        advice = "look at these columns; where they are right, add the new rows to the log and train again"
        moved = counted(len(found.drift.warnings), "warning")
        lines.append(
            Headline(
                f"The plant has moved away from the log: {moved}", "bad", "; ".join(found.drift.warnings) + ".", advice
            )
        )
    elif found.drift is not None:
        lines.append(Headline("No drift", "good", "No column has moved away from the training log."))
    return tuple(lines)


def _shown(found: GuardNumbers) -> np.ndarray:
    """Evenly chosen steps, and those where control changes hands."""
    changes = np.flatnonzero(np.diff(found.trusted.astype(int)))
    if len(changes) > MOST_POINTS:
        changes = changes[plots.thinned(len(changes), MOST_POINTS)]
    return np.unique(np.concatenate([plots.thinned(found.steps, MOST_POINTS), changes, changes + 1]))


def _shade(plot: Any, found: GuardNumbers) -> None:
    """Grey where the fallback acted; a box has no end, so that it covers the height whatever is shown."""
    from bokeh.models import BoxAnnotation

    for stretch in found.hand_overs[:MOST_HAND_OVERS]:
        box = BoxAnnotation(
            left=stretch.at - 0.5, right=stretch.at + stretch.steps - 0.5, fill_color=plots.LOG_COLOUR, fill_alpha=0.25,
            line_color=None, level="underlay",
        )  # fmt: skip
        plot.add_layout(box)


def _timeline(found: GuardNumbers) -> Plots:
    plot = plots.blank("step of the log", "score, as a share of its threshold")
    _shade(plot, found)
    shown, drawn = _shown(found), []
    stamps = np.array([datetime.fromtimestamp(t, UTC).strftime("%H:%M:%S") for t in found.time[shown]])
    for index, (rule, values) in enumerate(found.scores.items()):
        hue = plots.colour(index)
        if found.every_step:
            drawn.append(
                plots.lines(plot, rule, shown, values[shown], hue=hue, when=stamps, name=np.array([rule] * len(shown)))
            )
        else:
            drawn.append(
                plots.dots(plot, rule, shown, values[shown], hue=hue, when=stamps, name=np.array([rule] * len(shown)))
            )
    plots.hover(plot, drawn, {"rule": "@name", "share of the threshold": "@y", "step": "@x", "time (UTC)": "@when"})
    plots.limit_line(plot, 1.0, "width", beside=0.0)
    plots.add_legend(plot, "threshold", plots.LIMIT_COLOUR, "dashed")
    plots.add_legend(plot, "the fallback acted", plots.LOG_COLOUR, "area")
    caption = "Above the dashed line a rule is broken. Rules without a score (range, stuck, missing) are in the tables."
    scores = np.concatenate([[0.0], *found.scores.values()])
    least, most = float(np.nanmin(scores)), float(np.nanmax(scores))
    if most > MOST_SHOWN:
        plot.y_range.start, plot.y_range.end = max(least, -MOST_SHOWN) - 0.1, MOST_SHOWN
        caption += f" The figure ends at {MOST_SHOWN:g} times a threshold; the greatest score is {most:.3g} times it."
    return Plots((Plot(plot, "Scores of the rules", caption),))


def _hand_overs(found: GuardNumbers) -> tuple[Part, ...]:
    if not found.hand_overs:
        return (Words("It never was."),)
    rows = tuple(
        (
            *row(datetime.fromtimestamp(h.time, UTC).strftime("%Y-%m-%d %H:%M:%S")),
            *(number(h.episode), number(h.step), number(h.steps)),
            *row(h.why or "a rule that was broken before"),
        )
        for h in found.hand_overs[:MOST_HAND_OVERS]
    )
    headings = ("time (UTC)", "episode", "step", "steps until it acted again", "why")
    left = len(found.hand_overs) - len(rows)
    return (Table(headings, rows, caption=f"{left} more are left out." if left else "", tools=True, name="hand-overs"),)


def _rules(found: GuardNumbers) -> Table:
    thresholds = found.opening["thresholds"]
    active = list(found.opening["active"])
    rows = []
    for rule in dict.fromkeys((*active, *found.broken)):
        threshold, count = thresholds.get(rule), found.broken.get(rule, 0)
        bound = (
            number(threshold)
            if isinstance(threshold, int | float)
            else row("by column" if rule in ("range", "stuck") else "")[0]
        )
        advice = TO_DO.get(rule, "") if count else ""
        rows.append((*row(rule, RULES.get(rule, "")), bound, number(count), share(count / found.steps), *row(advice)))
    return Table(("rule", "broken when", "threshold", "steps", "of all", "what to do"), tuple(rows), name="rules")


def _drift(found: GuardNumbers) -> tuple[Part, ...]:
    if found.drift is None:
        return (Notice(f"This was not compared with the training log: {found.why_no_drift}."),)
    rows = tuple(
        (*row(c.name, c.mean, c.log_mean, c.shift, c.distance), share(c.outside), share(c.missing))
        for c in found.drift.columns
    )
    headings = (
        "column",
        "mean",
        "mean in the log",
        "moved by (deviations)",
        "distance (KS)",
        "outside its range",
        "missing",
    )
    caption = (
        "Moved by: in standard deviations of the log. KS: the largest difference of the two distribution functions."
    )
    return (Table(headings, rows, caption=caption, tools=len(rows) > 12, name="drift"),)


def _columns(found: GuardNumbers) -> tuple[Part, ...]:
    names, units = found.opening["observation_names"], found.opening.get("units", {})
    thresholds, shown = found.opening["thresholds"], _shown(found)
    figures = []
    drawn: list[tuple[str, np.ndarray, int | None]] = []
    drawn += ((name, found.observations[:, i], i) for i, name in enumerate(names[:MOST_COLUMNS]))
    drawn += ((name, found.actions[:, i], None) for i, name in enumerate(found.opening["action_names"][:MOST_COLUMNS]))
    for name, values, column in drawn:
        plot = plots.small("step of the log", "")
        _shade(plot, found)
        plots.lines(
            plot,
            None,
            shown,
            values[shown],
            hue=plots.POLICY_COLOUR if column is not None else plots.colour(2),
            width=1.5,
        )
        for bound in ("low", "high"):
            if column is not None and thresholds.get(bound):
                plots.limit_line(plot, float(thresholds[bound][column]), "width", beside=0.0)
        unit = units.get(name, "")
        figures.append(Plot(plot, f"{name} [{unit}]" if unit and f"[{unit}]" not in name else name))
    words = Words("Dashed: the range of the training log. Grey: the fallback acted. Actions are those that were sent.")
    left = max(len(names) - MOST_COLUMNS, 0)
    return Plots(tuple(figures), small=True), words, *((Words(f"{left} more columns are left out."),) if left else ())


def _facts(found: GuardNumbers) -> Facts:
    opening = found.opening
    stated = {"policy": opening["policy"], "method": opening.get("method"), "discount": opening.get("discount")}
    stated = {name: "not stated" if value is None else value for name, value in stated.items()}
    stated |= {f"rule: {name}": value for name, value in opening["rules"].items()}
    stated |= {f"corrected to the actuator's {word}": f"{count:,} steps" for word, count in found.corrected.items()}
    return Facts(tuple((name, "off" if value is None else str(value)) for name, value in stated.items()))
