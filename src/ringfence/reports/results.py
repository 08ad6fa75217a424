"""Numbers of finished cells, gathered for tables and figures. Everything here is read from result files alone."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ringfence.errors import UnreadableFile
from ringfence.evaluation.statistics import between_behaviours, cost_over_limit, violation_rate
from ringfence.files import unsealed
from ringfence.values import is_number

Result = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """The seeds of one method on one log at one limit, in the order of the seeds."""

    log: str
    label: str
    limit: float
    results: tuple[Result, ...]

    @property
    def tested(self) -> bool:
        return all(result["test"] for result in self.results)

    @property
    def steps(self) -> int:
        return int(self.results[0]["cell"]["schedule"]["steps"])

    def last(self, measure: str) -> Float[np.ndarray, " seeds"]:
        """The last iterate's mean over the test's episodes, for each seed."""
        if measure == "step_cost":  # all costs over all steps, so that short episodes do not weigh more
            costs, lengths = self._test("episode_cost"), self._test("length")
            return np.array([np.sum(c) / np.sum(n) for c, n in zip(costs, lengths, strict=True)])
        return np.array([np.mean(values) for values in self._test(measure)])

    def violations(self) -> Float[np.ndarray, " seeds"]:
        """The share of the test's episodes whose discounted cost is over the limit, for each seed."""
        return np.array([violation_rate(np.array(v), self.limit) for v in self._test("discounted_cost")])

    def _test(self, measure: str) -> list[Any]:
        return [result["test"][measure] for result in self.results]

    def expected(self, measure: str) -> Float[np.ndarray, " seeds"]:
        """A metric of the last step of training, for each seed; empty if the method has no such metric."""
        rows = [result["metrics"][-1] for result in self.results if result["metrics"]]
        return np.array([row[measure] for row in rows if measure in row])

    def curve(self, measure: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, mean and standard deviation over seeds of the evaluations on the way, at steps that all seeds have."""
        by_seed = [{row["step"]: row[measure] for row in result["evaluations"]} for result in self.results]
        steps = sorted(set.intersection(*(set(rows) for rows in by_seed)))
        values = np.array([[rows[step] for step in steps] for rows in by_seed])
        return np.array(steps), values.mean(axis=0), spread(values)


def spread(values: Float[np.ndarray, "seeds *rest"]) -> Float[np.ndarray, "*rest"]:
    """The sample standard deviation over seeds (divided by their number less one); 0 of a single seed."""
    deviation: np.ndarray = values.std(axis=0, ddof=1 if len(values) > 1 else 0)
    return deviation


@dataclass(frozen=True)
class Gathered:
    """All results of an experiment, and what they are compared with."""

    name: str
    groups: tuple[Group, ...]
    references: dict[str, Any]
    asked: int  # cells, with and without a result

    @property
    def results(self) -> list[Result]:
        return [result for group in self.groups for result in group.results]

    @property
    def codes(self) -> int:
        """How many states of ringfence's code made the results."""
        return len({result.get("code") for result in self.results})

    @property
    def notes(self) -> list[str]:
        """What a reader must know of all numbers together."""
        found, notes = len(self.results), []
        if found < self.asked:
            notes.append(f"{found} of {self.asked} cells; the others have no result yet.")
        if self.codes > 1:
            notes.append(f"The cells were made by {self.codes} different states of ringfence's code.")
        return notes

    @cached_property
    def logs(self) -> list[str]:
        return list(dict.fromkeys(group.log for group in self.groups))

    @cached_property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(group.label for group in self.groups))

    def limits(self, log: str) -> list[float]:
        return sorted({group.limit for group in self.groups if group.log == log})

    @property
    def varies_limit(self) -> bool:
        return any(len(self.limits(log)) > 1 for log in self.logs)

    def of(self, log: str, label: str) -> list[Group]:
        return [group for group in self.groups if (group.log, group.label) == (log, label)]

    def longest_episode(self, log: str) -> int:
        """Steps of the longest test episode of the policies learned from this log."""
        tests = [result["test"] for group in self.groups if group.log == log for result in group.results]
        return int(max(max(test["length"]) for test in tests if test))

    def behaviour(self, log: str, which: str, how: str) -> dict[str, float] | None:
        found: dict[str, float] | None = self.references.get(log, {}).get("behaviours", {}).get(which, {}).get(how)
        return found


