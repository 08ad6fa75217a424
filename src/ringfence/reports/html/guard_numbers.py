"""The numbers of a guard log's page: who acted, which rules were broken, how near each was, how the columns moved."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ringfence.deploy import Drift, Reason, drift, read_guard_log
from ringfence.errors import InvalidSetting, RingfenceError

# The rules that compare one number with one threshold, and where a step's line has that number.
SCORES = {"together": "together", "detector": "detector_score", "cost_to_go": "cost_to_go", "budget": "spent"}
MOST_POINTS = 2_000


@dataclass(frozen=True)
class HandOver:
    """One stretch in which the policy did not act."""

    at: int  # index of its first step in the log
    time: float
    episode: int
    step: int
    why: str
    steps: int


@dataclass(frozen=True)
class GuardNumbers:
    name: str
    opening: Mapping[str, Any]  # the last line about the guard itself
    limits: tuple[float | None, ...]  # of the guards, each once
    starts: int
    steps: int
    episodes: int
    every_step: bool
    trusted: np.ndarray
    hand_overs: tuple[HandOver, ...]
    broken: Mapping[str, int]  # steps in which each rule was broken
    corrected: Mapping[str, int]
    scores: Mapping[str, np.ndarray]  # of each rule with a threshold: the score over that of the guard at the time
    observations: np.ndarray  # (steps, columns), NaN where missing
    actions: np.ndarray
    time: np.ndarray
    drift: Drift | None
    why_no_drift: str

    @property
    def share_trusted(self) -> float:
        return float(self.trusted.mean())


def guard_numbers(path: Path, reference: Any = None) -> GuardNumbers:
    """`reference` is the training log (a `Dataset`), or the policy; without it there is no comparison with the log."""
    lines = list(read_guard_log(path))
    openings = [line for line in lines if line["event"] == "start"]
    names = openings[-1]["observation_names"]
    if any(line["observation_names"] != names for line in openings):
        raise InvalidSetting(f"{path} holds guards of policies with different columns; give each a log of its own")
    steps = [line for line in lines if line["event"] == "step"]
    if not steps:
        raise InvalidSetting(f"{path} holds no steps yet")
    compared, why_not = _drift(path, reference)
    guards = _guards(lines)
    scores = {}
    for rule, key in SCORES.items():
        thresholds = [guard["thresholds"].get(rule) or None for guard in guards]
        if any(thresholds):
            scores[rule] = _numbers([step.get(key) for step in steps]) / _numbers(thresholds)
    return GuardNumbers(
        name=path.name,
        opening=openings[-1],
        limits=tuple(dict.fromkeys(line.get("limit") for line in openings)),
        starts=len(openings),
        steps=len(steps),
        episodes=_episodes(lines),
        every_step=all(line.get("record") != "events" for line in openings),
        trusted=np.array([bool(step["trusted"]) for step in steps]),
        hand_overs=tuple(hand_overs(steps)),
        broken=Counter(rule for step in steps for rule in {reason["rule"] for reason in step["reasons"]}),
        corrected=Counter(word for step in steps for word in step["corrected"]),
        scores=scores,
        observations=np.array([_numbers(step["observation"]) for step in steps]),
        actions=np.array([_numbers(step["action"]) for step in steps]),
        time=np.array([float(step["time"]) for step in steps]),
        drift=compared,
        why_no_drift=why_not,
    )


def hand_overs(steps: list[dict[str, Any]]) -> list[HandOver]:
    """A stretch ends when the policy acts again or an episode begins; why is what was broken in its first step."""
    found: list[HandOver] = []
    begun: int | None = None
    for i, step in enumerate(steps):
        fresh = i > 0 and (step["episode"] != steps[i - 1]["episode"] or step["step"] <= steps[i - 1]["step"])
        if begun is not None and (step["trusted"] or fresh):
            found.append(_hand_over(steps, begun, i))
            begun = None
        if begun is None and not step["trusted"]:
            begun = i
    return [*found, _hand_over(steps, begun, len(steps))] if begun is not None else found


def _hand_over(steps: list[dict[str, Any]], begun: int, end: int) -> HandOver:
    first = steps[begun]
    why = "; ".join(_in_words(reason) for reason in first["reasons"])
    return HandOver(begun, float(first["time"]), int(first["episode"]), int(first["step"]), why, end - begun)


def _in_words(reason: Mapping[str, Any]) -> str:
    known = ("rule", "column", "value", "threshold", "detail")
    return str(Reason(**{name: reason[name] for name in known if name in reason}))


def _guards(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each step the line about its guard: one that is started again may have another policy or limit."""
    found, guard = [], lines[0]
    for line in lines:
        if line["event"] == "start":
            guard = line
        elif line["event"] == "step":
            found.append(guard)
    return found


def _episodes(lines: list[dict[str, Any]]) -> int:
    """Each guard counts its own episodes from 0."""
    seen, guard = set(), 0
    for line in lines:
        guard += line["event"] == "start"
        if line["event"] == "step":
            seen.add((guard, line["episode"]))
    return len(seen)


def _drift(path: Path, reference: Any) -> tuple[Drift | None, str]:
    if reference is None:
        return None, "name the training log, or the policy, with --log"
    try:
        return drift(path, reference), ""
    except RingfenceError as error:
        return None, str(error)


def _numbers(values: Any) -> np.ndarray:
    return np.array([np.nan if value is None else float(value) for value in values])
