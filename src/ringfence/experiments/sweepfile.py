"""A user's own grid, from a small TOML (or YAML) file.

log = "my_logs.parquet"           # or a built-in task's name with `rows`; relative to this file
limits = [20, 30]
seeds = [0, 1, 2]
steps = 50_000                    # without it: each method's own, as with `ringfence train`
task = "hopper-torque"            # only where there is a simulator
holdout = 0.2                     # set episodes aside, by which a policy is chosen at the end

[[methods]]
method = "cpq"
grid = { anchor = [0.4, 1.0] }    # each combination is a variant

[[methods]]
method = "bc-safe"
"""

import json
import math
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ringfence.data import ColumnMapping
from ringfence.data.csvfiles import CsvStyle
from ringfence.errors import InvalidSetting, MissingExtra, UnreadableFile
from ringfence.experiments.grid import Experiment, LogSource, Schedule, Variant, grid, variants_of
from ringfence.limits import Limit
from ringfence.tasks import TASKS, find
from ringfence.training.configuration import LARGEST_SEED, READING
from ringfence.values import LARGEST_COUNT, is_fraction, is_number, is_whole

TOP = (
    "name",
    "log",
    "rows",
    "log_seed",
    *READING,
    "task",
    "limits",
    "limit_kind",
    "horizon",
    "seeds",
    "methods",
    "holdout",
)
SCHEDULE = tuple(field.name for field in fields(Schedule))
METHOD = ("method", "preset", "label", "settings", "grid")
ROWS = 500_000


def read_sweep(path: str | Path) -> Experiment:
    """The experiment that a file describes; an error names the key that is wrong."""
    path = Path(path)
    value = read_file(path)
    require_known(value, (*TOP, *SCHEDULE), str(path))
    for name in ("log", "limits", "methods"):
        if name not in value:
            raise InvalidSetting(f"{path} has no {name!r}; it needs at least log, limits and methods")
    schedule = Schedule(**{name: number(value, name, path) for name in SCHEDULE if name in value})
    variants = [variant for entry in listed(value, "methods", path) for variant in read_method(entry, path)]
    labels = [variant.label for variant in variants]
    for label in labels:
        if labels.count(label) > 1:
            raise InvalidSetting(f"{path}: two methods are called {label!r}; give each a label of its own")
    source, task = read_log(value, path), text(value, "task", path) if "task" in value else None
    if task is not None:
        find(task)
    limits = read_limits(value, variants, path)
    seeds = listed(value, "seeds", path) if "seeds" in value else [0, 1, 2]
    for seed in seeds:
        require_seed(seed, f"{path}: each of 'seeds'")
    own_steps = "steps" not in value
    cells = grid([(source, task)], variants, limits, seeds, schedule, share(value, path), own_steps=own_steps)
    return Experiment(read_name(value, path), cells, own_steps)


def read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(f"cannot read the grid {path} ({error})") from error
    try:
        value = parse_yaml(text) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
    except ValueError as error:
        raise UnreadableFile(f"{path} is not valid TOML or YAML: {error}") from error
    except RecursionError:
        raise UnreadableFile(f"{path} has lists or tables nested too deeply to be a grid") from None
    if not isinstance(value, dict):
        raise InvalidSetting(f"{path} must be a table of names and values, such as log = ... and limits = ...")
    for name, found in value.items():
        if holds_huge_number(found):
            raise InvalidSetting(
                f"{path}: {name!r} holds a whole number that is larger than any that can be computed with"
            )
    return value


def holds_huge_number(value: Any) -> bool:
    """Whether a whole number in it is beyond float64: Python reads them of any length and fails when it computes."""
    if isinstance(value, dict | list):
        return any(map(holds_huge_number, value.values() if isinstance(value, dict) else value))
    return is_whole(value) and abs(value) > sys.float_info.max


def parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("a grid in YAML needs PyYAML: pip install pyyaml, or write it in TOML") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from error


def read_name(value: Mapping[str, Any], path: Path) -> str:
    """The name of the experiment, which is that of a directory too."""
    name = text(value, "name", path) if "name" in value else path.stem
    if name in ("", ".", "..") or Path(name).name != name:
        raise InvalidSetting(f"{path}: 'name' is that of a directory in the store, without a path, not {name!r}")
    return name


def read_log(value: Mapping[str, Any], path: Path) -> LogSource:
    name, seed = text(value, "log", path), value.get("log_seed", 0)
    require_seed(seed, f"{path}: 'log_seed'")
    if name in TASKS:
        require_absent(value, READING, f"is for a log in a file, and {name!r} is a built-in log", path)
        return LogSource(name, number(value, "rows", path) if "rows" in value else ROWS, seed)
    builtin = f"is for built-in logs ({', '.join(TASKS)}), and {name!r} is a file"
    require_absent(value, ("rows", "log_seed"), builtin, path)
    reading = {key: value[key] for key in READING if key in value}
    if not isinstance(reading.get("columns", {}), dict):
        raise InvalidSetting(f"{path}: 'columns' is a table such as {{ rewards = \"profit\" }}")
    ColumnMapping.of(reading.get("columns", {}))  # an unknown word is an error now, not in every worker
    for bound in ("action_low", "action_high"):
        numbers = reading.get(bound, 0.0)
        if not all(map(is_number, numbers if isinstance(numbers, list) else [numbers])):
            raise InvalidSetting(f"{path}: {bound!r} is a number, or a list of one for each action, not {numbers!r}")
    for key in ("csv_delimiter", "csv_decimal"):
        if key in reading:
            text(value, key, path)
    CsvStyle(reading.get("csv_delimiter"), reading.get("csv_decimal", "."))
    return LogSource(str((path.parent / name).absolute()), reading=json.dumps(reading, sort_keys=True))


