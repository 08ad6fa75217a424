"""`Pacer`: a policy that is told what its steps cost, and keeps every episode inside the limit's pace. NumPy only.

A limit l on the discounted cost is a pace of l (1 - discount) a step. If what an episode has cost is at no step more than
the pace times the steps so far, then its discounted cost is at most l, for every discount (docs/deploy.md has the proof).
So the pacer counts: the *budget* is the pace times the steps, less what they cost.

A policy of HalfCheetah runs in one of two gaits, and a few per cent more of each action, before the squash, make it change
from the slow one to the fast one. How often it does so no model predicts well. A pacer sees what it costs. It multiplies
the mean action, before the squash, by a gain:

    1            while the budget is being saved
    around high  once the budget is enough to go on so to the end of the episode. The gain is greater while steps cost less
                 than what would use the budget up by then, and smaller while they cost more
    low          when the budget is spent, or the episode is ahead of the pace

Changing between gaits loses speed, so that it is better to change once than to follow the pace closely. Where the file has
a policy to save with, the clone of the safe episodes, that one acts while the budget is being saved: it earns more for its
cost.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.costs import Terms, action_of, checked_cost, checked_observation, numbers_of, opened
from ringfence.deploy.policy import Policy
from ringfence.errors import InvalidSetting

PACING = "pacing"  # the entry of a policy's metadata
PACED = "paced_actor"  # the network that the gains are for
SAVING = "saving_actor"  # the one that saves, if the file has one
LEAST_BUDGET = 10.0  # steps at the pace that must be saved before the gain is high
SPENT = 4.0  # steps at the pace: with less the budget counts as spent, but for the start of an episode
MEMORY = 20.0  # steps that the cost of a step is averaged over
RESPONSE = 0.2  # of the high gain, to a step that costs one pace less than it should
LOWER, HIGHER = 0.06, 0.1  # how far the response goes


class Pacing(NamedTuple):
    """What a policy's file says of its gains."""

    low: float
    high: float
    spending: float  # what a step is expected to cost with the high gain

    @classmethod
    def of(cls, artifact: Artifact) -> "Pacing":
        """As the file has it; `InvalidSetting` if it has none or something else."""
        if not has_gains(artifact):
            raise InvalidSetting(
                "this policy cannot be paced: its file has no gains. CPQ leaves them where a model of the plant predicts "
                "the log well and a greater gain would earn more but cost too much"
            )
        given = artifact.metadata[PACING]
        numbers = numbers_of(given, cls._fields)
        found = cls(*numbers) if numbers else None
        if found is None or not 0.0 < found.low <= 1.0 <= found.high < 10.0 or found.spending < 0.0:
            raise InvalidSetting(f"the pacing of this policy's file is not one: {given!r:.200}")
        return found


def has_gains(artifact: Artifact) -> bool:
    """Whether the file was written for a pacer too."""
    return PACING in artifact.metadata and PACED in artifact.networks


class Pacer:
    """Runs a policy so that no episode gets ahead of the limit's pace.

        pacer = ringfence.Pacer("policy.safetensors")
        pacer.reset()                                    # at the start of an episode
        action = pacer(observation, cost=cost_of_the_last_step)
        pacer.budget, pacer.gain

    `policy` is a `Policy`, an `Artifact` or a file; `limit` (on the discounted cost) and `horizon` (steps of an episode)
    replace the file's. One pacer serves one plant; it remembers its episode. It does not replace a `Guard`: if even the low
    gain costs more than the pace, it cannot help.
    """

    def __init__(
        self, policy: Policy | Artifact | str | Path, *, limit: float | None = None, horizon: int | None = None
    ):
        self.policy = opened(policy)
        artifact = self.policy.artifact
        self.pacing = Pacing.of(artifact)
        terms = Terms.of(artifact, limit, horizon)
        self.limit, self.horizon, _ = terms
        self.pace = terms.pace
        self._saver = SAVING if SAVING in artifact.networks else PACED
        self.reset()

    def reset(self) -> None:
        """An episode begins: nothing is spent."""
        self.steps, self.spent, self.gain, self._recent = 0, 0.0, 1.0, 0.0
        self._begun = self._past_start = self._spending = False
        self.policy.reset()

    @property
    def budget(self) -> float:
        """What the episode may still cost without being ahead of the pace."""
        return self.pace * self.steps - self.spent

    def __call__(self, observation: Any, cost: float | None = None) -> np.ndarray:
        """The action to send. `cost` is what the step before cost; there is none in the first step of an episode."""
        seen = checked_observation(self.policy, observation)
        if self._begun:
            self._spend(checked_cost(cost))
        self._begun = True
        network, self.gain = self._next()
        return action_of(self.policy.artifact, network, seen, self.gain)

    def _spend(self, cost: float) -> None:
        self.spent += cost
        self.steps += 1
        self._recent += (cost - self._recent) / MEMORY

    def _next(self) -> tuple[str, float]:
        """The network that acts and its gain: around high once what is saved lasts to the end, until it is spent."""
        left = max(self.horizon - self.steps, 0)
        needed = max(left * (self.pacing.spending - self.pace), LEAST_BUDGET * self.pace)
        little = self.budget < SPENT * self.pace
        self._past_start |= not 0.0 <= self.budget < SPENT * self.pace
        self._spending = (self._spending or self.budget > needed) and not little
        if self._spending:
            return PACED, self._high_gain(left)
        return (PACED, self.pacing.low) if little and self._past_start else (self._saver, 1.0)

    def _high_gain(self, left: float) -> float:
        """So that steps cost what uses the budget up by the end."""
        wanted = self.pace + self.budget / max(left, 1)
        response = RESPONSE * (wanted - self._recent) / self.pace
        return self.pacing.high + min(max(response, -LOWER), HIGHER)
