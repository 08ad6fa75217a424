"""`Turns`: two policies take turns, so that the limit is kept on average over episodes and used in full. NumPy only.

A limit bounds the expected cost. Where a plant has a cheap gait and a costly one and nothing between, no single policy
uses a limit between their costs. Two policies do, one inside the limit and one over it, if the costly one acts in the right
share of the episodes. `Turns` decides before each episode which of them acts. It is told what the steps cost and keeps two
accounts over all episodes so far:

    discounted   the sum of (l - an episode's discounted cost)
    pace         the sum of (the pace l (1 - discount) - the cost) of every step

The costly policy acts if both accounts can pay for one more of its episodes. The price of one is what the complete ones took
from the account on average; before there is one it is what CPQ's model expects, from the policy's file. So the cheap policy
begins.

An episode that ends before the horizon saves nothing by that. It is credited with the part of l that its n steps stand for,
l (1 - discount^n) / (1 - discount^horizon), and the rest of l counts as its cost. If the costly policy acted, the account is
charged the price where the episode took less, and the price stays; where it took more, it counts as a complete one. So a
costly policy that falls does not act more often for it.

As long as no cheap episode takes more from an account than it is credited with, and no costly one more than the price, the
mean over the episodes so far is inside the limit after each of them, discounted and per step. If one takes more, cheap
episodes pay it back. A single episode of the costly policy is over the limit: where every episode must be inside, use a
`Pacer`.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.costs import Terms, action_of, checked_cost, checked_observation, numbers_of, opened
from ringfence.deploy.policy import Policy
from ringfence.errors import InvalidSetting
from ringfence.limits import discounted_steps

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


class Price(NamedTuple):
    """What one more episode of the costly policy is expected to take from an account."""

    expected: float  # by CPQ's model
    total: float = 0.0  # of the episodes that count
    episodes: int = 0

    @property
    def now(self) -> float:
        return self.total / self.episodes if self.episodes else self.expected

    def settle(self, cost: float, complete: bool) -> "tuple[float, Price]":
        """What an episode is charged that took `cost` from the account, and the price of the next one. An episode that ended
        early does not show how cheap a complete one is, so it may raise the price and not lower it."""
        if complete or cost > self.now:
            return cost, self._replace(total=self.total + cost, episodes=self.episodes + 1)
        return self.now, self


def credit(terms: Terms, steps: int) -> float:
    """The part of the limit that an episode of so many steps stands for; all of it if the episode is complete."""
    lived = min(steps, terms.horizon)
    return terms.limit * (discounted_steps(terms.discount, lived) / discounted_steps(terms.discount, terms.horizon))


class Turns:
    """Two policies of one file, one episode each at a time.

        turns = ringfence.Turns("policy.safetensors")
        turns.reset()                                    # decides who acts in the first episode
        action = turns(observation, cost=cost_of_the_last_step)
        turns.reset(cost=cost_of_the_last_step)          # the episode has ended: decides who acts in the next one
        turns.acting, turns.saved_discounted, turns.saved

    `policy` is a `Policy`, an `Artifact` or a file; `limit` (on the discounted cost) and `horizon` (steps of an episode)
    replace the file's. One object serves one plant; it remembers all episodes since it was made. A `reset()` without the
    cost of the episode's last step takes it to be the mean of the others, or the pace if there are none: then a cost in the
    step that ends an episode, as of a crash, is missed.
    """

    def __init__(
        self, policy: Policy | Artifact | str | Path, *, limit: float | None = None, horizon: int | None = None
    ):
        self.policy = opened(policy)
        artifact = self.policy.artifact
        self.expectation = Expectation.of(artifact)
        self._terms = terms = Terms.of(artifact, limit, horizon)
        if terms.discount >= 1.0:
            raise InvalidSetting(
                f"taking turns needs a discount below 1, not {terms.discount!r}: with 1 there is no pace"
            )
        self.limit, self.horizon, self.discount = terms
        self.pace = terms.pace
        self.episodes = self.costly_episodes = 0
        self.saved_discounted = self.saved = 0.0
        expected = self.expectation.costly_cost
        self._price_discounted = Price(expected)
        self._price = Price(self.horizon * (expected * (1.0 - self.discount) - self.pace))  # in cost over the pace
        self._begin(CHEAP)

    def _begin(self, network: str) -> None:
        self.acting = network
        self._steps, self._discounted, self._spent, self._called = 0, 0.0, 0.0, False

    def reset(self, cost: float | None = None) -> None:
        """An episode begins. The one before, if any, is put on the accounts; `cost` is what its last step cost."""
        told = None if cost is None else checked_cost(cost)
        if self._called:
            self._spend(self._guessed_cost() if told is None else told)
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

    def _guessed_cost(self) -> float:
        """Of a last step that is not told."""
        return self._spent / self._steps if self._steps else self.pace

    def _settle(self) -> None:
        discounted = self._discounted + (self.limit - credit(self._terms, self._steps))
        excess = self._spent - self.pace * self._steps
        self.episodes += 1
        if self.acting == COSTLY:
            self.costly_episodes += 1
            complete = self._steps >= self.horizon
            discounted, self._price_discounted = self._price_discounted.settle(discounted, complete)
            excess, self._price = self._price.settle(excess, complete)
        self.saved_discounted += self.limit - discounted
        self.saved -= excess

    def _can_pay(self) -> bool:
        """For one more episode of the costly policy."""
        if not self.episodes:
            return False
        return self.saved_discounted + self.limit >= self._price_discounted.now and self.saved >= self._price.now
