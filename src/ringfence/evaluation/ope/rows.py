"""By which rows a policy may be judged: never by those that it learned from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringfence.data.dataset import Dataset
from ringfence.deploy import Policy
from ringfence.errors import InvalidSetting
from ringfence.evaluation.ope.judge import REFERENCE_SHARE
from ringfence.evaluation.ope.judge_inputs import logs_named
from ringfence.evaluation.ope.judgement import RowsWere
from ringfence.evaluation.ope.runs import parts_of
from ringfence.training import Run


@dataclass(frozen=True, eq=False)
class JudgingRows:
    """Of a log: `judging` episodes, and the `reference` episodes if they are to be others than a part of these."""

    log: Dataset
    judging: Dataset
    reference: Dataset | None = None
    note: str = ""  # what the user should know of how they were found

    def were(self, policy: Policy, run: Run | None) -> RowsWere:
        """What is known of them: whether this policy, made by this run if it is known, learned from them."""
        about = policy.metadata
        part = about.get("learned_from", about.get("log_fingerprint"))
        if self.reference is not None and part == self.reference.fingerprint:
            return "not learned from"
        known = None if run is None else run.directory.learned_episodes()
        if known is not None:
            return "learned from" if known.among(self.judging).any() else "not learned from"
        return "learned from" if self.log.fingerprint in logs_named(about) else "unknown"


def rows_to_judge(run: Run | None, log: Dataset) -> JudgingRows:
    """The episodes of a log that may judge the policies of a run. Of the run's own log they are those that it set aside; of
    any other log all but those that it learned from."""
    if run is None:
        return JudgingRows(log, log)
    if log.fingerprint == run.configuration.log.fingerprint:
        learned, judging = parts_of(run, log)
        return JudgingRows(log, judging, learned)
    known = run.directory.learned_episodes()
    if known is None:
        return JudgingRows(
            log,
            log,
            note=f"warning: {run.path} was made before runs remembered their episodes; whether it learned from some of "
            f"{log.name} is not known",
        )
    return without_learned(log, known.among(log), str(run.path))


def without_learned(log: Dataset, learned: NDArray[np.bool_], run: str) -> JudgingRows:
    """The episodes that were not learned from. Those that were are the reference, if there are enough of them."""
    if not learned.any():
        return JudgingRows(log, log)
    if learned.all():
        raise InvalidSetting(
            f"{run} learned from every episode of {log.name}: give a log with other episodes, or train with --holdout 0.2"
        )
    reference = log.select_episodes(learned) if learned.mean() >= REFERENCE_SHARE else None
    return JudgingRows(
        log,
        log.select_episodes(~learned),
        reference,
        f"note: {run} learned from {learned.sum():,} of the {len(learned):,} episodes of {log.name}; only the others judge",
    )
