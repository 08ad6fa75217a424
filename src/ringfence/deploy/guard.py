"""`Guard`: a policy in a control loop, watched, with a fallback. NumPy and safetensors only."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.guard_log import GuardLog
from ringfence.deploy.guard_rules import IMMEDIATE, Reason, Rules, Thresholds, described
from ringfence.deploy.guard_watch import Watch, are_inside
from ringfence.deploy.policy import Policy
from ringfence.errors import InvalidSetting

Fallback = Callable[[np.ndarray], Any]


class Decision(NamedTuple):
    """What a guard says of one step."""

    action: np.ndarray  # finite and inside the actuator's bounds, always
    trusted: bool  # whether the action is the policy's
    source: str  # "policy", "fallback", "last" or "middle"
    reasons: tuple[Reason, ...]  # rules that are broken in this step
    corrected: tuple[str, ...]  # "bounds" or "rate" where the action was brought inside
    scores: Mapping[str, float | None]  # together, detector_score, cost_to_go of what the policy would do; spent


class Guard:
    """Runs a policy, and hands over to a fallback when something is unlike the log or unsafe.

        guard = ringfence.Guard("policy.safetensors", fallback=cautious_controller, log="guard.jsonl")
        guard.reset()                                  # at the start of an episode
        action = guard(observation, cost=cost_of_the_last_step)
        guard.last.trusted, guard.last.reasons

    `policy` is a `Policy`, an `Artifact` or a file. `fallback` is a constant action, a function of the observation, or
    another policy. An observation is a vector, or a mapping (or pandas Series) from column names to numbers, of which the
    policy's columns are taken. `rules` switches rules (see `Rules`): `rules={"detector": None, "rate": 0.5}`. `limit`
    replaces the artifact's; a policy for a range of limits has none, and is given what is left of this one in every step.

    A call never raises and never gives NaN: if the fallback fails too (it raises, or gives something that is not finite
    or not an action), the last good action is repeated, or, before there is one or with `last_resort="middle"`, the
    middle of the actuator's range is sent. What the constructor is given is checked and may raise. One guard serves one
    plant; it remembers its episode.
    """

    def __init__(
        self,
        policy: Policy | Artifact | str | Path,
        fallback: Any,
        *,
        rules: Rules | Mapping[str, Any] | None = None,
        limit: float | None = None,
        log: str | Path | None = None,
        record: str = "steps",
        last_resort: str = "last",
    ):
        if isinstance(policy, str | Path):
            policy = Policy.load(policy)
        if not isinstance(policy, Policy | Artifact):
            raise InvalidSetting(f"the policy must be a Policy, an Artifact or a file, not {policy!r}")
        self.policy = policy if isinstance(policy, Policy) else Policy(policy)
        self.artifact = self.policy.artifact
        self.rules = Rules.of(rules)
        self.limit = self.artifact.limit if limit is None else _limit(limit)
        self.artifact.scaled_limit(self.limit if self.artifact.takes_limit else None)  # or it could never be asked
        self.thresholds = Thresholds.of(self.artifact, self.rules, self.limit)
        self.fallback = _fallback(fallback, self.artifact)
        if last_resort not in ("last", "middle"):
            raise InvalidSetting(f"last_resort must be 'last' or 'middle', not {last_resort!r}")
        if record not in ("steps", "events"):
            raise InvalidSetting(
                f"record must be 'steps' (every step) or 'events' (what is not trusted), not {record!r}"
            )
        self.last_resort = last_resort
        self._rate = None if self.rules.rate is None else np.asarray(self.rules.rate, np.float32)
        if self._rate is not None and self._rate.shape not in ((), (1,), (self.artifact.action_dim,)):
            raise InvalidSetting(f"rate must be one number or {self.artifact.action_dim}, not {self.rules.rate!r}")
        self._middle = ((self.artifact.action_low + self.artifact.action_high) / 2).astype(np.float32)
        self._watch = Watch(self.policy, self.thresholds, self.limit, self.rules.release_at)
        self._bounds = self._watch.bounds
        self._log = None if log is None else GuardLog(Path(log), self, record == "steps")
        self.last: Decision | None = None
        self.episode, self.steps = 0, 0
        self.reset()

    @property
    def active(self) -> tuple[str, ...]:
        """The rules that are on: switched on, and with a threshold in the artifact."""
        return self.thresholds.active

    @property
    def log_failures(self) -> int:
        """Lines that could not be written; a full disk does not stop the loop."""
        return 0 if self._log is None else self._log.failures

    def reset(self) -> None:
        """An episode begins: nothing is spent, and the policy is trusted until a rule says otherwise."""
        self.episode += self.steps > 0
        self.steps = 0
        self.handed_over = False
        self._quiet = 0
        self._in_a_row: dict[str, int] = {}
        self._sent: np.ndarray | None = None  # the last action, whoever chose it
        self._good: np.ndarray | None = None  # the last that the trusted policy or the fallback chose
        self._watch.reset()
        for part in (self.policy, self.fallback):
            with suppress(Exception):  # a fallback's own code: a fault shows when it is asked for an action
                getattr(part, "reset", lambda: None)()

    def __call__(self, observation: Any, cost: float | None = None) -> np.ndarray:
        """The action to send. `cost` is what the step before cost, for the budget."""
        return self._step(observation, cost).action.copy()

    def decide(self, observation: Any, cost: float | None = None) -> Decision:
        """The action with whether to trust it and why not."""
        decision = self._step(observation, cost)
        return decision._replace(action=decision.action.copy())

    def _step(self, observation: Any, cost: float | None) -> Decision:
        try:
            seen, proposed, reasons, quiet = self._watch(observation, cost)
            if reasons or self._in_a_row or self.handed_over:  # else there is nothing to hand over or back
                self._update(reasons, quiet)
            decision = self._choose(seen, proposed, reasons)
        except Exception as error:  # a defect here must not stop the plant
            self.handed_over, self._quiet = True, 0
            seen = np.full(self.artifact.observation_dim, np.nan, np.float32)
            decision = self._fall_back(seen, (Reason("fault", detail=described(error)),), {})
        decision.action.setflags(write=False)  # it is repeated when all else fails: `guard.last` shows it, no more
        self.last, self._sent = decision, decision.action
        if decision.source in ("policy", "fallback"):
            self._good = decision.action
        if self._log is not None:
            self._log.write(self, seen, decision)
        self.steps += 1
        return decision

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _update(self, reasons: tuple[Reason, ...], quiet: bool) -> None:
        """Hand over when a rule is broken (long enough), back after enough quiet steps."""
        self._quiet = self._quiet + 1 if quiet else 0
        if reasons or self._in_a_row:
            before = self._in_a_row
            self._in_a_row = {reason.rule: before.get(reason.rule, 0) + 1 for reason in reasons}
        if reasons and any(count >= self._patience(rule) for rule, count in self._in_a_row.items()):
            self.handed_over = True
        elif self.handed_over and self._quiet >= self.rules.release_after:
            self.handed_over = False

    def _patience(self, rule: str) -> int:
        return 1 if rule in IMMEDIATE else self.rules.patience

    def _choose(self, seen: np.ndarray, proposed: np.ndarray | None, reasons: tuple[Reason, ...]) -> Decision:
        if self.handed_over or proposed is None:
            return self._fall_back(seen, reasons, self._watch.scores)
        action, corrected = self._inside(proposed, self._watch.inside)
        return Decision(action, True, "policy", reasons, corrected, self._watch.scores)

    def _fall_back(self, seen: np.ndarray, reasons: tuple[Reason, ...], scores: Mapping[str, float | None]) -> Decision:
        try:
            given = np.array(self.fallback(seen.copy()), np.float32).reshape(-1)
            if given.shape != self._middle.shape or not np.isfinite(given).all():
                raise InvalidSetting(f"it gave {given.tolist()}")
            source = "fallback"
        except Exception as error:
            reasons = (*reasons, Reason("fallback", detail=described(error)))
            good = self._good if self.last_resort == "last" else None
            given, source = (self._middle.copy(), "middle") if good is None else (good.copy(), "last")
        action, corrected = self._inside(given, are_inside(given.tolist(), self._bounds))
        return Decision(action, False, source, reasons, corrected, scores)

    def _inside(self, action: np.ndarray, is_inside: bool) -> tuple[np.ndarray, tuple[str, ...]]:
        """The action inside the actuator's bounds, where it may be already, and, if there is one, its rate limit."""
        inside = action
        corrected: tuple[str, ...] = ()
        if not is_inside:
            inside, corrected = np.clip(action, self.artifact.action_low, self.artifact.action_high), ("bounds",)
        if self._rate is not None and self._sent is not None:
            slow = np.clip(inside, self._sent - self._rate, self._sent + self._rate)
            if (slow != inside).any():
                corrected += ("rate",)
            inside = slow
        return inside, corrected


