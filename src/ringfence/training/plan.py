"""What a run is to do."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from ringfence.algorithms.interface import LAST_STAGES, Learner, RestrictsLog
from ringfence.data.dataset import Dataset
from ringfence.errors import InvalidSetting
from ringfence.training import defaults
from ringfence.training.computation import computed_by, versions
from ringfence.training.configuration import Configuration, LogRecord, Member, Schedule, check_count, check_members
from ringfence.training.population import without_limit


@dataclass(frozen=True)
class Plan:
    """What to run, for how long, and how often to look at it."""

    method: Learner  # its own limit is not used: each member has one
    members: tuple[Member, ...]
    steps: int = defaults.STEPS
    log_every: int = defaults.LOG_EVERY
    evaluate_every: int = defaults.EVALUATE_EVERY
    checkpoint_every: int = defaults.CHECKPOINT_EVERY
    keep_every: int | None = None  # policies on the way are kept, see `Run.kept`

    def __post_init__(self) -> None:
        _ = self.schedule  # refuses numbers that make no sense
        if self.keep_every is not None:
            check_count("keep_every", self.keep_every)
        check_members(self.members)
        # A method may refuse so many steps; better before anything is written.
        last = self.method.stages(self.steps)[-1].name
        if last not in LAST_STAGES:
            raise InvalidSetting(
                f'the last stage of {self.method.name} is called {last!r}; verdicts and reports look for "policy", and '
                '"value" says that no policy is learned'
            )

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.steps, self.log_every, self.evaluate_every, self.checkpoint_every)

    @property
    def stops(self) -> tuple[int, ...]:
        """Training stops at multiples of these numbers of steps, to look, to save or to keep."""
        return self.schedule.intervals + (() if self.keep_every is None else (self.keep_every,))

    def learns_from(self, log: Dataset) -> Dataset:
        """The part of the log that the method learns from; an error if it finds nothing it can use."""
        if isinstance(self.method, RestrictsLog):
            return self.method.restrict(log, [member.limit for member in self.members])
        return log

    def configuration(
        self, log: Dataset, origin: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None
    ) -> Configuration:
        """What the run directory remembers of a run of this plan on this log."""
        return Configuration(
            method=self.method.name,
            settings=json.loads(json.dumps(asdict(cast(Any, without_limit(self.method))))),
            members=self.members,
            schedule=self.schedule,
            log=LogRecord(log.name, len(log), log.fingerprint, log.horizon, origin),
            extras={**(extras or {}), **({} if self.keep_every is None else {"keep_every": self.keep_every})},
            computed_by=(computed_by(),),
            versions=versions(),
        )
