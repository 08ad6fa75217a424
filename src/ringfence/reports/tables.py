"""Tables of an experiment in Markdown, CSV and LaTeX."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ringfence.evaluation.statistics import (
    dsrl_cost,
    dsrl_return,
    improvement_interval,
    interquartile_mean,
    probability_of_improvement,
    stratified_interval,
)
from ringfence.files import atomic_write
from ringfence.limits import Limit
from ringfence.reports.results import Gathered, Group, across_logs

Rows = list[list[str]]  # the first is the header
MAIN = {name: name for name in ("log", "limit", "method", "seeds", "return", "discounted cost")} | {
    "episodes over limit": "over limit"
}  # columns of the results in LaTeX, and what they are called there
REFERENCE = "bc-safe"  # what the probability of improvement compares with


def results_table(gathered: Gathered) -> Rows:
    """A row for each method, log and limit: the last iterate over seeds, with 95 % bootstrap intervals."""
    if not all(group.tested for group in gathered.groups):
        return expectations_table(gathered)
    header = [
        "log",
        "limit",
        "method",
        "seeds",
        "steps",
        "return",
        "discounted return",
        "discounted cost",
        "cost per step",
        "episodes over limit",
        "steps per episode",
    ]
    header += ["seeds over limit", "normalised return", "cost / limit", "DSRL return", "DSRL cost"]
    rows = [header]
    for group in gathered.groups:
        costs = group.last("discounted_cost")
        rows.append(
            [
                *(group.log, f"{group.limit:g}", group.label, str(len(group.results)), f"{group.steps}"),
                *(with_interval(group.last("return"), 0), with_interval(group.last("discounted_return"), 1)),
                *(with_interval(costs, 1), with_interval(group.last("step_cost"), 3)),
                f"{group.violations().mean():.0%}",
                f"{group.last('length').mean():.0f}",
                f"{np.sum(costs > group.limit)} of {len(costs)}",
                *normalised(gathered, group),
            ]
        )
    return rows


def expectations_table(gathered: Gathered) -> Rows:
    """Without a simulator: what the critics expect from the states where logged episodes start."""
    rows = [
        [
            "log",
            "limit",
            "method",
            "seeds",
            "steps",
            "expected return (infinite horizon)",
            "expected cost (infinite horizon)",
            "seeds over limit",
        ]
    ]
    for group in gathered.groups:
        returns, costs = group.expected("qr_start"), group.expected("qc_start")
        over = f"{np.sum(costs > group.limit)} of {len(costs)}" if len(costs) else "-"
        named = [group.log, f"{group.limit:g}", group.label, str(len(group.results)), f"{group.steps}"]
        rows.append([*named, with_interval(returns, 1), with_interval(costs, 2), over])
    return rows


def normalised(gathered: Gathered, group: Group) -> list[str]:
    scores = across_logs(gathered, [group])
    log = gathered.references.get(group.log, {}).get("log")
    if not scores["return"] or log is None:
        return ["-"] * 4
    discount = group.results[0]["cell"]["hyperparameters"]["discount"]
    limit = Limit(group.limit, discount, log["horizon"]).per_episode
    returns = [dsrl_return(value, log["least_return"], log["most_return"]) for value in group.last("return")]
    costs = [dsrl_cost(value, limit) for value in group.last("episode_cost")]
    ours = (f"{np.mean(scores[name][0]):.2f}" if scores[name] else "-" for name in ("return", "cost"))
    return [*ours, f"{np.mean(returns):.2f}", f"{np.mean(costs):.2f}"]


def aggregate_table(gathered: Gathered) -> Rows:
    """A row for each method over all logs and limits: interquartile means of the normalised scores with stratified
    bootstrap intervals over seeds, and how probably a seed earns more than one of BC-Safe's."""
    rows = [
        [
            "method",
            "cells",
            "IQM normalised return",
            "IQM cost / limit",
            "episodes over limit",
            f"P(return > {REFERENCE})",
        ]
    ]
    for label in gathered.labels:
        groups = [group for log in gathered.logs for group in gathered.of(log, label) if group.tested]
        scores = across_logs(gathered, groups)
        if scores["return"]:
            violations = np.concatenate([group.violations() for group in groups])
            rows.append(
                [
                    label,
                    str(sum(len(group.results) for group in groups)),
                    *(iqm_with_interval(scores[name]) for name in ("return", "cost")),
                    f"{violations.mean():.0%}",
                    improvement(gathered, label),
                ]
            )
    return rows