def _limit(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float | np.number) or not 0 <= given < float("inf"):
        raise InvalidSetting(f"the guard's limit must be a number of at least 0, not {given!r}")
    return float(given)


def _fallback(given: Any, artifact: Artifact) -> Fallback:
    """The fallback as a function of an observation. A wrong one is refused before the loop starts."""
    if isinstance(given, Artifact):
        given = Policy(given)
    if isinstance(given, Policy):
        if (given.observation_dim, given.action_dim) != (artifact.observation_dim, artifact.action_dim):
            raise InvalidSetting(
                f"the fallback takes {given.observation_dim} observations and gives {given.action_dim} actions; the policy "
                f"takes {artifact.observation_dim} and gives {artifact.action_dim}"
            )
        given.artifact.scaled_limit()  # a policy for a range of limits that has none would fail whenever it is needed
        return given
    if callable(given):
        function: Fallback = given
        return function
    try:
        action = np.array(given, np.float32).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InvalidSetting(
            f"the fallback must be an action, a function or a policy, not {type(given).__name__}"
        ) from error
    fits = action.shape == artifact.action_low.shape and np.isfinite(action).all()
    if not fits or (action < artifact.action_low).any() or (action > artifact.action_high).any():
        low, high = artifact.action_low.tolist(), artifact.action_high.tolist()
        counted = "" if action.shape == artifact.action_low.shape else f" of {len(low)} number(s)"
        raise InvalidSetting(f"the fallback {given!r} is not an action{counted} between {low} and {high}")
    return lambda observation: action
