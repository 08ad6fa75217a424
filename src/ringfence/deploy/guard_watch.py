"""One step of a guard's observation: what is broken, what the policy would do, how near each threshold is.

A step in which nothing is wrong is the common one and must be quick: it takes few NumPy calls, and what a broken rule has
to say is worked out only when it is broken.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ringfence.deploy.guard_rules import Reason, Thresholds, described
from ringfence.deploy.guard_scores import Scores
from ringfence.deploy.policy import Policy

SCORED = {"together": "together", "detector": "detector_score", "cost_to_go": "cost_to_go"}  # rule: name of its score


class Watch:
    """Sees each observation and remembers what the rules need of the episode: costs, and how long columns stood still."""

    def __init__(self, policy: Policy, thresholds: Thresholds, limit: float | None, release_at: float):
        self.policy, self.artifact, self.thresholds, self.limit = policy, policy.artifact, thresholds, limit
        self._act = policy.act_unchecked if type(policy) is Policy else _new_arrays(policy)
        self._names = self.artifact.observation_names
        self._shape = (len(self._names),)
        self._once = np.ones(self._shape)
        self._discount = 1.0 if self.artifact.discount is None else self.artifact.discount
        scored = [(rule, getattr(thresholds, rule)) for rule in SCORED if getattr(thresholds, rule) is not None]
        self._scores = Scores(self.artifact, [rule for rule, _ in scored])
        self._scored = [(rule, SCORED[rule], threshold, release_at * threshold) for rule, threshold in scored]
        self.reset()

    def reset(self) -> None:
        self.spent, self.weight = 0.0, 1.0  # the discounted cost so far, and the discount of the next one
        self.before: np.ndarray | None = None
        self.still = self._once
        self.scores: dict[str, float | None] = {}

    def __call__(
        self, observation: Any, cost: float | None
    ) -> tuple[np.ndarray, np.ndarray | None, tuple[Reason, ...], bool]:
        """The observation as a vector (NaN where it is missing), the policy's action or None, the broken rules, and
        whether everything is below `release_at` of its threshold."""
        self.scores = {"together": None, "detector_score": None, "cost_to_go": None, "spent": None}
        reasons: list[Reason] = []
        self._spend(cost, reasons)
        seen, complete, quiet = self._vector(observation, reasons)
        proposed = None
        if complete:
            if self.thresholds.stuck is not None:
                self._stuck(seen, self.thresholds.stuck, reasons)
            limit = self._limit_left() if self.artifact.takes_limit else None
            proposed, numbers = self._ask(seen, limit, reasons)
            if proposed is not None:
                quiet &= self._score(seen, numbers, limit, reasons)
        self.before = seen
        self.scores["spent"] = self.spent
        return seen, proposed, tuple(reasons), quiet and not reasons

    def _spend(self, cost: float | None, reasons: list[Reason]) -> None:
        if cost is not None:
            value = _number(cost)
            if not (math.isfinite(value) and value >= 0):
                reasons.append(Reason("missing", "cost", detail=f"it is {cost!r}"[:100]))
            else:
                self.spent += self.weight * value
            self.weight *= self._discount
        if self.thresholds.budget is not None and self.spent > self.thresholds.budget:
            reasons.append(Reason("budget", "cost", self.spent, self.thresholds.budget))

    def _vector(self, observation: Any, reasons: list[Reason]) -> tuple[np.ndarray, bool, bool]:
        """The observation as a new vector, whether all of it is there, and whether it is inside the log's range."""
        try:
            if type(observation) is not np.ndarray:
                observation = _plain(observation, self._names)
            seen = np.array(observation, np.float32)
        except (TypeError, ValueError, ArithmeticError, RuntimeWarning):
            with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and so missing
                seen = np.array([_number(value) for value in np.ravel(np.array(observation, object))], np.float32)
        if seen.shape != self._shape:
            reasons.append(Reason("missing", detail=f"observation of shape {seen.shape} instead of {self._shape}"))
            return np.full(self._shape, np.nan, np.float32), False, False
        low, high = self.thresholds.low, self.thresholds.high
        if low is None or high is None:
            inside = bool(np.isfinite(seen).all())
        else:  # the bytes of NaN change too: fmax and fmin give the other number. Quicker than comparing numbers
            inside = np.fmin(np.fmax(seen, low), high).tobytes() == seen.tobytes()
        return (seen, True, True) if inside else (seen, *self._outside(seen, reasons))

    def _outside(self, seen: np.ndarray, reasons: list[Reason]) -> tuple[bool, bool]:
        """Whether every number is there, and whether all are inside the log's range after all (as -0 from 0 on)."""
        found, names = self.thresholds, self._names
        if not (finite := np.isfinite(seen)).all():
            reasons += [Reason("missing", names[i]) for i in np.flatnonzero(~finite)]
            return False, False
        if found.low is None or found.high is None or found.margin is None:
            return True, True
        beyond = np.maximum(found.low - seen, seen - found.high)
        for i in np.flatnonzero(beyond > found.margin):
            low = seen[i] < found.low[i]
            bound = found.low[i] - found.margin[i] if low else found.high[i] + found.margin[i]
            reasons.append(Reason("range", names[i], float(seen[i]), float(bound)))
        return True, not (beyond > 0).any()

    def _stuck(self, seen: np.ndarray, most: np.ndarray, reasons: list[Reason]) -> None:
        """Columns that have not changed for longer than they may."""
        if self.before is None:
            return
        same = seen == self.before
        if b"\x01" not in same.tobytes():  # same.any(), at a third of its time
            self.still = self._once
            return
        self.still = np.where(same, self.still + 1.0, 1.0)
        for i in np.flatnonzero(self.still > most):
            reasons.append(Reason("stuck", self._names[i], float(self.still[i]), float(most[i]), "steps"))

    def _ask(
        self, seen: np.ndarray, limit: float | None, reasons: list[Reason]
    ) -> tuple[np.ndarray | None, list[float]]:
        """The policy's action, twice; a policy for a range of limits is given what is left of the budget."""
        try:
            action = self._act(seen, limit=limit)
            numbers: list[float] = action.tolist()
            if math.isfinite(sum(numbers)):
                return action, numbers
            reasons.append(Reason("policy", detail="its action is not finite"))
        except Exception as error:
            reasons.append(Reason("policy", detail=described(error)))
        return None, []

    def _limit_left(self) -> float | None:
        if self.artifact.limit_range is None or self.limit is None:
            return None
        least, greatest = self.artifact.limit_range
        return min(max((self.limit - self.spent) / max(self.weight, 1e-6), least), greatest)

    def _score(self, seen: np.ndarray, action: list[float], limit: float | None, reasons: list[Reason]) -> bool:
        """Rules about numbers that grow with suspicion."""
        quiet, scaled_limit = True, self.artifact.scaled_limit(limit) if self.artifact.takes_limit else None
        for value, (rule, name, threshold, release) in zip(
            self._scores(seen, action, scaled_limit), self._scored, strict=True
        ):
            self.scores[name] = value
            if not value <= release:  # NaN is suspicious too
                quiet = False
                if not value <= threshold:
                    reasons.append(Reason(rule, value=value, threshold=threshold))
        return quiet


def _new_arrays(policy: Policy) -> Callable[..., np.ndarray]:
    """A subclass of `Policy` does as it likes in its call, and may go on using the array that it gives."""
    return lambda observation, limit: np.array(policy(observation, limit=limit), np.float32)


def _plain(observation: Any, names: Sequence[str]) -> Any:
    """The numbers of a mapping or a row of a table in the policy's order; without what is masked."""
    if isinstance(observation, Mapping) or _has_names(observation):
        return [_number(observation.get(name)) for name in names]
    if hasattr(observation, "filled"):  # a masked array
        return observation.astype(np.float32).filled(np.nan)
    return observation


def _has_names(observation: Any) -> bool:
    """Whether this is a pandas `Series` with names and not a numbered one. Its order is not the policy's."""
    return hasattr(observation, "keys") and any(isinstance(key, str) for key in observation.keys())  # noqa: SIM118


def _number(value: Any) -> float:
    """A number, or NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