def gather(results: Path, described: "Described | None" = None) -> Gathered:
    """The results of an experiment, in its order: of the one that `experiment.json` names unless another is given. Other
    files beside them are left out."""
    experiment = described or read_experiment(results)
    wanted = [results / "cells" / f"{name}.json" for name in experiment.cells]
    found = [read_result(file) for file in wanted if file.exists()]
    if not found:
        raise UnreadableFile(
            f"{results} holds no results yet of the {len(wanted)} cells of {experiment.name}{what_else(results)}"
        )
    groups: dict[tuple[str, str, float], list[Result]] = {}
    for result in found:
        cell = result["cell"]
        groups.setdefault((result["cell"]["log"]["source"], cell["variant"]["label"], cell["limit"]), []).append(result)
    return Gathered(
        experiment.name,
        tuple(Group(*key, tuple(sorted(seeds, key=seed_of))) for key, seeds in groups.items()),
        {log: entry for log, entry in read_references(results).items() if belongs(entry, log, found)},
        len(wanted),
    )


def what_else(results: Path) -> str:
    """The command whose results are there, for a user who asks for others."""
    try:
        command = read_experiment(results).command
    except UnreadableFile:
        return ""
    return f"; those that are there were made by: {command}" if command else ""


def belongs(entry: Mapping[str, Any], log: str, found: Iterable[Result]) -> bool:
    """Whether what the cells of a log are compared with was measured on that log and as often as their test. What an older
    entry does not say is not compared."""
    cells = [result["cell"] for result in found if result["cell"]["log"]["source"] == log]
    said = [(entry.get("log_fingerprint"), cell.get("log_fingerprint")) for cell in cells]
    said += [(entry.get("test_episodes"), cell["schedule"].get("test_episodes")) for cell in cells]
    return all(ours == theirs for ours, theirs in said if ours is not None and theirs is not None)


def read_references(results: Path) -> dict[str, dict[str, Any]]:
    """What `references.json` says of each log; nothing if there is no such file."""
    file = results / "references.json"
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        whole = all(isinstance(entry[part], dict) for entry in found.values() for part in ("behaviours", "log"))
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        whole = False
    if not whole:
        raise UnreadableFile(f"{file} is damaged; remove it and run the experiment again, which writes it anew")
    references: dict[str, dict[str, Any]] = found
    return references


class Described(NamedTuple):
    """What `experiment.json` says: the experiment's name, the names of its cells, the command that ran it."""

    name: str
    cells: tuple[str, ...]
    command: str


def read_experiment(results: Path) -> Described:
    try:
        content = json.loads((results / "experiment.json").read_text(encoding="utf-8"))
        if not all(isinstance(cell, str) for cell in content["cells"]):
            raise ValueError("experiment.json is damaged: the names of its cells are no text")
        return Described(str(content["name"]), tuple(content["cells"]), str(content.get("command", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableFile(f"{results} holds no results of an experiment ({error})") from error


def read_result(file: Path) -> Result:
    """The result of one cell; an error that names its file if it is damaged."""
    try:
        result = unsealed(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        result = None
    if result is None or not is_result(result):
        raise UnreadableFile(f"{file} is damaged; remove it and run the sweep again, which copies it from its store")
    return result


MEASURES = ("return", "discounted_cost", "episode_cost", "length")  # of every test episode


def is_result(value: Mapping[str, Any]) -> bool:
    """Whether everything is there that tables and figures read."""
    try:
        cell, test = value["cell"], value["test"]
        texts = (cell["log"]["source"], cell["variant"]["label"])
        numbers = (cell["limit"], cell["seed"], cell["schedule"]["steps"])
        lists = (value["evaluations"], value["metrics"], *([test[name] for name in MEASURES] if test else []))
        return (
            all(isinstance(text, str) for text in texts)
            and all(is_number(number) for number in numbers)
            and all(isinstance(rows, list) for rows in lists)
            and isinstance(cell["hyperparameters"], dict)
        )
    except (KeyError, TypeError):
        return False


def seed_of(result: Result) -> int:
    return int(result["cell"]["seed"])


def across_logs(gathered: Gathered, groups: Sequence[Group]) -> dict[str, list[np.ndarray]]:
    """Normalised scores of the last iterates, an array over seeds for each group: return between the behaviours, cost
    over limit. Groups whose log has no references are left out, and costs where the limit is 0."""
    scores: dict[str, list[np.ndarray]] = {"return": [], "cost": []}
    for group in groups:
        safe, unsafe = (gathered.behaviour(group.log, which, "noise-free") for which in ("safe", "unsafe"))
        if safe and unsafe and group.tested:
            returns = group.last("return")
            scores["return"].append(
                np.array([between_behaviours(r, safe["return"], unsafe["return"]) for r in returns])
            )
            if group.limit > 0:
                costs = group.last("discounted_cost")
                scores["cost"].append(np.array([cost_over_limit(c, group.limit) for c in costs]))
    return scores
