"""Has the plant moved away from the log? A guard's log against the training log, in numbers."""

import math
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.guard_log import finite, read_guard_log
from ringfence.deploy.policy import Policy
from ringfence.errors import InvalidSetting

# Beyond these a column has drifted. Steps of a plant are not independent, so a significance test would always warn.
SHIFT, DISTANCE, OUTSIDE = 1.0, 0.3, 0.01


@dataclass(frozen=True)
class ColumnDrift:
    """One column of the observations, now and in the log."""

    name: str
    mean: float
    std: float
    log_mean: float
    log_std: float
    shift: float  # (mean - log_mean) / log_std; infinite where a column that never changes in the log has changed
    distance: (
        float | None
    )  # Kolmogorov-Smirnov: the largest difference of the two distribution functions; needs the log
    outside: float | None  # share of the steps outside the log's range
    missing: float  # share of the steps without a value


@dataclass(frozen=True)
class Drift:
    """What a guard saw, against the training log."""

    steps: int
    episodes: int
    trusted: float  # share of the steps
    broken: dict[str, int]  # steps in which each rule was broken
    handed_over: int  # how often the policy was taken out of the loop
    columns: tuple[ColumnDrift, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; None for a mean of a column that was never there."""
        found: dict[str, Any] = finite(asdict(self))
        return found


def drift(guard_log: str | Path, reference: Any) -> Drift:
    """The summary of a guard's log. `reference` is the training log (a `Dataset`: distributions can be compared) or the
    policy or artifact (means, standard deviations and ranges alone). The guard must have recorded every step."""
    names, steps = _read(guard_log)
    seen = np.array([[np.nan if x is None else x for x in step["observation"]] for step in steps], float)
    known = _reference(reference)
    if list(known["names"]) != names:
        raise InvalidSetting(f"the guard saw the columns {names}; the reference has {list(known['names'])}")
    columns = tuple(_column(i, name, seen[:, i], known) for i, name in enumerate(names))
    trusted = [bool(step["trusted"]) for step in steps]
    starts = [(s["episode"], s["step"]) for s in steps]
    # An episode begins with the policy trusted. Every run of a guard counts its episodes from 0, their steps too.
    fresh = [now[0] != then[0] or now[1] <= then[1] for then, now in pairwise(starts)]
    before = [True] + [begins or t for begins, t in zip(fresh, trusted, strict=False)]
    return Drift(
        steps=len(steps),
        episodes=sum(step["step"] == 0 for step in steps),
        trusted=float(np.mean(trusted)),
        broken=dict(Counter(rule for step in steps for rule in {reason["rule"] for reason in step["reasons"]})),
        handed_over=sum(was and not now for was, now in zip(before, trusted, strict=True)),
        columns=columns,
        warnings=tuple(text for column in columns for text in _warnings(column)),
    )


def _read(path: str | Path) -> tuple[list[str], list[dict[str, Any]]]:
    names: list[str] = []
    steps = []
    for line in read_guard_log(path):
        if line["event"] == "start":
            if names and line["observation_names"] != names:
                raise InvalidSetting(
                    f"{path} holds guards of policies with different columns; give each a log of its own"
                )
            names = line["observation_names"]
            if line.get("record") == "events":
                raise InvalidSetting(f"{path} holds events alone; drift needs a guard with record='steps'")
        else:
            steps.append(line)
    if not steps:
        raise InvalidSetting(f"{path} holds no steps yet")
    return names, steps


def _reference(given: Any) -> dict[str, Any]:
    given = given.artifact if isinstance(given, Policy) else given
    if isinstance(given, Artifact):
        low, high = given.observation_low, given.observation_high
        std = given.observation_std  # by which networks are scaled: not 0 where a column never changes
        return {
            "names": given.observation_names,
            "mean": given.observation_mean,
            "std": std if low is None else np.where(low == high, 0.0, std),
            "low": low,
            "high": high,
            "rows": None,
        }
    rows = np.asarray(given.observations, float)
    found = {"mean": rows.mean(0), "std": rows.std(0), "low": rows.min(0), "high": rows.max(0)}
    return {"names": given.observation_names, "rows": rows, **found}


def _column(i: int, name: str, values: np.ndarray, known: dict[str, Any]) -> ColumnDrift:
    there = values[np.isfinite(values)]
    mean, std = (float(there.mean()), float(there.std())) if len(there) else (float("nan"), float("nan"))
    log_mean, log_std = float(known["mean"][i]), float(known["std"][i])
    outside = None
    if known["low"] is not None and len(there):
        outside = float(((there < known["low"][i]) | (there > known["high"][i])).mean())
    return ColumnDrift(
        name=name,
        mean=mean,
        std=std,
        log_mean=log_mean,
        log_std=log_std,
        shift=_shift(mean, log_mean, log_std),
        distance=None if known["rows"] is None or not len(there) else ks_distance(there, known["rows"][:, i]),
        outside=outside,
        missing=1.0 - len(there) / len(values),
    )


def _shift(mean: float, log_mean: float, log_std: float) -> float:
    """In standard deviations of the log; NaN for a column that was never there."""
    if log_std > 0 or math.isnan(mean):
        return (mean - log_mean) / (log_std or 1.0)
    return 0.0 if mean == log_mean else math.copysign(math.inf, mean - log_mean)


def ks_distance(first: np.ndarray, second: np.ndarray) -> float:
    """The largest difference of two empirical distribution functions.

    >>> ks_distance(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.5
    """
    every = np.concatenate([first, second])
    below = [np.searchsorted(np.sort(part), every, side="right") / len(part) for part in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def _warnings(column: ColumnDrift) -> list[str]:
    found = []
    if math.isinf(column.shift):
        found.append(f"{column.name} was {column.mean:.6g} on average; in the log it is always {column.log_mean:.6g}")
    elif abs(column.shift) > SHIFT:
        found.append(f"{column.name} has moved by {column.shift:+.1f} standard deviations of the log")
    elif column.distance is not None and column.distance > DISTANCE:
        found.append(f"{column.name} is distributed unlike the log (Kolmogorov-Smirnov distance {column.distance:.2f})")
    if column.outside is not None and column.outside > OUTSIDE:
        found.append(f"{column.name} was outside the log's range in {column.outside:.1%} of the steps")
    if column.missing > OUTSIDE:
        found.append(f"{column.name} was missing in {column.missing:.1%} of the steps")
    return found