def improvement(gathered: Gathered, label: str) -> str:
    """Over the logs and limits that both have."""
    pairs = [
        (ours.last("return"), theirs.last("return"))
        for log in gathered.logs
        for ours in gathered.of(log, label)
        for theirs in gathered.of(log, REFERENCE)
        if ours.limit == theirs.limit and ours.tested and theirs.tested
    ]
    if label == REFERENCE or not pairs:
        return "-"
    ours, theirs = ([pair[i] for pair in pairs] for i in (0, 1))
    value = f"{float(probability_of_improvement(ours, theirs)):.2f}"
    if single_seeds(ours) or single_seeds(theirs):
        return value
    low, high = improvement_interval(ours, theirs)
    return f"{value} [{low:.2f}, {high:.2f}]"


def with_interval(values: np.ndarray, digits: int) -> str:
    """Mean over seeds and the interval of the mean; of a single seed, its value alone."""
    if not len(values):
        return "-"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    low, high = stratified_interval([values], lambda scores: np.mean(scores[0], axis=-1))
    return f"{values.mean():.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def iqm_with_interval(scores: Sequence[np.ndarray]) -> str:
    if not scores:
        return "-"
    value = f"{float(interquartile_mean(scores)):.2f}"
    if single_seeds(scores):
        return value
    low, high = stratified_interval(scores)
    return f"{value} [{low:.2f}, {high:.2f}]"


def single_seeds(scores: Sequence[np.ndarray]) -> bool:
    """Whether no group has two seeds to draw from: an interval would have no width and mean nothing."""
    return all(len(values) == 1 for values in scores)


# Formats


def markdown(rows: Rows, notes: Sequence[str] = ()) -> str:
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    below = [line for note in notes for line in ("", note)]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:], *below]) + "\n"


def comma_separated(rows: Rows, notes: Sequence[str] = ()) -> str:
    """Without the notes: what reads it expects rows alone."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", ">": r"$>$", "<": r"$<$"}


def latex(rows: Rows, notes: Sequence[str] = ()) -> str:
    """A tabular with the rules of the package booktabs; what to load for it and the notes are comments."""

    def escaped(text: str) -> str:
        plain = "".join(f"\\{c}" if c in "&%$#_{}" else SPECIAL.get(c, c) for c in text)
        return re.sub(r"(?<![\w-])-(?=\d)", "$-$", plain)  # a sign, not a hyphen

    lines = [" & ".join(escaped(cell) for cell in row) + r" \\" for row in rows]
    return "\n".join(
        [
            r"% \usepackage{booktabs}; in a narrow column: \footnotesize and \setlength{\tabcolsep}{3pt} before it",
            *(f"% {note}" for note in notes),
            r"\begin{tabular}{" + "l" * len(rows[0]) + "}",
            *(r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}", ""),
        ]
    )


def narrowed(rows: Rows, main: Mapping[str, str]) -> Rows:
    """The columns that `main` names, under the names that it gives them; all of a table that has not got them."""
    if not main.keys() <= set(rows[0]):
        return rows
    places = [rows[0].index(name) for name in main]
    return [list(main.values()), *([row[place] for place in places] for row in rows[1:])]


FORMATS: dict[str, Callable[[Rows, Sequence[str]], str]] = {"md": markdown, "csv": comma_separated, "tex": latex}


def write_table(rows: Rows, path: Path, notes: Sequence[str] = ()) -> list[Path]:
    """The table as `path` with each suffix, and what a reader must know of it. LaTeX has the main columns alone: all of
    them are wider than a page."""
    written = []
    for suffix, formatted in FORMATS.items():
        with atomic_write(file := path.with_suffix(f".{suffix}")) as temporary:
            temporary.write_text(formatted(narrowed(rows, MAIN) if suffix == "tex" else rows, notes), encoding="utf-8")
        written.append(file)
    return written
