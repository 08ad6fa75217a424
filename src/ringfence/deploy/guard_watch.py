"""One step of a guard's observation: what is broken, what the policy would do, how near each threshold is.

A step in which nothing is wrong is the common one and must be quick: it takes few NumPy calls, and what a broken rule has
to say is worked out only when it is broken.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ringfence.deploy.guard_compiled import compiled_scores
from ringfence.deploy.guard_rules import Reason, Thresholds, described
from ringfence.deploy.guard_scores import Scores
from ringfence.deploy.policy import Policy
from ringfence.deploy.single import single_actor

SCORED = {"together": "together", "detector": "detector_score", "cost_to_go": "cost_to_go"}  # rule: name of its score
FEW = 40  # columns up to which Python compares numbers more quickly than NumPy


class Watch:
    """Sees each observation and remembers what the rules need of the episode: costs, and how long columns stood still."""

    def __init__(self, policy: Policy, thresholds: Thresholds, limit: float | None, release_at: float):
        self.policy, self.artifact, self.thresholds, self.limit = policy, policy.artifact, thresholds, limit
        self.bounds = list(zip(self.artifact.action_low.tolist(), self.artifact.action_high.tolist(), strict=True))
        self._names = self.artifact.observation_names
        self._shape = (len(self._names),)
        self._once = np.ones(self._shape)
        self._few = len(self._names) <= FEW
        self._unlike = [math.nan] * len(self._names)  # NaN is equal to no number
        low, high = thresholds.low, thresholds.high
        if low is None or high is None:
            low, high = (np.full(self._shape, sign * np.finfo(np.float32).max) for sign in (-1, 1))
        self._ranges = list(zip(low.tolist(), high.tolist(), strict=True))
        self._discount = 1.0 if self.artifact.discount is None else self.artifact.discount
        scored = [(rule, getattr(thresholds, rule)) for rule in SCORED if getattr(thresholds, rule) is not None]
        rules = [rule for rule, _ in scored]
        self._scores = compiled_scores(self.artifact, rules) or Scores(self.artifact, rules)
        self._inputs = self._scores.inputs
        self._single = single_actor(self.artifact) if type(policy) is Policy else None
        self._act = policy.act_unchecked if type(policy) is Policy else _new_arrays(policy)
        self._scored = [(rule, SCORED[rule], threshold, release_at * threshold) for rule, threshold in scored]
        self.reset()

    def reset(self) -> None:
        self.spent, self.weight = 0.0, 1.0  # the discounted cost so far, and the discount of the next one
        self.inside = False  # whether the last action that the policy proposed is inside the actuator's bounds
        self.before: np.ndarray | None = None
        self.still = self._once
        self._numbers = self._following = self._unlike
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
            limit = self._limit_left() if self.artifact.takes_limit else None
            proposed = self._ask(seen, limit, reasons)
            if proposed is not None:
                quiet &= self._score(seen, proposed, limit, reasons)
        self.before, self._numbers = seen, self._following
        self.scores["spent"] = self.spent
        return seen, proposed, tuple(reasons), quiet and not reasons

    def _spend(self, cost: float | None, reasons: list[Reason]) -> None:
        if cost is not None:
            value = cost if type(cost) is float else _number(cost)
            if not 0.0 <= value < math.inf:
                reasons.append(Reason("missing", "cost", detail=f"it is {cost!r}"[:100]))
            else:
                self.spent += self.weight * value
            self.weight *= self._discount
        if self.thresholds.budget is not None and self.spent > self.thresholds.budget:
            reasons.append(Reason("budget", "cost", self.spent, self.thresholds.budget))

    def _vector(self, observation: Any, reasons: list[Reason]) -> tuple[np.ndarray, bool, bool]:
        """The observation as a new vector, whether all of it is there, and whether it is inside the log's range."""
        self._following = self._unlike
        try:
            if type(observation) is np.ndarray:
                seen = observation.astype(np.float32)  # a copy too, in half the time of np.array
            else:
                observation = _plain(observation, self._names)
                seen = np.array(observation, np.float32)
        except (TypeError, ValueError, ArithmeticError, RuntimeWarning):
            with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and so missing
                seen = np.array([_number(value) for value in np.ravel(np.array(observation, object))], np.float32)
        if seen.shape != self._shape:
            reasons.append(Reason("missing", detail=f"observation of shape {seen.shape} instead of {self._shape}"))
            return np.full(self._shape, np.nan, np.float32), False, False
        low, high, stuck = self.thresholds.low, self.thresholds.high, self.thresholds.stuck
        if self._few:
            numbers = seen.tolist()
            if stuck is not None:
                self._following = numbers
            if _are_ordinary(numbers, self._ranges, self._numbers):  # most often: then there is nothing else to ask
                self.still = self._once
                return seen, True, True
        if low is None or high is None:
            inside = bool(np.isfinite(seen).all())
        else:  # the bytes of NaN change too: fmax and fmin give the other number. Quicker than comparing numbers
            inside = np.fmin(np.fmax(seen, low), high).tobytes() == seen.tobytes()
        complete, quiet = (True, True) if inside else self._outside(seen, reasons)
        if complete and stuck is not None:
            self._stuck(seen, stuck, reasons)
        return seen, complete, quiet

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

    def _ask(self, seen: np.ndarray, limit: float | None, reasons: list[Reason]) -> np.ndarray | None:
        """The policy's action; a policy for a range of limits is given what is left of the budget."""
        try:
            if self._single is None:
                action = self._act(seen, limit=limit)
            else:  # what the actor is given and gives, the detector and the critic read as well
                inputs = self._inputs
                inputs.set_observation(seen)
                action = self._single.in_units(self._single.scaled(inputs.observation, limit, inputs.action))
            numbers = action.tolist()
            self.inside = are_inside(numbers, self.bounds)
            if self.inside or math.isfinite(sum(numbers)):
                return action
            reasons.append(Reason("policy", detail="its action is not finite"))
        except Exception as error:
            reasons.append(Reason("policy", detail=described(error)))
        return None

    def _limit_left(self) -> float | None:
        if self.artifact.limit_range is None or self.limit is None:
            return None
        least, greatest = self.artifact.limit_range
        return min(max((self.limit - self.spent) / max(self.weight, 1e-6), least), greatest)

    def _score(self, seen: np.ndarray, action: np.ndarray, limit: float | None, reasons: list[Reason]) -> bool:
        """Rules about numbers that grow with suspicion."""
        quiet = True
        if self._single is None:
            self._inputs.set_observation(seen)
            self._inputs.set_action(action.tolist())
        if self.artifact.takes_limit and (scaled_limit := self.artifact.scaled_limit(limit)) is not None:
            self._inputs.set_limit(scaled_limit)
        for value, (rule, name, threshold, release) in zip(self._scores(), self._scored, strict=True):
            self.scores[name] = value
            if not value <= release:  # NaN is suspicious too
                quiet = False
                if not value <= threshold:
                    reasons.append(Reason(rule, value=value, threshold=threshold))
        return quiet


def are_inside(numbers: Sequence[float], bounds: Sequence[tuple[float, float]]) -> bool:
    """Whether there is a number for each pair of bounds, and it is between them."""
    for number, (low, high) in zip(numbers, bounds, strict=False):
        if not low <= number <= high:
            return False
    return len(numbers) == len(bounds)


def _are_ordinary(numbers: Sequence[float], ranges: Sequence[tuple[float, float]], before: Sequence[float]) -> bool:
    """Whether each number is inside its range and another than before."""
    for number, (low, high), last in zip(numbers, ranges, before, strict=True):
        if not low <= number <= high or number == last:
            return False
    return True


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
