"""The numbers of a page about many policies: the cells of a sweep, or several runs. All of a page have the same evidence."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ringfence.errors import RingfenceError
from ringfence.evaluation.statistics import bootstrap_interval
from ringfence.limits import over_horizon
from ringfence.reports.html.run_numbers import bounds_of_return, simulated
from ringfence.reports.results import Described, gather, read_experiment
from ringfence.training import Run
from ringfence.training.verdict import last_row

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


# Of a sweep


def sweep_numbers(results: Path, described: Described | None = None) -> Comparison:
    """From the result files of an experiment alone, and the choice that was made at its end."""
    experiment = described or read_experiment(results)
    gathered = gather(results, experiment)
    found = [result for group in gathered.groups for result in group.results]
    tested = all(result.get("test") for result in found)
    candidates = tuple(of_cell(result, tested) for result in found)
    held_out = {result.get("id", "") for result in found if result["cell"].get("holdout")}
    choices = tuple(read_choices(results / "choice.json", held_out))
    why = (
        "a choice is made when the sweep has ended, in a store that is a directory" if held_out else
        "the cells set no episodes aside; with holdout = 0.2 in the grid's file some of them judge the policies"
    )  # fmt: skip
    return Comparison(
        kind="sweep",
        title=gathered.name,
        evidence="fresh simulated episodes" if tested else "the critics",
        measure=f"return; discounted cost, {steps_of(found)}" if tested else "discounted sums over an infinite horizon",
        axes=("discounted cost", "return")
        if tested
        else ("discounted cost, over an infinite horizon", "discounted return, over an infinite horizon"),
        candidates=candidates,
        groups=groups_of(candidates),
        choices=choices,
        why_no_choice="" if choices else why,
        missing=tuple(sorted(set(experiment.cells) - {result.get("id", "") for result in found})),
        command=experiment.command,
    )


def steps_of(results: Sequence[Mapping[str, Any]]) -> str:
    longest = max(max(result["test"]["length"]) for result in results)
    return f"over episodes of up to {longest:.0f} steps"


def of_cell(result: Mapping[str, Any], tested: bool) -> Candidate:
    cell, last = result["cell"], (result["metrics"] or [{}])[-1]
    known: dict[str, Any] = {"returned": last.get("qr_start"), "cost": last.get("qc_start")}
    if tested:
        returns, costs = (np.asarray(result["test"][name], float) for name in ("return", "discounted_cost"))
        known = {
            "returned": float(returns.mean()),
            "cost": float(costs.mean()),
            "return_interval": bootstrap_interval(returns),
            "cost_interval": bootstrap_interval(costs),
            "over_limit": float(np.mean(costs > cell["limit"])),
        }
    return Candidate(
        name=result.get("id", f"{cell['variant']['label']}, limit {cell['limit']:g}, seed {cell['seed']}"),
        log=cell["log"]["source"],
        method=cell["variant"]["label"],
        limit=float(cell["limit"]),
        seed=int(cell["seed"]),
        steps=int(cell["schedule"]["steps"]),
        verdict=str(result.get("verdict", "")),
        seconds=result.get("seconds"),
        **known,
    )


def read_choices(path: Path, cells: set[str]) -> list[Chosen]:
    """What `experiments.choosing` wrote; nothing where there is nothing to read. Of `cells`, among which to choose, some may
    have ended since then."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = [chosen_of(float(entry["limit"]), entry) for entry in content["choices"]]
        later = len(cells.difference(content["cells"]))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    since = f"; {later} of the {len(cells)} cells have ended since and had no part in the choice" if later else ""
    return [replace(choice, reason=choice.reason + since) for choice in found]


def chosen_of(limit: float, choice: Mapping[str, Any]) -> Chosen:
    sentences = {candidate["name"]: candidate["sentence"] for candidate in choice["candidates"]}
    return Chosen(limit, choice["chosen"], choice["reason"], sentences)


# Of several runs


def runs_numbers(paths: Sequence[Path], log: Any, limit: float | None, why_no_log: str = "") -> Comparison:
    runs = [Run.load(path) for path in paths]
    judged = all(j is not None for run in runs for j in run.kept_judgements)
    simulated = all(last_row(run.evaluations, member) for run in runs for member in run.members)
    evidence = "episodes set aside" if judged else "simulation" if simulated else "the critics, at a steady pace"
    pairs = zip(labels_of(runs), runs, strict=True)
    candidates = tuple(candidate for label, run in pairs for candidate in of_run(label, run, evidence))
    choices, why = choices_among(paths, runs, log, limit) if log is not None else ([], why_no_log)
    over = f"over {' and '.join(map(str, horizons_of(runs, evidence)))} steps"
    return Comparison(
        kind="comparison",
        title=f"{len(runs)} runs",
        evidence=evidence,
        measure=f"discounted, {over}",
        axes=(f"discounted cost {over}", f"discounted return {over}"),
        candidates=candidates,
        groups=groups_of(candidates),
        choices=tuple(choices),
        why_no_choice=why,
    )


