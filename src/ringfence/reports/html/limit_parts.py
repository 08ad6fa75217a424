"""A policy for a range of limits: what its critics expect at each of them, with a limit that can be moved."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ringfence.data import Dataset
from ringfence.limits import horizon_words
from ringfence.reports.html import plots
from ringfence.reports.html.parts import LimitTool, Part, Plot, Plots, Words, short
from ringfence.reports.html.plots import thinned
from ringfence.training import Configuration, Member, Run

POINTS, STARTS = 41, 500  # limits of a curve; states where episodes start, at most


@dataclass(frozen=True)
class LimitCurve:
    """The mean over states where logged episodes start at each limit: sums over an infinite horizon, as a verdict
    compares them with the limit."""

    member: Member
    limits: np.ndarray
    costs: np.ndarray
    returns: np.ndarray


def limit_curves(run: Run, log: Dataset) -> tuple[LimitCurve, ...]:
    """A curve for each policy that takes the limit as an input and has critics of it."""
    starts = log.observations[log.episode_starts][thinned(len(log.episode_starts), STARTS)]
    made = []
    for member, artifact in zip(run.members, run.artifacts, strict=False):
        fits = artifact.observation_dim == log.observations.shape[1]
        if artifact.limit_range is None or not fits or not {"cost", "reward_1"} <= set(artifact.networks):
            continue
        limits = np.linspace(*artifact.limit_range, POINTS)
        at = [artifact.at_limit(limit) for limit in limits]
        costs = np.array([one.cost_to_go(starts).mean() for one in at])
        returns = np.array([one.return_to_go(starts).mean() for one in at])
        made.append(LimitCurve(member, limits, costs, returns))
    return tuple(made)


def limit_words(limits: np.ndarray, costs: np.ndarray, returns: np.ndarray, limit: float) -> str:
    """As the page's script says it when the limit is moved."""
    cost, returned = np.interp(limit, limits, costs), np.interp(limit, limits, returns)
    where = "inside" if cost <= limit else "OUTSIDE"
    return (
        f"Given a limit of {short(limit)}, the policy is expected to cost {short(cost)} ({where}) and to earn "
        f"{short(returned)}, discounted over an infinite horizon."
    )


def limit_parts(
    curves: tuple[LimitCurve, ...], names: tuple[str, ...], configuration: Configuration, start: float
) -> tuple[tuple[Part, ...], dict[str, Any]]:
    """The parts of the section, and what the page's script needs; nothing without a curve."""
    if not curves:
        return (), {}
    limits = curves[0].limits
    costs, returns = (np.mean([getattr(curve, name) for curve in curves], 0) for name in ("costs", "returns"))
    figures = []
    for what, title in (("costs", "cost"), ("returns", "return")):
        plot = plots.blank("limit given to the policy", f"discounted {title}, over an infinite horizon")
        for index, (curve, name) in enumerate(zip(curves, names, strict=True)):
            plots.lines(plot, name, curve.limits, getattr(curve, what), hue=plots.colour(index))
        if what == "costs":
            plots.diagonal(plot, "the limit", float(limits[0]), float(limits[-1]))
        beside = float(np.mean([getattr(curve, what) for curve in curves]))
        plots.limit_line(plot, start, movable=True, beside=beside)
        figures.append(Plot(plot, f"Expected {title} at each limit"))
    words = limit_words(limits, costs, returns, start)
    horizon = configuration.horizon
    part = horizon_words(configuration.discount, horizon)
    note = (
        "One policy for every limit of the range (experimental). These are its own critics' expectations from the states "
        "where logged episodes start, the mean over policies: move the limit to see them. They have no end; over the log's "
        f"{horizon} steps they are {part}. They are estimates from the log; "
        "`ringfence judge RUN --limit L` judges the policy at a limit by episodes that it has not seen."
    )
    tool = LimitTool(float(limits[0]), float(limits[-1]), start, words)
    data = {"limits": limits.tolist(), "costs": costs.tolist(), "returns": returns.tolist()}
    return (Words(note), tool, Plots(tuple(figures))), {"curve": data}
