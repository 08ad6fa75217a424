"""Judging the policies of runs, from the episodes that their training set aside."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ringfence.data.dataset import Dataset
from ringfence.deploy import Policy
from ringfence.errors import CheckpointError, EmptyData, InvalidSetting
from ringfence.evaluation.ope.choose import Choice, choose
from ringfence.evaluation.ope.judge import Judge
from ringfence.evaluation.ope.judgement import Judgement
from ringfence.files import write_json
from ringfence.training import Configuration, Run, defaults
from ringfence.training.rundir import JUDGEMENT_FILE, KEPT, RunDirectory

HOLDOUT_SEED = 0


def set_aside(log: Dataset, share: float) -> tuple[Dataset, Dataset | None]:
    """(what is learned from, what judges). Nothing is set aside with a share of 0."""
    if share == 0:
        return log, None
    return log.hold_out(share, HOLDOUT_SEED)


def set_aside_by(configuration: Configuration, log: Dataset) -> tuple[Dataset, Dataset | None]:
    """The same, as a run did it. It depends on the sources too, which are no part of a log's fingerprint."""
    learned, judging = set_aside(log, float(configuration.extras.get("holdout", 0.0)))
    if configuration.extras.get("learned_from", learned.fingerprint) != learned.fingerprint:
        raise CheckpointError(
            f"{log.name} has other sources than when the run began, so that other episodes would be set aside; restore them"
        )
    return learned, judging


def parts_of(run: Run, log: Dataset) -> tuple[Dataset, Dataset]:
    """The episodes of its log that a run learned from, and those that it set aside."""
    if log.fingerprint != run.configuration.log.fingerprint:
        raise CheckpointError(f"{log.name} is not the log that {run.path} was trained on (its fingerprint differs)")
    learned, judging = set_aside_by(run.configuration, log)
    if judging is None:
        raise InvalidSetting(
            f"{run.path} set no episodes aside to judge by; train with --holdout 0.2, or give a log it was not trained on"
        )
    return learned, judging


def judge_run(
    run: Run, learned: Dataset, judging: Dataset, *, confidence: float = defaults.CONFIDENCE
) -> list[Judgement]:
    """The judgement on each member's policy, kept in the run's directory if it has one."""
    judge = Judge(judging, learned, discount=run.configuration.discount, horizon=run.configuration.horizon)
    found = [
        judge(
            policy,
            member.limit,
            confidence=confidence,
            name=f"seed {member.seed}, limit {member.limit:g}",
            rows_were="not learned from",
        )
        for member, policy in zip(run.members, run.policies, strict=True)
    ]
    if run.path is not None:
        write_json(run.path / JUDGEMENT_FILE, [judgement.to_dict() for judgement in found])
    return found


def judge_at_the_end(run: Run, learned: Dataset, judging: Dataset | None) -> str | None:
    """Judge a run that has just ended. What kept it from being judged comes back as a sentence: a run without a judgement
    is still a run."""
    if judging is None or run.interrupted or not run.policies:
        return None
    try:
        run.judgements = judge_run(run, learned, judging)
    except (InvalidSetting, EmptyData) as error:
        return f"the policy could not be judged: {error}"
    if run.path is not None:
        run.write_verdict()  # again: it now says that the policy is judged
    return None


def load_policies(path: str | os.PathLike[str], *, kept: bool = False) -> tuple[dict[str, Policy], Run | None]:
    """The policies of a policy file or of a run's directory by name, and the run if they belong to one. An error
    if the run has none yet. `kept` adds those that the run kept on the way."""
    path = Path(path)
    if path.is_dir():
        run = Run.load(path)
        if not run.policies:
            raise CheckpointError(
                f"{path} has no policy yet: its policy stage has not begun or saved; go on with it: "
                f"ringfence train --resume {path}"
            )
        names = [run.directory.policy_path(member, run.members) for member in run.members]
        found = {str(name): policy for name, policy in zip(names, run.policies, strict=True)}
        if kept:
            files = run.kept_files
            for step, artifacts in run.kept.items():
                found |= {str(file): Policy(artifact) for file, artifact in zip(files[step], artifacts, strict=True)}
        return found, run
    policy = Policy.load(path)
    beside = next((Run.load(home) for home in homes_of(path) if RunDirectory(home).is_run), None)
    return {str(path): policy}, beside if beside is not None and beside.made(policy.artifact) else None


def homes_of(policy: Path) -> tuple[Path, ...]:
    """Where the run of a policy file may be: beside it, or above `kept/step-N`."""
    above = policy.absolute().parents
    return (policy.parent, above[2]) if len(above) > 2 and above[1].name == KEPT else (policy.parent,)


def choose_among_runs(
    paths: Sequence[str | os.PathLike[str]],
    log: Dataset,
    limit: float | None = None,
    *,
    kept: bool = False,
    confidence: float = defaults.CONFIDENCE,
    seed: int = 0,
) -> Choice:
    """Choose among the policies of several runs on one log, with `kept` also among those that the runs kept on the way. All
    must have set the same episodes aside."""
    policies: dict[str, Any] = {}
    runs = []
    for path in paths:
        found, run = load_policies(path, kept=kept)
        if run is None:
            raise InvalidSetting(f"{path} does not belong to a run; choose among run directories or their policies")
        policies |= found
        runs.append(run)
    shares = {float(run.configuration.extras.get("holdout", 0.0)) for run in runs}
    discounts = {run.configuration.discount for run in runs}
    if len(shares) > 1 or len(discounts) > 1:
        raise InvalidSetting(
            f"the runs differ in what they set aside ({sorted(shares)}) or in their discount ({sorted(discounts)}): "
            "what judges one has trained another"
        )
    limit = common_limit(policies.values()) if limit is None else limit
    for run in runs:
        learned, judging = parts_of(run, log)
    return choose(
        policies,
        judging,
        limit,
        reference=learned,
        discount=discounts.pop(),
        horizon=log.horizon,
        confidence=confidence,
        seed=seed,
        rows_were="not learned from",
    )


def common_limit(policies: Iterable[Policy]) -> float:
    """The one limit that all these policies were trained for; an error if there are several."""
    limits = {policy.artifact.limit for policy in policies}
    if None in limits:
        raise InvalidSetting("one of the policies takes any limit of a range; say for which to choose with --limit")
    found = sorted(limit for limit in limits if limit is not None)
    if len(found) > 1:
        raise InvalidSetting(f"the policies were trained for several limits ({found}); say which with --limit")
    return found[0]
