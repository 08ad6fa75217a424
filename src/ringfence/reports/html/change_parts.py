"""What is shown of the differences between a policy and those who wrote the log."""

from typing import Any

import numpy as np

from ringfence.data import Dataset
from ringfence.reports.html import plots
from ringfence.reports.html.differences import NOTABLE, ChangedRow, Differences, Profile
from ringfence.reports.html.parts import (
    Cell,
    Choice,
    Part,
    Plot,
    Plots,
    Table,
    Words,
    number,
    percent,
    row,
    share,
    short,
)
from ringfence.reports.html.run_numbers import RunNumbers, named

MOST_FIGURES = 18
MOST_SHOWN = 10  # observations in a row of the table


def change_parts(found: RunNumbers) -> tuple[tuple[Part, ...], list[dict[str, Any]]]:
    """The section's parts, and the variants that its choice switches between: one for each policy and action."""
    if not found.differences or found.log is None:
        return (), []
    log, (member, first) = found.log, found.differences[0]
    shown = telling_observations(first, log, MOST_FIGURES)
    variants, options = [], []
    for other, changes in found.differences:
        for j, action in enumerate(log.action_names):
            prefix = f"{named(found.run, other)}: " if len(found.differences) > 1 else ""
            options.append(prefix + action)
            variants.append(_variant(changes, shown, j, with_unit(action, log)))
    figures = [
        Plot(_profile_plot(_profile(first, i, 0), log), f"against {with_unit(log.observation_names[i], log)}")
        for i in shown
    ]
    left = len(log.observation_names) - len(shown)
    rest = f" The {len(shown)} observations on which the change depends most; {left} more are left out." if left else ""
    parts: list[Part] = [
        *(Words(text) for text in in_words(first, log)),
        _action_table(first, log, named(found.run, member) if len(found.run.members) > 1 else ""),
        Choice("Action", tuple(options)),
        Plots(tuple(figures), small=True),
        Words(
            "Grey: logged actions, mean and the middle 80 %. Blue: the policy's mean, in the same states. Each point is "
            f"a bin of equally many rows.{rest}"
        ),
        _largest(first, log),
    ]
    return tuple(parts), variants


def in_words(found: Differences, log: Dataset) -> list[str]:
    """Which action changes most, and what the change goes with."""
    sentences = []
    for j, action in enumerate(found.actions):
        if action.relative < 0.01:
            sentences.append(
                f"{action.name}: as logged (it changes by {percent(action.relative)} of its range on average)."
            )
            continue
        most = max((p for p in found.profiles if p.action == j), key=lambda p: p.telling)
        change, unit = most.policy - most.logged, f" {action.unit}" if action.unit else ""
        name = with_unit(log.observation_names[most.observation], log)
        ends = [f"{float(change[at]):+.3g}{unit} where it is about {short(most.at[at], 3)}" for at in (0, -1)]
        sentences.append(
            f"{action.name}: {action.policy - action.logged:+.3g}{unit} on average, {percent(action.notable)} of the rows "
            f"by more than {percent(NOTABLE)} of the range. The change goes most with {name}: {' and '.join(ends)}."
        )
    sentences = sentences[:6]
    if found.foreign is not None and found.foreign_logged is not None:
        sentences.append(
            f"Its own detector calls {percent(found.foreign)} of the policy's actions foreign to the log, and "
            f"{percent(found.foreign_logged)} of the logged ones."
        )
    return sentences


def telling_observations(found: Differences, log: Dataset, most: int) -> list[int]:
    """All of them, in their order; of very many those on which the changes depend most."""
    scale = log.action_high - log.action_low
    weight = np.zeros(len(log.observation_names))
    for profile in found.profiles:
        weight[profile.observation] += profile.telling / float(scale[profile.action])
    return sorted(np.argsort(-weight, kind="stable")[:most].tolist())


def with_unit(name: str, log: Dataset) -> str:
    unit = log.units.get(name)
    return f"{name} [{unit}]" if unit and f"[{unit}]" not in name else name


def _profile(found: Differences, observation: int, action: int) -> Profile:
    return next(p for p in found.profiles if (p.observation, p.action) == (observation, action))


def _profile_plot(profile: Profile, log: Dataset) -> Any:
    plot = plots.small("", with_unit(log.action_names[profile.action], log))
    plot.yaxis[0].name = "action-axis"
    named_source = plots.source(**_columns(profile))
    named_source.name = f"profile-{profile.observation}"
    plot.varea("at", "low", "high", source=named_source, fill_color=plots.LOG_COLOUR, fill_alpha=0.25)
    plot.line("at", "logged", source=named_source, color=plots.LOG_COLOUR, line_width=2)
    plot.line("at", "policy", source=named_source, color=plots.POLICY_COLOUR, line_width=2.5)
    plot.scatter("at", "policy", source=named_source, color=plots.POLICY_COLOUR, size=5)
    return plot


def _columns(profile: Profile) -> dict[str, Any]:
    return {name: np.asarray(getattr(profile, name), float) for name in ("at", "low", "high", "logged", "policy")}


def _variant(found: Differences, shown: list[int], action: int, label: str) -> dict[str, Any]:
    sources = {
        f"profile-{i}": {
            name: [float(f"{v:.6g}") for v in values] for name, values in _columns(_profile(found, i, action)).items()
        }
        for i in shown
    }
    return {"sources": sources, "labels": {"action-axis": label}}


def _action_table(found: Differences, log: Dataset, who: str) -> Table:
    rows = tuple(
        (*row(with_unit(a.name, log), a.logged, a.policy, a.size), share(a.relative), share(a.notable))
        for a in found.actions
    )
    headings = (
        "action",
        "logged, mean",
        "policy, mean",
        "mean change, either way",
        "of its range",
        f"rows changed by over {percent(NOTABLE)}",
    )
    caption = f"On {found.rows:,} rows, evenly chosen from the whole log{f' ({who})' if who else ''}."
    return Table(headings, rows, "How much each action changes", caption, name="changes")


def _largest(found: Differences, log: Dataset) -> Table:
    shown = telling_observations(found, log, MOST_SHOWN)
    costs = any(changed.policy_cost is not None for changed in found.largest)
    headings = ["row", "episode", "step", *(["source"] if log.source is not None else [])]
    for name in log.action_names:
        headings += [f"{with_unit(name, log)}, {who}" for who in ("logged", "policy")]
    headings += ["largest change, of the range", *(["expected cost, logged", "expected cost, policy"] if costs else [])]
    headings += [with_unit(log.observation_names[i], log) for i in shown]
    rows = tuple(_changed_row(changed, shown, log.source is not None, costs) for changed in found.largest)
    caption = (
        "At most two rows of an episode, counted from 0. Expected cost: the cost critic's discounted sum over an infinite "
        "horizon."
    )
    if left := len(log.observation_names) - len(shown):
        caption += f" Of the observations the {len(shown)} on which the change depends most; {left} more are left out."
    return Table(tuple(headings), rows, "The rows with the largest change", caption, tools=True, name="largest")


def _changed_row(changed: ChangedRow, shown: list[int], with_source: bool, costs: bool) -> tuple[Cell, ...]:
    cells = [Cell(f"{value:,}", value) for value in (changed.row, changed.episode, changed.step)]
    cells += [Cell(changed.source)] if with_source else []
    for logged, policy in zip(changed.logged, changed.policy, strict=True):
        cells += [number(float(logged)), number(float(policy))]
    cells.append(share(changed.relative))
    cells += [number(changed.logged_cost), number(changed.policy_cost)] if costs else []
    return (*cells, *(number(float(changed.observation[i])) for i in shown))
