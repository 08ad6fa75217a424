"""An experiment as data: a frozen list of cells, each with a fingerprint of all of its settings.

A cell is one training run: a log, a method with its settings, a limit, a seed, a number of steps and, where there is a
simulator, how it is evaluated. Two cells with the same fingerprint are the same run, whichever experiment they are in, as
long as the code is the same: its digest is in a cell's result.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any

from ringfence.errors import InvalidSetting, UnreadableFile
from ringfence.files import digest, file_word
from ringfence.limits import check_limit
from ringfence.training import defaults

FORMAT = 1  # of cells and results; changes when the same cell would mean another run


@dataclass(frozen=True)
class LogSource:
    """Where a log comes from: a built-in task (`rows` transitions made with `seed`), or a file of the user."""

    source: str
    rows: int | None = None  # None: a file
    seed: int = 0
    reading: str = "{}"  # how to read a file: options of `ringfence.load` as JSON, so that a source can be hashed

    @property
    def builtin(self) -> bool:
        return self.rows is not None

    @property
    def name(self) -> str:
        return self.source if self.builtin else Path(self.source).stem

    @property
    def options(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.reading)
        return found

    def fingerprint(self) -> str:
        """A digest of what the log is made from (built-in), or of the file's bytes and how it is read."""
        if self.rows is not None:
            from ringfence.behaviour.datasets import dataset_path

            return short_digest(dataset_path(self.source, self.rows, self.seed).name)
        try:
            with open(self.source, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UnreadableFile(f"cannot read the log {self.source} ({error.strerror})") from error
        return short_digest([content, self.options])


@dataclass(frozen=True)
class Variant:
    """A method with a preset and settings, under the name that tables and figures use."""

    label: str
    method: str
    preset: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Any:
        from ringfence.algorithms.named import method_of

        return method_of(self.method, self.settings, self.preset)

    @property
    def default_steps(self) -> int:
        return defaults.steps_of(self.make())


@dataclass(frozen=True)
class Schedule:
    """How long a cell trains and how it is looked at."""

    steps: int = defaults.STEPS
    evaluate_every: int = defaults.EVALUATE_EVERY
    episodes: int = defaults.EPISODES  # of each evaluation on the way
    test_episodes: int = defaults.TEST_EPISODES  # of the last iterate, other ones than evaluations on the way have used
    log_every: int = defaults.LOG_EVERY
    checkpoint_every: int = defaults.CHECKPOINT_EVERY


@dataclass(frozen=True)
class Cell:
    """One training run. `hyperparameters` are all of the method's, so that a changed default is another cell."""

    log: LogSource
    log_fingerprint: str
    variant: Variant
    hyperparameters: Mapping[str, Any]
    limit: float
    seed: int
    schedule: Schedule
    task: str | None = None
    holdout: float = 0.0  # share of the episodes set aside to judge and choose by

    @cached_property
    def fingerprint(self) -> str:
        # How often metrics are logged and checkpoints written does not change what is learned.
        schedule = asdict(self.schedule)
        del schedule["log_every"], schedule["checkpoint_every"]
        identity = [FORMAT, self.log_fingerprint, self.variant.method, self.hyperparameters, self.limit, self.seed]
        return short_digest([*identity, schedule, self.task, *([self.holdout] if self.holdout else [])])

    @cached_property
    def id(self) -> str:
        """A file name that a reader understands and that no other cell has. Long words are cut off."""
        words = (self.log.name, self.variant.label, f"limit{self.limit:g}", f"seed{self.seed}", self.fingerprint[:8])
        return "-".join(file_word(word) for word in words)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Cell":
        log = LogSource(**value["log"])
        rest = {name: value[name] for name in ("log_fingerprint", "hyperparameters", "limit", "seed", "task")}
        rest["holdout"] = value.get("holdout", 0.0)
        return cls(log=log, variant=Variant(**value["variant"]), schedule=Schedule(**value["schedule"]), **rest)


@dataclass(frozen=True)
class Experiment:
    """A named, ordered list of cells. The order is the order in which they are started."""

    name: str
    cells: tuple[Cell, ...]
    own_steps: bool = False  # each method trains for as many steps as it does by default

    def __post_init__(self) -> None:
        ids = [cell.id for cell in self.cells]
        if len(set(ids)) < len(ids):
            twice = next(name for name in ids if ids.count(name) > 1)
            raise InvalidSetting(f"the grid holds the cell {twice} twice; give each variant, limit and seed once")
        if not ids:
            raise InvalidSetting("the grid is empty: nothing is left of tasks, methods, limits and seeds")

    @property
    def fingerprint(self) -> str:
        return short_digest([self.name, [cell.fingerprint for cell in self.cells]])


def grid(
    logs: Sequence[tuple[LogSource, str | None]],
    variants: Sequence[Variant],
    limits: Mapping[str, Sequence[float]] | Sequence[float],
    seeds: Sequence[int],
    schedule: Schedule,
    holdout: float = 0.0,
    *,
    own_steps: bool = False,
) -> tuple[Cell, ...]:
    """Every combination of log (with the task it is evaluated in), variant, limit and seed. All of the first seed come
    first, so that a part of the cells is already a comparison. `limits` may differ between logs, by their names. With
    `own_steps` each variant trains for its method's default number of steps in place of the schedule's."""
    for limit in chain(*limits.values()) if isinstance(limits, Mapping) else limits:
        check_limit(limit)  # before the logs, which may have to be made
    fingerprints = {source: source.fingerprint() for source, _ in logs}
    parameters = {variant.label: hyperparameters(variant) for variant in variants}
    schedules = {v.label: replace(schedule, steps=v.default_steps) if own_steps else schedule for v in variants}
    return tuple(
        Cell(
            source,
            fingerprints[source],
            variant,
            parameters[variant.label],
            float(limit),
            int(seed),
            schedules[variant.label],
            task,
            holdout,
        )
        for seed, variant, (source, task) in product(seeds, variants, logs)
        for limit in (limits[source.name] if isinstance(limits, Mapping) else limits)
    )


def hyperparameters(variant: Variant) -> dict[str, Any]:
    """All settings of the variant's method as JSON has them, without the limit: that belongs to the cell."""
    values = asdict(replace(variant.make(), limit=None))
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def variants_of(label: str, method: str, preset: str, settings: Mapping[str, Any], varied: Mapping[str, Sequence[Any]]
) -> list[Variant]:  # fmt: skip
    """One variant for each combination of the `varied` settings, the values in its label."""
    names = list(varied)
    made = []
    for values in product(*varied.values()):
        chosen = dict(zip(names, values, strict=True))
        words = [label, *(f"{name}={value}" for name, value in chosen.items())]
        made.append(Variant(" ".join(words), method, preset, {**settings, **chosen}))
    return made


def choose(known: Iterable[str], wanted: Sequence[str] | None, what: str) -> list[str]:
    """Those of `known` that are wanted, in the order of `wanted`; all of them if nothing is said."""
    known = list(known)
    if wanted is None:
        return known
    for name in wanted:
        if name not in known:
            raise InvalidSetting(f"no {what} here is called {name!r}; there are {', '.join(known)}")
    return list(wanted)


def short_digest(value: Any) -> str:
    """Enough of a digest to tell cells apart, and short enough for a file's name."""
    return digest(value)[:16]