def read_method(entry: Any, path: Path) -> list[Variant]:
    if isinstance(entry, str):
        entry = {"method": entry}
    if not isinstance(entry, dict) or "method" not in entry:
        raise InvalidSetting(f"{path}: each of 'methods' is a name or a table with 'method', not {entry!r}")
    require_known(entry, METHOD, f"{path}: a method")
    preset = str(entry.get("preset", "default"))
    plain = entry["method"] if preset == "default" else f"{entry['method']}-{preset}"
    settings, varied = entry.get("settings", {}), entry.get("grid", {})
    for key, table in (("settings", settings), ("grid", varied)):
        if not isinstance(table, dict):
            raise InvalidSetting(f"{path}: {key!r} of a method is a table of its settings, not {table!r}")
        if "limit" in table:
            raise InvalidSetting(f"{path}: the limit is given by 'limits', not by the {key!r} of a method")
    for name, values in varied.items():
        if not isinstance(values, list) or not values:
            raise InvalidSetting(f"{path}: grid.{name} must be a list of values, not {values!r}")
    label = line(entry, "label", path) if "label" in entry else str(plain)
    variants = variants_of(label, str(entry["method"]), preset, settings, varied)
    for variant in variants:
        variant.make()  # an unknown method or setting is an error now, not in every worker
    return variants


def read_limits(value: Mapping[str, Any], variants: list[Variant], path: Path) -> list[float]:
    """Discounted limits. Given per step or per episode they are converted with the methods' discount, over a horizon that
    the file states: `ringfence train` takes the log's, which is not read here."""
    kind, horizon = value.get("limit_kind", "discounted"), value.get("horizon", math.inf)
    if not isinstance(horizon, int | float) or isinstance(horizon, bool):
        raise InvalidSetting(f"{path}: 'horizon' must be a number of steps, not {horizon!r}")
    if kind == "discounted":
        require_absent(value, ("horizon",), "is for limits per step or per episode ('limit_kind')", path)
    if kind in ("step", "episode") and "horizon" not in value:
        raise InvalidSetting(f"{path}: limits per {kind} need the 'horizon', an episode's steps")
    discounts = {variant.make().discount for variant in variants}
    if kind != "discounted" and len(discounts) > 1:
        raise InvalidSetting(f"{path}: limits per {kind} mean different things at the discounts {sorted(discounts)}")
    given = listed(value, "limits", path)
    if not all(isinstance(limit, int | float) and not isinstance(limit, bool) for limit in given):
        raise InvalidSetting(f"{path}: limits are numbers, not {given}")
    discount = discounts.copy().pop()
    limits = [Limit.of(limit, kind, discount=discount, horizon=horizon).discounted for limit in given]
    for variant in variants:
        require_in_range(variant, limits, path)
    return limits


def require_in_range(variant: Variant, limits: list[float], path: Path) -> None:
    """A method with a range of limits of its own cannot be held to one outside."""
    from ringfence.launch import check_in_range

    try:
        check_in_range(variant.make(), limits)
    except InvalidSetting as error:
        raise InvalidSetting(f"{path}: {variant.label}: {error}; change 'limits' or the method's range") from error


def listed(value: Mapping[str, Any], name: str, path: Path) -> list[Any]:
    found = value[name]
    if not isinstance(found, list) or not found:
        raise InvalidSetting(f"{path}: {name!r} must be a list with at least one entry, not {found!r}")
    return found


def share(value: Mapping[str, Any], path: Path) -> float:
    """The share of the episodes that every cell sets aside."""
    found = value.get("holdout", 0.0)
    if not is_fraction(found):
        raise InvalidSetting(f"{path}: 'holdout' is a share of the episodes, at least 0 and below 1, not {found!r}")
    return float(found)


def number(value: Mapping[str, Any], name: str, path: Path) -> int:
    found = value[name]
    if not is_whole(found) or not 1 <= found <= LARGEST_COUNT:
        raise InvalidSetting(f"{path}: {name!r} must be a whole number from 1 to {LARGEST_COUNT}, not {found!r}")
    return int(found)


def text(value: Mapping[str, Any], name: str, path: Path) -> str:
    found = value[name]
    if not isinstance(found, str) or not found or "\0" in found:
        raise InvalidSetting(f"{path}: {name!r} must be text, not {found!r}")
    return found


def line(value: Mapping[str, Any], name: str, path: Path) -> str:
    """Text that can be read in a table."""
    found = text(value, name, path)
    if not found.strip() or not found.isprintable():
        raise InvalidSetting(f"{path}: {name!r} must be a line of text, not {found!r}")
    return found


def require_absent(value: Mapping[str, Any], names: Iterable[str], why: str, path: Path) -> None:
    """Refuse what would be ignored."""
    for name in names:
        if name in value:
            raise InvalidSetting(f"{path}: {name!r} {why}; remove it")


def require_seed(seed: Any, what: str) -> None:
    if not is_whole(seed) or not 0 <= seed <= LARGEST_SEED:
        raise InvalidSetting(f"{what} must be a whole number from 0 to {LARGEST_SEED}, not {seed!r}")


def require_known(value: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in value:
        if name not in known:
            raise InvalidSetting(f"{where} has an unknown key {name!r}; there are {', '.join(known)}")