def horizons_of(runs: Sequence[Run], evidence: str) -> list[int]:
    """Over how many steps the numbers of this evidence are. Simulated episodes may be shorter than the log's."""
    found = set()
    for run in runs:
        lengths = {run.configuration.horizon}
        if evidence == "simulation":
            rows = [last_row(run.evaluations, member) for member in run.members]
            lengths = {int(row.get("first_steps", round(row["length"]))) for row in rows}
        found |= lengths
    return sorted(found)


def labels_of(runs: Sequence[Run]) -> list[str]:
    """The method of each run; with the run's name where another run differs from it by more than seeds and limits, so
    that different settings, or different logs of one name, are never taken for seeds of one."""
    contents: dict[str, set[str]] = {}  # of the logs of each name
    for run in runs:
        contents.setdefault(run.configuration.log.name, set()).add(run.configuration.log.fingerprint)

    def settings(run: Run) -> str:
        given = run.configuration
        own = {name: value for name, value in given.settings.items() if name != "limit"}
        log = given.log.fingerprint if len(contents[given.log.name]) > 1 else ""
        return json.dumps([given.method, own, given.schedule.steps, log], sort_keys=True, default=str)

    kinds = Counter(method for method, _ in {(run.configuration.method, settings(run)) for run in runs})
    return [
        run.configuration.method
        if kinds[run.configuration.method] == 1
        else f"{run.configuration.method} ({run.directory.path.name})"
        for run in runs
    ]


def of_run(label: str, run: Run, evidence: str) -> list[Candidate]:
    found = []
    for member, judgement, verdict in zip(run.members, run.kept_judgements, run.verdicts, strict=True):
        trained, tested = last_row(run.metrics, member, "policy"), last_row(run.evaluations, member)
        known: dict[str, Any] = {"returned": None, "cost": None}
        if evidence == "episodes set aside" and judgement is not None:
            spent = judgement["cost"]
            known = {
                "returned": judgement["returned"]["value"],
                "cost": spent["value"],
                "return_interval": bounds_of_return(judgement),
                "cost_interval": (spent["lower"], spent["upper"]),
                "over_limit": judgement.get("share_over_limit"),
            }
        elif evidence == "simulation":
            returned, cost, over, _ = simulated(tested)
            known = {"returned": returned, "cost": cost, "over_limit": over}
        elif "qc_start" in trained and "qr_start" in trained:
            scale = over_horizon(1.0, run.configuration.discount, run.configuration.horizon)
            known = {"returned": scale * trained["qr_start"], "cost": scale * trained["qc_start"]}
        found.append(
            Candidate(
                name=run.directory.policy_path(member, run.members).relative_to(run.directory.path.parent).as_posix(),
                log=run.configuration.log.name,
                method=label,
                limit=member.limit,
                seed=member.seed,
                steps=verdict.steps,
                verdict=verdict.judgement,
                judged=str((judgement or {}).get("verdict") or ""),
                **known,
            )
        )
    return found


def choices_among(
    paths: Sequence[Path], runs: Sequence[Run], log: Any, limit: float | None
) -> tuple[list[Chosen], str]:
    """What `choose` takes at each limit, or why it cannot choose."""
    from ringfence.evaluation.ope.runs import choose_among_runs

    limits = sorted({member.limit for run in runs for member in run.members}) if limit is None else [limit]
    parent = {str(path): path.parent for path in paths}
    found = []
    try:
        for bound in limits:
            choice = choose_among_runs(list(parent), log, bound).to_dict()
            found.append(shortened(chosen_of(bound, choice), list(parent.values())))
    except RingfenceError as error:
        return [], str(error)
    return found, ""


def shortened(chosen: Chosen, folders: Sequence[Path]) -> Chosen:
    """Policies by the names that the page gives them: without the folder that their run lies in."""

    def short(name: str) -> str:
        inside = [folder for folder in folders if Path(name).is_relative_to(folder)]
        return Path(name).relative_to(inside[0]).as_posix() if inside else name

    sentences = {short(name): sentence for name, sentence in chosen.sentences.items()}
    name = None if chosen.name is None else short(chosen.name)
    reason = chosen.reason.replace(chosen.name, name) if chosen.name and name else chosen.reason
    return Chosen(chosen.limit, name, reason, sentences)


# Of both


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
