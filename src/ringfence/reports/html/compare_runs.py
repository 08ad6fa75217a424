"""The numbers of a page about several runs."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringfence.errors import RingfenceError
from ringfence.limits import over_horizon
from ringfence.reports.html.compare_numbers import Candidate, Chosen, Comparison, chosen_of, groups_of
from ringfence.reports.html.run_numbers import bounds_of_return, simulated
from ringfence.training import Run
from ringfence.training.verdict import last_row


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
