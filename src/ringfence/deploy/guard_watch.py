"""One step of a guard's observation: what is broken, what the policy would do, how near each threshold is."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ringfence.deploy.guard_rules import Reason, Thresholds
from ringfence.deploy.network import kl_to_standard
from ringfence.deploy.policy import Policy
from ringfence.deploy.single import single_outputs


class Watch:
    """Sees each observation and remembers what the rules need of the episode: costs, and how long columns stood still."""

    def __init__(self, policy: Policy, thresholds: Thresholds, limit: float | None, release_at: float):
        self.policy, self.artifact, self.thresholds, self.limit = policy, policy.artifact, thresholds, limit
        self.release_at = release_at
        self._detector = None if thresholds.detector is None else single_outputs(self.artifact, "encoder")
        networks = self.artifact.networks
        self._inputs = {name: networks[name].inputs for name in ("encoder", "cost") if name in networks}
        plain = "limit" not in self._inputs.get("cost", ())
        self._cost = single_outputs(self.artifact, "cost") if thresholds.cost_to_go is not None and plain else None
        self.reset()

    def reset(self) -> None:
        self.spent, self.weight = 0.0, 1.0  # the discounted cost so far, and the discount of the next one
        self.before: np.ndarray | None = None
        self.still = np.ones(self.artifact.observation_dim)
        self.scores: dict[str, float | None] = {}

    def __call__(
        self, observation: Any, cost: float | None
    ) -> tuple[np.ndarray, np.ndarray | None, tuple[Reason, ...], bool]:
        """The observation as a vector (NaN where it is missing), the policy's action or None, the broken rules, and
        whether everything is below `release_at` of its threshold."""
        self.scores = {"together": None, "detector_score": None, "cost_to_go": None}
        reasons: list[Reason] = []
        self._spend(cost, reasons)
        seen = self._vector(observation, reasons)
        quiet = not reasons
        proposed = None
        if np.isfinite(seen).all():
            quiet &= self._columns(seen, reasons)
            proposed = self._ask(seen, reasons)
            if proposed is not None:
                quiet &= self._scored(seen, proposed, reasons)
        self.before = seen
        self.scores["spent"] = self.spent
        return seen, proposed, tuple(reasons), quiet and not reasons

    def _spend(self, cost: float | None, reasons: list[Reason]) -> None:
        if cost is not None:
            value = _number(cost)
            if not (np.isfinite(value) and value >= 0):
                reasons.append(Reason("missing", "cost", detail=f"it is {cost!r}"[:100]))
            else:
                self.spent += self.weight * value
            self.weight *= 1.0 if self.artifact.discount is None else self.artifact.discount
        if self.thresholds.budget is not None and self.spent > self.thresholds.budget:
            reasons.append(Reason("budget", "cost", self.spent, self.thresholds.budget))

    def _vector(self, observation: Any, reasons: list[Reason]) -> np.ndarray:
        names = self.artifact.observation_names
        if isinstance(observation, Mapping):
            seen = np.array([_number(observation.get(name)) for name in names], np.float32)
        else:
            try:
                seen = np.array(observation, np.float32)
            except (TypeError, ValueError, OverflowError):
                seen = np.array([_number(value) for value in np.ravel(np.array(observation, object))], np.float32)
        if seen.shape != (len(names),):
            reasons.append(Reason("missing", detail=f"observation of shape {seen.shape} instead of ({len(names)},)"))
            return np.full(len(names), np.nan, np.float32)
        if not np.isfinite(seen).all():
            reasons += [Reason("missing", names[i]) for i in np.flatnonzero(~np.isfinite(seen))]
        return seen

    def _columns(self, seen: np.ndarray, reasons: list[Reason]) -> bool:
        """Rules about single columns."""
        found, names, quiet = self.thresholds, self.artifact.observation_names, True
        if found.low is not None and found.high is not None and found.margin is not None:
            beyond = np.maximum(found.low - seen, seen - found.high)
            if (beyond > 0).any():
                quiet = False
                for i in np.flatnonzero(beyond > found.margin):
                    low = seen[i] < found.low[i]
                    bound = found.low[i] - found.margin[i] if low else found.high[i] + found.margin[i]
                    reasons.append(Reason("range", names[i], float(seen[i]), float(bound)))
        if found.stuck is not None and self.before is not None:
            self.still = np.where(seen == self.before, self.still + 1, 1.0)
            if (self.still > found.stuck).any():
                for i in np.flatnonzero(self.still > found.stuck):
                    reasons.append(Reason("stuck", names[i], float(self.still[i]), float(found.stuck[i]), "steps"))
        return quiet

    def _ask(self, seen: np.ndarray, reasons: list[Reason]) -> np.ndarray | None:
        """The policy's action; a policy for a range of limits is given what is left of the budget."""
        try:
            action = self.policy(seen, limit=self._limit_left())
            if np.isfinite(action).all():
                return action
            reasons.append(Reason("policy", detail="its action is not finite"))
        except Exception as error:
            reasons.append(Reason("policy", detail=f"{type(error).__name__}: {error}"[:200]))
        return None

    def _limit_left(self) -> float | None:
        if not self.artifact.takes_limit or self.artifact.limit_range is None or self.limit is None:
            return None
        left = (self.limit - self.spent) / max(self.weight, 1e-6)
        return float(np.clip(left, *self.artifact.limit_range))

    def _scored(self, seen: np.ndarray, action: np.ndarray, reasons: list[Reason]) -> bool:
        """Rules about numbers that grow with suspicion."""
        found, artifact = self.thresholds, self.artifact
        state = (seen - artifact.observation_mean) / artifact.observation_std
        parts = {"observation": state, "action": artifact.scale_actions(action)}
        values: dict[str, float] = {}
        if found.together is not None:
            deviation = (state - artifact.tensors["guard_centre"]) @ artifact.tensors["guard_whitening"]
            values["together"] = self.scores["together"] = float(deviation @ deviation)
        if self._detector is not None:
            joined = np.concatenate([parts[name] for name in self._inputs["encoder"]])
            values["detector"] = self.scores["detector_score"] = float(kl_to_standard(self._detector(joined)))
        if found.cost_to_go is not None:
            if self._cost is not None:
                value = self._cost(np.concatenate([parts[name] for name in self._inputs["cost"]]))
            else:
                value = artifact.cost_to_go(seen, action, limit=self._limit_left())
            values["cost_to_go"] = self.scores["cost_to_go"] = float(value)
        quiet = True
        for rule, value in values.items():
            threshold = getattr(found, rule)
            quiet &= value <= self.release_at * threshold
            if not value <= threshold:  # NaN is suspicious too
                reasons.append(Reason(rule, value=value, threshold=threshold))
        return quiet


def _number(value: Any) -> float:
    """A number, or NaN for what is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
