"""The command that makes a run again, from its configuration."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ringfence.algorithms.named import method_of
from ringfence.data import ColumnMapping
from ringfence.data.columnmapping import join_names
from ringfence.limits import DISCOUNT
from ringfence.training import Configuration, defaults

SCHEDULE = ("log_every", "evaluate_every", "checkpoint_every")


def command_of(configuration: Configuration) -> str | None:
    """The command line; None for several limits in one run, which only Python can ask for."""
    limits = {member.limit for member in configuration.members}
    ranged = configuration.settings.get("limits")
    if len(limits) > 1 or (ranged is not None and limits != {sum(ranged) / 2}):
        return None
    asked = ["--limit", repr(limits.pop())] if ranged is None else ["--limit-range", *map(repr, map(float, ranged))]
    schedule, extras = configuration.schedule, configuration.extras
    origin = configuration.log.origin or {"source": "LOG"}
    words = ["ringfence", "train", str(origin["source"]), *reading_words(origin.get("options", {}))]
    words += [*asked, "--method", configuration.method, "--steps", str(schedule.steps)]
    words += ["--seeds", *(str(member.seed) for member in configuration.members)]
    words += ["--discount", repr(configuration.discount)] if configuration.discount != DISCOUNT else []
    if changed := changed_settings(configuration):
        words += ["--set", *(f"{name}={json.dumps(value)}" for name, value in changed.items())]
    for name in ("task", "cost"):
        words += [f"--{name}", str(extras[name])] if extras.get(name) else []
    words += ["--horizon", str(extras["horizon"])] if extras.get("horizon") else []
    if extras.get("episodes", defaults.EPISODES) != defaults.EPISODES:
        words += ["--episodes", str(extras["episodes"])]
    for name in SCHEDULE:
        if getattr(schedule, name) != getattr(defaults, name.upper()):
            words += [f"--{name.replace('_', '-')}", str(getattr(schedule, name))]
    words += ["--keep-every", str(extras["keep_every"])] if extras.get("keep_every") else []
    words += ["--holdout", repr(float(extras.get("holdout", 0.0)))]
    words += ["--tensorboard"] if extras.get("tensorboard") else []
    return shlex.join(words)


def changed_settings(configuration: Configuration) -> dict[str, Any]:
    """The settings that are not the method's own defaults; limits and discount have options of their own."""
    usual = json.loads(json.dumps(asdict(method_of(configuration.method))))
    return {
        name: value
        for name, value in configuration.settings.items()
        if name not in ("limit", "limits", "discount") and (name not in usual or usual[name] != value)
    }


def reading_words(options: Mapping[str, Any]) -> list[str]:
    """How the log was read, as the command line says it."""
    words: list[str] = []
    for name in ("action_low", "action_high"):
        given = options.get(name)
        if given is not None:
            values = given if isinstance(given, list | tuple) else [given]
            words += [f"--{name.replace('_', '-')}", *(repr(float(value)) for value in values)]
    for name in ("csv_delimiter", "csv_decimal"):
        if options.get(name):
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    usual = asdict(ColumnMapping())
    given = dict(options.get("columns") or {})
    changed = {
        ours: theirs for ours, theirs in given.items() if ours not in usual or _plain(usual[ours]) != _plain(theirs)
    }
    if changed:
        words += ["--columns", *(f"{ours}={_joined(theirs)}" for ours, theirs in changed.items())]
    return words


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _joined(value: Any) -> str:
    return "" if value is None else join_names(value)
