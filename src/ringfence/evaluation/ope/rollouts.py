"""What a policy does in a model of the plant (`dynamics`), and what it earns and costs there."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringfence.evaluation.ope.features import Rows


@dataclass(frozen=True, eq=False)
class RollOuts:
    """What a policy does in each plant; rows beyond a termination have `alive` 0."""

    observations: Rows  # (steps, plants, roll-outs, obs)
    actions: Rows
    rewards: Rows  # (steps, plants, roll-outs)
    costs: Rows
    alive: Rows  # the probability that the episode has not terminated before this step
    perhaps_alive: Rows  # the same if only ends that are beyond doubt count
    at_longest: Rows  # the same without ends by levels
    known: Rows  # 1 until the roll-out leaves the log's states, then 0
    discount: float
    unknown_reward: float = 0.0  # what a step is taken to earn after that
    disturbed: "RollOuts | None" = None  # the same policy in disturbed plants

    def ends(self, signal: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(plants,) each: the least and the most that the policy earns ("return") or costs ("cost"), with and without
        disturbances. What it does beyond the log's states lies between nothing and what is imagined."""
        by_plant = np.stack([sums.mean(1) for sums in self._both_ends(signal)])
        return by_plant.min(0), by_plant.max(0)

    def start_spread(self, signal: str) -> float:
        """The standard error of these means over the states that roll-outs start in, which are a sample of the log's."""
        by_start = [sums.mean(0) for sums in self._both_ends(signal)]
        count = len(by_start[0])
        return max(float(sums.std(ddof=1)) for sums in by_start) / count**0.5 if count > 1 else 0.0

    @property
    def greatest_cost(self) -> NDArray[np.float64]:
        """(plants,): the most that the policy costs, with and without disturbances, if no level ends an episode."""
        return np.asarray(
            np.max([each._sums(each.at_longest * each.costs).mean(1) for each in self._with_disturbed], 0)
        )

    @property
    def scatter(self) -> NDArray[np.float64]:
        """What single episodes cost, less the mean of their plant, of all plants together: with or without disturbances,
        where they scatter more. How far the plants differ is not scatter but uncertainty."""
        costs = [each.imagined_cost for each in self._with_disturbed]
        return max(((x - x.mean(1, keepdims=True)).ravel() for x in costs), key=np.std)

    @property
    def known_return(self) -> NDArray[np.float64]:
        """(plants, roll-outs): discounted, if steps beyond the log's states earn as little as the log's poorest episode, or
        nothing: the least that the log shows."""
        return self._sums(self.alive * np.where(self.known > 0, self.rewards, np.float32(self.unknown_reward)))

    @property
    def imagined_return(self) -> NDArray[np.float64]:
        """(plants, roll-outs): the same if rewards go on as imagined, as long as they may."""
        return self._sums(self.perhaps_alive * self.rewards)

    @property
    def known_cost(self) -> NDArray[np.float64]:
        """(plants, roll-outs): discounted, while the roll-outs are among the log's states."""
        return self._sums(self.alive * self.known * self.costs)

    @property
    def imagined_cost(self) -> NDArray[np.float64]:
        """(plants, roll-outs): the same if costs go on as imagined, as long as they may."""
        return self._sums(self.perhaps_alive * self.costs)

    def _both_ends(self, signal: str) -> list[NDArray[np.float64]]:
        names = {"return": ("known_return", "imagined_return"), "cost": ("known_cost", "imagined_cost")}[signal]
        return [getattr(each, name) for each in self._with_disturbed for name in names]

    @property
    def _with_disturbed(self) -> "list[RollOuts]":
        return [self, self.disturbed] if self.disturbed else [self]

    @property
    def steps(self) -> float:
        """How long an episode lasts on average, up to the horizon."""
        return float(self.alive.sum(0).mean())

    @property
    def leaving(self) -> float:
        """The share of the roll-outs that leave the log's states before they terminate: each counts by the probability that
        it still goes on in the step in which it leaves."""
        before = np.concatenate([np.ones_like(self.known[:1]), self.known[:-1]])
        return float((self.alive * (before - self.known)).sum(0).mean())

    def share(self, flags: NDArray[np.bool_]) -> float:
        """The share of the discounted steps, those after a termination left out, that is flagged."""
        weights = self.alive * self._factors
        return float((weights * flags).sum() / weights.sum())

    @property
    def _factors(self) -> Rows:
        return np.asarray(self.discount ** np.arange(len(self.alive)), np.float32)[:, None, None]

    def _sums(self, signal: Rows) -> NDArray[np.float64]:
        """(plants, roll-outs)"""
        return np.asarray((self._factors * signal).sum(0, dtype=np.float64))
