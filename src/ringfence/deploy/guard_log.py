"""A guard's log: one JSON object per line, the first of each run about the guard, the others about a step."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfence.deploy.guard_lines import VERSION, decode, encode, has_its_end
from ringfence.errors import InvalidSetting, UnreadableFile

if TYPE_CHECKING:
    from ringfence.deploy.guard import Decision, Guard

FORMAT = "ringfence-guard"


class GuardLog:
    """Lines appended to a file. After the first line nothing here raises: `failures` counts what was not written."""

    def __init__(self, path: Path, guard: "Guard", every_step: bool):
        self.failures, self._every_step, self._was_trusted = 0, every_step, True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)  # a line is in the file when it is written
            self._file.write(("\n" if _is_cut_off(path) else "") + _line(_opening(guard, every_step)))
        except OSError as error:
            raise InvalidSetting(f"cannot write the guard's log {path}: {error.strerror or error}") from error

    def write(self, guard: "Guard", seen: np.ndarray, decision: "Decision") -> None:
        changed = decision.trusted != self._was_trusted
        self._was_trusted = decision.trusted
        if not (self._every_step or changed or decision.reasons or not decision.trusted):
            return
        try:
            self._file.write(_line(_step(guard, seen, decision)))
        except Exception:  # a full disk, a closed file: the plant goes on
            self.failures += 1

    def close(self) -> None:
        try:
            self._file.close()
        except OSError:
            self.failures += 1


def _is_cut_off(path: Path) -> bool:
    """Whether the last line of a log has no end, as after a power cut. A day's log is large: only its last byte is read."""
    with path.open("rb") as file:
        return file.seek(0, 2) > 0 and file.seek(-1, 2) >= 0 and file.read() != b"\n"


def _opening(guard: "Guard", every_step: bool) -> dict[str, Any]:
    artifact, found = guard.artifact, guard.thresholds
    return {
        "event": "start",
        "format": FORMAT,
        "version": VERSION,
        "time": time.time(),
        "policy": artifact.checksum,
        "method": artifact.method,
        "observation_names": list(artifact.observation_names),
        "action_names": list(artifact.action_names),
        "units": dict(artifact.units),
        "limit": guard.limit,
        "discount": artifact.discount,
        "active": list(guard.active),
        "thresholds": {name: _listed(value) for name, value in vars(found).items()},
        "rules": {name: _listed(value) for name, value in asdict(guard.rules).items()},
        "record": "steps" if every_step else "events",
    }


def _step(guard: "Guard", seen: np.ndarray, decision: "Decision") -> dict[str, Any]:
    return {
        "event": "step",
        "time": time.time(),
        "episode": guard.episode,
        "step": guard.steps,
        "observation": seen.tolist(),
        "action": decision.action.tolist(),
        "trusted": decision.trusted,
        "source": decision.source,
        "reasons": [{k: v for k, v in vars(reason).items() if v is not None} for reason in decision.reasons],
        "corrected": decision.corrected,
        **decision.scores,
    }


def _line(value: dict[str, Any]) -> str:
    """JSON, with null for what is not finite."""
    try:
        return encode(value)
    except ValueError:  # rare, and found by the encoder at no cost
        return encode(finite(value))


def finite(value: Any) -> Any:
    """JSON's values, with None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def read_guard_log(path: str | Path) -> Iterator[dict[str, Any]]:
    """The lines of a guard's log. The last line of a run may have been cut off, as by a power cut: it is left out. Any other
    line that is damaged is an error, which names it."""
    path = Path(path)
    if not path.is_file():
        raise UnreadableFile(f"there is no guard log {path}")
    if path.stat().st_size == 0:
        raise UnreadableFile(f"{path} is not a guard's log: it is empty")
    damage: int | None = None
    opening: dict[str, Any] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, 1):
            line = decode(text, opening.get("version"))
            if number == 1 and (line is None or line.get("format") != FORMAT):
                raise UnreadableFile(
                    f"{path} is not a guard's log, or its first line is damaged: it must say {FORMAT!r}"
                )
            if line is not None and line["event"] == "start":
                opening = line
            elif line is not None and not _fits(line, opening):
                line = None
            if damage is not None and (line is None or line["event"] != "start"):
                raise _damaged(path, damage)
            if line is None and has_its_end(text):
                raise _damaged(path, number)
            damage = number if line is None else None
            if line is not None:
                yield line
        if damage is not None and text.endswith("\n"):
            raise _damaged(path, damage)


def _damaged(path: Path, number: int) -> UnreadableFile:
    return UnreadableFile(f"{path}, line {number}: not a line of a guard's log, or damaged; restore the file")


def _fits(step: dict[str, Any], opening: dict[str, Any]) -> bool:
    """Whether a step has a value for each column."""
    pairs = (("observation", "observation_names"), ("action", "action_names"))
    return all(len(step[values]) == len(opening[names]) for values, names in pairs)
