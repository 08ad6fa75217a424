"""The numbers of a run's page. Beside the log everything is over the log's horizon; sums over an infinite one are scaled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringfence.data import Dataset, episode_table
from ringfence.limits import over_horizon
from ringfence.reports.html.differences import Differences, differences
from ringfence.reports.html.log_numbers import sources
from ringfence.reports.html.plots import thinned
from ringfence.training import Member, Run
from ringfence.training.verdict import Verdict, last_row

MOST_EPISODES = 3_000
MOST_DIFFERENCES = 4  # members whose differences are shown


@dataclass(frozen=True)
class Expectation:
    """A discounted return and cost over the log's horizon, and by what evidence. Bounds are one-sided."""

    name: str
    evidence: str
    returned: float
    cost: float
    least_return: float | None = None
    most_return: float | None = None
    least_cost: float | None = None
    most_cost: float | None = None
    over_limit: float | None = None  # share of episodes
    episodes: int | None = None


@dataclass(frozen=True)
class Logged:
    """The episodes of the log, at most MOST_EPISODES of them, and what each source got."""

    costs: np.ndarray
    returns: np.ndarray
    codes: np.ndarray
    names: tuple[str, ...]
    means: tuple[Expectation, ...]


@dataclass(frozen=True)
class RunNumbers:
    run: Run
    log: Dataset | None
    verdicts: tuple[Verdict, ...]
    judgements: tuple[Mapping[str, Any] | None, ...]  # of each member, as `Judgement.to_dict` has it
    expectations: tuple[Expectation, ...]
    logged: Logged | None
    differences: tuple[tuple[Member, Differences], ...]


def run_numbers(run: Run, log: Dataset | None, limit: float | None = None) -> RunNumbers:
    """Policies for a range of limits are shown at `limit`, or at the one that the run watched them at."""
    judgements = run.kept_judgements
    found: list[Expectation] = []
    for member, judgement in zip(run.members, judgements, strict=True):
        found += expectations_of(run, member, judgement)
    changed = []
    if log is not None:
        pairs = zip(run.members, run.artifacts, strict=False)
        changed = [
            (m, differences(log, a.at_limit(m.limit if limit is None else limit)))
            for m, a in list(pairs)[:MOST_DIFFERENCES]
            if a.has_policy and fits(a, log)
        ]
    return RunNumbers(
        run=run,
        log=log,
        verdicts=tuple(run.verdicts),
        judgements=judgements,
        expectations=tuple(found),
        logged=None if log is None else logged_of(log, run.configuration.discount),
        differences=tuple(changed),
    )


def fits(artifact: Any, log: Dataset) -> bool:
    return (artifact.observation_dim, artifact.action_dim) == (log.observations.shape[1], log.actions.shape[1])


def named(run: Run, member: Member) -> str:
    """The seed and the limit of a member, where members differ in them."""
    words = [f"seed {member.seed}"] if len({m.seed for m in run.members}) > 1 else []
    words += [f"limit {member.limit:g}"] if len({m.limit for m in run.members}) > 1 else []
    return ", ".join(words) or "policy"


def expectations_of(run: Run, member: Member, judgement: Mapping[str, Any] | None) -> list[Expectation]:
    """What critics, held-out episodes and a simulation say of one member."""
    discount, horizon, name = run.configuration.discount, run.configuration.horizon, named(run, member)
    found = []
    if judgement is not None:
        earned, spent = judgement["returned"], judgement["cost"]
        least, most = bounds_of_return(judgement) or (None, None)
        found.append(
            Expectation(
                name,
                f"episodes set aside, bounds at {judgement['confidence']:.0%}",
                *(earned["value"], spent["value"], least, most, spent["lower"], spent["upper"]),
                over_limit=judgement.get("share_over_limit"),
            )
        )
    trained, tested = last_row(run.metrics, member, "policy"), last_row(run.evaluations, member)
    if "qc_start" in trained and "qr_start" in trained:
        returned, cost = (over_horizon(float(trained[key]), discount, horizon) for key in ("qr_start", "qc_start"))
        found.append(Expectation(name, "the critics, at a steady pace", returned, cost))
    if {"discounted_return", "discounted_cost", "length"} <= set(tested):
        episodes = run.configuration.extras.get("episodes")
        returned, cost, over, steps = simulated(tested)
        found.append(Expectation(name, f"simulation, {steps}", returned, cost, over_limit=over, episodes=episodes))
    return found


def bounds_of_return(judgement: Mapping[str, Any]) -> tuple[float, float] | None:
    """What the episodes set aside bound the return by; None where it is an estimate without a bound."""
    earned = judgement["returned"]
    return (earned["lower"], earned["upper"]) if judgement.get("return_is_bounded") else None


def simulated(tested: Mapping[str, Any]) -> tuple[float, float, float | None, str]:
    """Discounted return and cost of simulated episodes, the share of them over the limit, and over how many steps: of
    episodes that are longer than the log's, the first as many."""
    length = f"{tested['length']:.0f} steps"
    if "first_steps" not in tested:
        returned, cost = float(tested["discounted_return"]), float(tested["discounted_cost"])
        return returned, cost, tested.get("share_over_limit"), f"{length} an episode"
    returned, cost = float(tested["first_discounted_return"]), float(tested["first_discounted_cost"])
    return returned, cost, tested["first_share_over_limit"], f"the first {tested['first_steps']} of {length}"


def logged_of(log: Dataset, discount: float) -> Logged:
    table, (codes, names) = episode_table(log, discount), sources(log)
    shown, of_episode = thinned(len(table), MOST_EPISODES), codes[table.start]
    means = []
    for code, name in enumerate(names):
        mine = of_episode == code
        means.append(
            Expectation(
                name if log.source is not None else "the log",
                "in the log",
                float(table.discounted_returns[mine].mean()),
                float(table.discounted_costs[mine].mean()),
                episodes=int(mine.sum()),
            )
        )
    return Logged(
        table.discounted_costs[shown], table.discounted_returns[shown], of_episode[shown], names, tuple(means)
    )
