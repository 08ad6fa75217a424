"""`Turns`: two policies take turns, so that the limit is kept on average over episodes and used in full. NumPy only.

A limit bounds the expected cost. Where a plant has a cheap gait and a costly one and nothing between, no single policy
uses a limit between their costs. Two policies do, one inside the limit and one over it, if the costly one acts in the right
share of the episodes. `Turns` decides before each episode which of them acts. It is told what the steps cost and keeps two
accounts over all episodes so far:

    discounted   the sum of (l - an episode's discounted cost)
    pace         the sum of (the pace l (1 - discount) - the cost) of every step

The costly policy acts if both accounts can pay for one more of its episodes. What such an episode costs is the mean of those
that have been seen; before the first one it is what CPQ's model expects, from the policy's file. So the cheap policy
begins. If that one is inside the limit, and as long as a costly episode costs no more than is expected of it, the mean over
the episodes so far is inside the limit after each of them. A single episode of the costly policy is over the limit: where
every episode must be inside, use a `Pacer`.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.costs import Terms, action_of, checked_cost, checked_observation, numbers_of, opened
from ringfence.deploy.policy import Policy
from ringfence.errors import InvalidSetting

TURNS = "turns"  # the entry of a policy's metadata
CHEAP, COSTLY = "cheap_actor", "costly_actor"  # the networks


class Expectation(NamedTuple):
    """What a policy's file says of the two policies."""

    cheap_cost: float  # of an episode; the greater of discounted cost and cost per step / (1 - discount)
    costly_cost: float
    share: float  # of the episodes in which the costly policy should act
    expected_return: float  # of the mixture

    @classmethod
    def of(cls, artifact: Artifact) -> "Expectation":
        """As the file has it; `InvalidSetting` if it has none or something else."""
        if not can_take_turns(artifact):
            raise InvalidSetting(
                "this policy cannot take turns with another one: its file has no second policy. CPQ leaves one where a "
                "model of the plant predicts the log well, and a policy over the limit would earn more in a part of the "
                "episodes"
            )
        given = artifact.metadata[TURNS]
        numbers = numbers_of(given, cls._fields)
        found = cls(*numbers) if numbers else None
        if found is None or not 0.0 <= found.share <= 1.0 or found.cheap_cost < 0.0 or found.costly_cost < 0.0:
            raise InvalidSetting(f"the turns of this policy's file are not such: {given!r:.200}")
        return found


def can_take_turns(artifact: Artifact) -> bool:
    """Whether the file was written for two policies, too."""
    return TURNS in artifact.metadata and {CHEAP, COSTLY} <= set(artifact.networks)


class Turns:
    """Two policies of one file, one episode each at a time.

        turns = ringfence.Turns("policy.safetensors")
        turns.reset()                                    # at the start of an episode: decides who acts
        action = turns(observation, cost=cost_of_the_last_step)
        turns.acting, turns.saved_discounted, turns.saved

    `policy` is a `Policy`, an `Artifact` or a file; `limit` (on the discounted cost) and `horizon` (steps of an episode)
    replace the file's. One object serves one plant; it remembers all episodes since it was made. The cost of an episode's
    last step, which no call tells, is taken to be the mean of the others.
    """

    def __init__(
        self, policy: Policy | Artifact | str | Path, *, limit: float | None = None, horizon: int | None = None
    ):
        self.policy = opened(policy)
        artifact = self.policy.artifact
        self.expectation = Expectation.of(artifact)
        terms = Terms.of(artifact, limit, horizon)
        self.limit, self.horizon, self.discount = terms
        self.pace = terms.pace
        self.episodes = self.costly_episodes = 0
        self.saved_discounted = self.saved = 0.0
        self._costly_discounted = self._costly_excess = 0.0  # sums over the costly policy's episodes
        self._begin(CHEAP)

    def _begin(self, network: str) -> None:
        self.acting = network
        self._steps, self._discounted, self._spent, self._called = 0, 0.0, 0.0, False

    def reset(self) -> None:
        """An episode begins. The one before, if any, is put on the accounts."""
        if self._called:
            self._settle()
        self.policy.reset()
        self._begin(COSTLY if self._can_pay() else CHEAP)

    def __call__(self, observation: Any, cost: float | None = None) -> np.ndarray:
        """The action to send. `cost` is what the step before cost; there is none in the first step of an episode."""
        seen = checked_observation(self.policy, observation)
        if self._called:
            self._spend(checked_cost(cost))
        self._called = True
        return action_of(self.policy.artifact, self.acting, seen)

    def _spend(self, cost: float) -> None:
        self._discounted += self.discount**self._steps * cost
        self._spent += cost
        self._steps += 1

    def _settle(self) -> None:
        self._spend(self._spent / self._steps if self._steps else self.pace)  # the last step
        excess = self._spent - self.pace * self._steps
        self.episodes += 1
        self.saved_discounted += self.limit - self._discounted
        self.saved -= excess
        if self.acting == COSTLY:
            self.costly_episodes += 1
            self._costly_discounted += self._discounted
            self._costly_excess += excess

    def _can_pay(self) -> bool:
        """For one more episode of the costly policy."""
        if not self.episodes:
            return False
        if self.costly_episodes:
            discounted = self._costly_discounted / self.costly_episodes
            excess = self._costly_excess / self.costly_episodes
        else:
            discounted = self.expectation.costly_cost
            excess = self.horizon * (discounted * (1.0 - self.discount) - self.pace)
        return self.saved_discounted + self.limit >= discounted and self.saved >= excess
