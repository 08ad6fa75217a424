"""The numbers of a page about many policies: the cells of a sweep (`compare_sweep`), or several runs (`compare_runs`). All
of a page have the same evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ringfence.evaluation.statistics import bootstrap_interval

Interval = tuple[float, float]


@dataclass(frozen=True)
class Candidate:
    """One policy: what it earns and costs, by the page's evidence."""

    name: str
    log: str
    method: str
    limit: float
    seed: int
    steps: int
    verdict: str  # of training: inside, outside, unsure, no estimate
    returned: float | None
    cost: float | None
    return_interval: Interval | None = None
    cost_interval: Interval | None = None
    over_limit: float | None = None  # share of episodes
    seconds: float | None = None
    judged: str = ""  # the verdict by episodes set aside


@dataclass(frozen=True)
class GroupMeans:
    """The seeds of one method on one log at one limit, and the means over them."""

    log: str
    method: str
    limit: float
    seeds: tuple[Candidate, ...]
    returned: float
    cost: float
    return_interval: Interval | None
    cost_interval: Interval | None


@dataclass(frozen=True)
class Chosen:
    """What `ringfence choose` says at one limit."""

    limit: float
    name: str | None
    reason: str
    sentences: Mapping[str, str] = field(default_factory=dict)  # the verdict on each candidate, best first


@dataclass(frozen=True)
class Comparison:
    kind: str  # "sweep" or "comparison"
    title: str
    evidence: str  # how returns and costs are known
    measure: str  # what the numbers are
    axes: tuple[str, str]  # what figures call cost and return
    candidates: tuple[Candidate, ...]
    groups: tuple[GroupMeans, ...]
    choices: tuple[Chosen, ...]
    why_no_choice: str = ""
    missing: tuple[str, ...] = ()  # cells without a result
    command: str = ""


def chosen_of(limit: float, choice: Mapping[str, Any]) -> Chosen:
    sentences = {candidate["name"]: candidate["sentence"] for candidate in choice["candidates"]}
    return Chosen(limit, choice["chosen"], choice["reason"], sentences)


def groups_of(candidates: Sequence[Candidate]) -> tuple[GroupMeans, ...]:
    """Seeds together; those without a number are left out."""
    seeds: dict[tuple[str, str, float], list[Candidate]] = {}
    for candidate in candidates:
        if candidate.returned is not None and candidate.cost is not None:
            seeds.setdefault((candidate.log, candidate.method, candidate.limit), []).append(candidate)
    made = []
    for key, members in seeds.items():
        returns, costs = (np.array([getattr(c, name) for c in members], float) for name in ("returned", "cost"))
        several = len(members) > 1
        made.append(
            GroupMeans(
                *key,
                tuple(members),
                float(returns.mean()),
                float(costs.mean()),
                bootstrap_interval(returns) if several else members[0].return_interval,
                bootstrap_interval(costs) if several else members[0].cost_interval,
            )
        )
    return tuple(made)
