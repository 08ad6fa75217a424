"""What makes a guard take the policy out of the loop, and when it gives it back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.errors import InvalidSetting, UnknownName
from ringfence.values import is_number, is_whole

LEAST_STILLNESS = 10  # steps: fewer equal values in a row are no evidence of a stuck sensor
IMMEDIATE = ("missing", "stuck", "range", "budget", "policy")  # these do not wait for `patience`


@dataclass(frozen=True)
class Rules:
    """Which rules a guard has. A rule is switched off with None. Thresholds are those of the artifact; the numbers here are
    factors of them. A rule whose threshold the artifact does not have is off (`Guard.active` lists those that are on).

    A missing value (NaN, infinity, a column that is not there, a wrong number of columns) always hands over: the policy
    cannot be asked.
    """

    range: float | None = 0.05  # how far beyond the log's range of a column, as a share of the range
    together: float | None = 1.0  # the columns taken together: times the log's 99 % quantile of their distance
    stuck: float | None = 2.0  # equal values of a column in a row: times the most that the log has, at least 10 steps
    detector: float | None = 1.0  # the score of (observation, action): times the detector's threshold
    cost_to_go: float | None = 1.0  # the expected discounted cost from here on: times the limit
    budget: float | None = 1.0  # the discounted cost of the episode so far: times the limit
    rate: float | Sequence[float] | None = None  # the most an action may change in a step, in the user's units

    patience: int = 5  # steps in a row before "together", "detector" and "cost_to_go" hand over; the others do at once
    release_after: int = 20  # quiet steps in a row before the policy is trusted again
    # A step is quiet if no rule is broken, every column is inside the log's range, and each score is below this share of
    # its threshold. The budget and a stuck sensor have no such share: they are broken or not.
    release_at: float = 0.9

    def __post_init__(self) -> None:
        for name in ("range", "together", "stuck", "detector", "cost_to_go", "budget"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value >= 0):
                raise InvalidSetting(
                    f"rule {name!r} must be a number of at least 0, or None to switch it off: {value!r}"
                )
        if self.rate is not None and not _are_positive(self.rate):
            raise InvalidSetting(f"rate must be positive, one number or one per action, not {self.rate!r}")
        for name in ("patience", "release_after"):
            value = getattr(self, name)
            if not (is_whole(value) and value >= 1):
                raise InvalidSetting(f"{name} must be a whole number of at least 1, not {getattr(self, name)!r}")
        if not (is_number(self.release_at) and 0 < self.release_at <= 1):
            raise InvalidSetting(f"release_at must lie between 0 and 1, not {self.release_at!r}")

    @classmethod
    def of(cls, given: "Rules | Mapping[str, Any] | None") -> "Rules":
        if given is None or isinstance(given, Rules):
            return given or cls()
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in given if name not in known]:
            raise UnknownName(f"there is no rule {unknown[0]!r}; there are {', '.join(known)}")
        return cls(**given)


@dataclass(frozen=True)
class Thresholds:
    """The numbers that the rules compare with, in the user's units; None where a rule is off."""

    low: np.ndarray | None
    high: np.ndarray | None
    margin: np.ndarray | None  # added to low and high
    together: float | None
    stuck: np.ndarray | None  # steps; infinite for a column that never changes in the log
    detector: float | None
    cost_to_go: float | None
    budget: float | None

    @classmethod
    def of(cls, artifact: Artifact, rules: Rules, limit: float | None) -> "Thresholds":
        def times(factor: float | None, base: float | None) -> float | None:
            return None if factor is None or base is None else float(factor * base)

        low, high = artifact.observation_low, artifact.observation_high
        ranged = rules.range is not None and low is not None and high is not None
        still = artifact.tensors.get("guard_stillness")
        distance = artifact.tensors.get("guard_distance")
        stuck = None
        if rules.stuck is not None and still is not None:
            stuck = np.maximum(LEAST_STILLNESS, rules.stuck * still)
            if low is not None and high is not None:
                stuck = np.where(low == high, np.inf, stuck)
        pair = {"observation", "action"}
        has_cost = "cost" in artifact.networks and set(artifact.networks["cost"].inputs) - {"limit"} == pair
        has_detector = "encoder" in artifact.networks and set(artifact.networks["encoder"].inputs) == pair
        return cls(
            low if ranged else None,
            high if ranged else None,
            rules.range * (high - low) if ranged else None,  # type: ignore[operator]
            times(rules.together, None if distance is None else float(distance[0])),
            stuck,
            times(rules.detector, artifact.detector_threshold if has_detector else None),
            times(rules.cost_to_go, limit if has_cost else None),
            times(rules.budget, limit),
        )

    @property
    def active(self) -> tuple[str, ...]:
        """The rules that have a threshold."""
        given = {"range": self.low, **{n: getattr(self, n) for n in ("together", "stuck", "detector", "cost_to_go")}}
        return ("missing", *(name for name, value in {**given, "budget": self.budget}.items() if value is not None))


@dataclass(frozen=True)
class Reason:
    """A rule that was broken in a step: by which column, with which value, against which threshold."""

    rule: str
    column: str | None = None
    value: float | None = None
    threshold: float | None = None
    detail: str | None = None

    def __str__(self) -> str:
        where = f" {self.column}" if self.column else ""
        number = "" if self.value is None else f" is {self.value:.6g}"
        bound = "" if self.threshold is None else f", the bound is {self.threshold:.6g}"
        return f"{self.rule}:{where}{number}{bound}{f' ({self.detail})' if self.detail else ''}"


def described(error: Exception) -> str:
    """An error in one line. User code may raise one that cannot even say what it is."""
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except Exception:
        return type(error).__name__


def _are_positive(value: Any) -> bool:
    numbers = np.asarray(value)
    return numbers.dtype.kind in "iuf" and bool(np.isfinite(numbers).all() and (numbers > 0).all())
