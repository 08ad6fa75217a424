"""The configuration of a run: what `config.json` holds, checked whenever it is read.

Two hashes protect it. `sha256` covers the whole file, so that an edit by hand is noticed. The *identity* covers what the
numbers of a run depend on: method and settings, members, schedule (without the number of steps, which may grow), log and
what computes it. Every checkpoint carries the identity, so that it cannot be used by another run.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from ringfence.errors import CheckpointError, InvalidSetting
from ringfence.files import sealed
from ringfence.limits import check_limit
from ringfence.training import defaults
from ringfence.values import LARGEST_COUNT, is_fraction, is_whole

FORMAT = 2
LARGEST_SEED = 2**32 - 1
READING = ("columns", "action_low", "action_high", "csv_delimiter", "csv_decimal")  # options that a log is read with


class Member(NamedTuple):
    """One policy of a run: its random seed and its limit on the discounted cost."""

    seed: int
    limit: float


@dataclass(frozen=True)
class Schedule:
    """For how long, and how often to look."""

    steps: int = defaults.STEPS
    log_every: int = defaults.LOG_EVERY
    evaluate_every: int = defaults.EVALUATE_EVERY
    checkpoint_every: int = defaults.CHECKPOINT_EVERY

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_count(name, value)

    @property
    def intervals(self) -> tuple[int, ...]:
        return self.log_every, self.evaluate_every, self.checkpoint_every


def check_count(name: str, value: Any) -> None:
    """Raise unless it is a number of steps or of episodes."""
    if not is_whole(value) or not 1 <= value <= LARGEST_COUNT:
        raise InvalidSetting(f"{name} must be a whole number from 1 to {LARGEST_COUNT}, not {value!r}")


@dataclass(frozen=True)
class LogRecord:
    """Which log a run learned from. `origin` says how to load it again: {"source": ..., ...}, None for one in memory."""

    name: str
    rows: int
    fingerprint: str
    horizon: int  # steps of the longest episode
    origin: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Configuration:
    """Enough to make a run again, or to go on with it."""

    method: str
    settings: Mapping[str, Any]  # of the method, without the limit: each member has one
    members: tuple[Member, ...]
    schedule: Schedule
    log: LogRecord
    extras: Mapping[str, Any] = field(default_factory=dict)  # task, episodes, ...: how it is evaluated and watched
    computed_by: tuple[Mapping[str, str], ...] = ()  # what computes: at the start, then each change
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_members(self.members)

    @property
    def discount(self) -> float:
        return float(self.settings["discount"])

    @property
    def horizon(self) -> int:
        return self.log.horizon

    @property
    def task(self) -> str | None:
        return self.extras.get("task")

    def to_json(self) -> dict[str, Any]:
        content = {
            "format": FORMAT,
            "method": self.method,
            "hyperparameters": dict(self.settings),
            "members": [list(member) for member in self.members],
            "schedule": asdict(self.schedule),
            "log": asdict(self.log),
            "extras": dict(self.extras),
            "computed_by": [dict(entry) for entry in self.computed_by],
            "versions": dict(self.versions),
        }
        return sealed(json.loads(json.dumps(content)))  # tuples become lists, as they will be when it is read

    def identity(self) -> dict[str, Any]:
        """What the numbers depend on, apart from how long the run goes on."""
        content = self.to_json()
        schedule = {name: value for name, value in content["schedule"].items() if name != "steps"}
        return {
            "method": content["method"],
            "hyperparameters": content["hyperparameters"],
            "members": content["members"],
            "schedule": schedule,
            "log": content["log"]["fingerprint"],
            "extras": content["extras"],
            "computed_by": content["computed_by"][:1],
        }

    def longer(self, steps: int) -> "Configuration":
        return replace(self, schedule=replace(self.schedule, steps=steps))


def parse(content: Any, where: str) -> Configuration:
    """A configuration from JSON; every value is checked as if a user had typed it."""
    if not isinstance(content, dict):
        raise CheckpointError(f"{where} is damaged: it is no JSON object")
    if content.get("format") != FORMAT:
        raise CheckpointError(
            f"{where} has format {content.get('format', 1)!r}, this ringfence reads format {FORMAT}: "
            "the run belongs to another version"
        )
    try:
        configuration = _parse(content)
    except KeyError as error:
        raise CheckpointError(f"{where} is damaged: it lacks {error}") from None
    except (TypeError, ValueError, AttributeError, OverflowError, InvalidSetting) as error:
        raise CheckpointError(f"{where} is damaged or was edited: {error}") from None
    if content != sealed(content):
        raise CheckpointError(
            f"{where} was changed after ringfence wrote it (its checksum does not match); "
            "undo the change, or start a new run with the settings that you want"
        )
    return configuration


def _parse(content: Mapping[str, Any]) -> Configuration:
    log, settings = dict(content["log"]), dict(content["hyperparameters"])
    if not is_fraction(settings["discount"]):
        raise InvalidSetting(f"discount must be a number from 0 up to (but not) 1, not {settings['discount']!r}")
    for name, wanted in (("name", str), ("fingerprint", str), ("rows", int), ("horizon", int)):
        if not isinstance(log[name], wanted) or isinstance(log[name], bool):
            raise InvalidSetting(f"log.{name} must be {'text' if wanted is str else 'a whole number'}")
    if log["origin"] is not None:
        _check_origin(dict(log["origin"]))
    extras = dict(content["extras"])
    if not is_fraction(extras.get("holdout", 0.0)):
        raise InvalidSetting(f"holdout must be a number from 0 up to (but not) 1, not {extras['holdout']!r}")
    if not is_whole(extras.get("episodes", 1)) or extras.get("episodes", 1) < 1:
        raise InvalidSetting(f"episodes must be at least 1, not {extras['episodes']!r}")
    if not is_whole(extras.get("horizon", 1)) or extras.get("horizon", 1) < 1:
        raise InvalidSetting(f"horizon must be at least 1 step, not {extras['horizon']!r}")
    if "keep_every" in extras:
        check_count("keep_every", extras["keep_every"])
    for name in ("task", "cost"):
        if not isinstance(extras.get(name), str | None):
            raise InvalidSetting(f"{name} must be text")
    if not isinstance(content["method"], str):
        raise InvalidSetting("method must be text")
    if not content["computed_by"]:
        raise InvalidSetting("computed_by is empty")
    return Configuration(
        method=content["method"],
        settings=settings,
        members=tuple(Member(*member) for member in content["members"]),
        schedule=Schedule(**content["schedule"]),
        log=LogRecord(**log),
        extras=extras,
        computed_by=tuple(dict(entry) for entry in content["computed_by"]),
        versions=dict(content["versions"]),
    )


def _check_origin(origin: Mapping[str, Any]) -> None:
    if not isinstance(origin["source"], str):
        raise InvalidSetting("log.origin.source must be text")
    if unknown := sorted(set(dict(origin.get("options", {}))) - set(READING)):
        raise InvalidSetting(f"log.origin.options has {unknown[0]!r}; it may have {', '.join(READING)}")


def check_members(members: tuple[Member, ...]) -> None:
    if not members:
        raise InvalidSetting("a run needs at least one seed and one limit")
    for seed, limit in members:
        if not is_whole(seed) or not 0 <= seed <= LARGEST_SEED:
            raise InvalidSetting(f"a seed must be a whole number from 0 to {LARGEST_SEED}, not {seed!r}")
        check_limit(limit)
    if len(set(members)) < len(members):
        raise InvalidSetting("the same seed and limit appear twice")


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Where two identities differ, such as "hyperparameters.tau is 0.02, not 0.5"."""
    found = []
    for name in sorted({*ours, *theirs}):
        mine, other = ours.get(name), theirs.get(name)
        if isinstance(mine, dict) and isinstance(other, dict):
            found += differences(mine, other, f"{prefix}{name}.")
        elif mine != other:
            found.append(f"{prefix}{name} is {other!r}, not {mine!r}")
    return found
