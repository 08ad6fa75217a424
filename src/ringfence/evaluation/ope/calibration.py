"""How wrong fitted Q evaluation is on this log, measured where the answer is known: the log's own behaviours.

Each source is evaluated like any other policy from all the judging episodes (so from the other sources' too), and the
result is compared with what the source's reference episodes really got. Where the source itself wrote the row, its next
action is the logged one; in the states of other sources it is that of a clone. (By a clone everywhere the check would
measure the clone: on robots regression misses the actions of the first steps, and with them the gait.) The errors, relative
to the size of the values, widen every interval on this log. Two or three sources are too few for conformal prediction,
which would need as many as 20 for a level of 95 %; the root mean square of their errors is used as a standard deviation.

Roll-outs in a model of the plant (see `dynamics`) are checked in the same way, with clones that act by themselves: their
error holds that of the clone too. For a policy that acts unlike every source it is taken to be larger (`extrapolated`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringfence.data.dataset import Dataset
from ringfence.data.episodes import discounted_sum
from ringfence.evaluation.ope.clone import Clone, clone_of, network_clones, sources_of
from ringfence.evaluation.ope.dynamics import Dynamics
from ringfence.evaluation.ope.features import Rows
from ringfence.evaluation.ope.fqe import FittedQ
from ringfence.limits import over_horizon

WHOLE = 0.05  # an episode counts as whole if at most this share of its discounted steps is missing
LEAST_ERROR = 0.03  # assumed at least: a few sources may be estimated without error by chance
LEAST_DIVISOR = 1e-12
MOST_DISTANCE = 0.5  # from a source, in units of its noise, up to which a policy acts nearly as the source does
LEAST_SIZE = 0.5  # values smaller than this share of the largest source's are compared with that share


@dataclass(frozen=True)
class SourceCheck:
    """What a source of the log got in its reference episodes, and what fitted Q evaluation says of it."""

    name: str
    episodes: int
    returned: float
    cost: float
    return_spread: float  # standard deviation over episodes
    cost_spread: float
    estimated_return: float
    estimated_cost: float
    amplification: float = 1.0  # of the estimates' errors, see `fqe.Values`
    modelled_return: float | None = None  # of its clone in the model of the plant, if there is one
    modelled_cost: float | None = None


@dataclass(frozen=True, eq=False)
class Calibration:
    checks: tuple[SourceCheck, ...]
    clones: tuple[Clone, ...]
    shape: NDArray[np.float64]  # episodes' costs, standardised within their source: the shape of a tail
    unchecked: tuple[str, ...] = ()  # sources without a whole reference episode, of which the error is not known

    def error(self, signal: str, modelled: bool = False) -> float:
        """Root mean square error over the sources, relative to the size of the value ("return" or "cost"), of fitted Q
        evaluation or of roll-outs in the model.

        What a source got is itself known from some episodes only; the variance of that mean is taken off. An error
        smaller than its standard error could not have been seen, so that of each source counts as at least so large."""
        found = self._checked(signal, modelled)
        sizes = np.array([max(self._size(got, signal), LEAST_DIVISOR) for _, got, _ in found])
        noise = np.array([noise for *_, noise in found])
        missed = np.array([estimated - got for estimated, got, _ in found])
        squares = np.maximum(missed**2 - noise**2, noise**2)
        return max(float(np.sqrt(np.mean(squares / sizes**2))), LEAST_ERROR)

    def modelled_spread(self, signal: str, value: float, distance: float = 0.0) -> float:
        """The standard deviation that the error of the clones' roll-outs gives to that of another policy, which acts at this
        distance from the nearest source (`support.distance_of`)."""
        return self.error(signal, modelled=True) * self._size(value, signal) * extrapolated(distance)

    def spread(self, signal: str, value: float, amplification: float = 1.0, distance: float = 0.0) -> float:
        """The standard deviation that the measured error gives to an estimate of this value. Errors were measured on the
        sources; an estimate that amplifies errors more than theirs do, or of a policy at some distance from them, is given
        so much more."""
        usual = float(np.mean([check.amplification for check in self.checks]))
        return self.error(signal) * self._size(value, signal) * max(amplification / usual, 1.0) * extrapolated(distance)

    def least_scatter(self, cost: float) -> float:
        """The least standard deviation of an episode's cost that is believed: that of the steadiest source, relative to its
        size. The variance that is backed up is a difference of large numbers, and can come out as nothing."""
        relative = [check.cost_spread / max(self._size(check.cost, "cost"), LEAST_DIVISOR) for check in self.checks]
        return min(relative) * self._size(cost, "cost")

    def _size(self, value: float, signal: str) -> float:
        """What errors are relative to. It is 0 where nothing ever cost (or earned) anything, and then so is every spread."""
        return max(abs(value), LEAST_SIZE * max(abs(got) for _, got, _ in self._checked(signal)))

    def _checked(self, signal: str, modelled: bool = False) -> list[tuple[float, float, float]]:
        """(estimate, what the source got, standard error of that) of each source."""
        returns = signal == "return"
        found = []
        for c in self.checks:
            by_model = c.modelled_return if returns else c.modelled_cost
            by_backups = c.estimated_return if returns else c.estimated_cost
            got, spread = (c.returned, c.return_spread) if returns else (c.cost, c.cost_spread)
            estimate = by_model if modelled and by_model is not None else by_backups
            found.append((estimate, got, spread / c.episodes**0.5))
        return found


def extrapolated(distance: float) -> float:
    """How many times as large as for the sources an error is taken to be for a policy that acts at this distance from them:
    it grows in proportion, from MOST_DISTANCE on. The log's pairs lie around the sources' actions, at the distance of
    their noise, and a policy that acts elsewhere sees more of the errors of what was fitted to them."""
    return max(1.0, distance / MOST_DISTANCE)


Behaviours = Mapping[str, Callable[[Rows, np.random.Generator], Rows]]
"""Sources whose controllers are known: (observations, generator) to sampled actions."""


def calibrate(
    fitted: FittedQ,
    reference: Dataset,
    seed: int = 0,
    behaviours: Behaviours | None = None,
    dynamics: Dynamics | None = None,
) -> Calibration:
    """Check fitted Q evaluation, and a model of the plant if there is one, against reference episodes of each source."""
    log = fitted.log
    rng = np.random.default_rng(seed)
    checks, clones, shapes, unchecked = [], [], [], []
    known = dict(sources_of(reference))
    networks = {clone.name: clone for clone in network_clones(log, seed=seed)} if dynamics else {}
    for name, rows in sources_of(log):
        got = whole_episodes(reference, known.get(name), fitted.discount, fitted.horizon)
        if len(got) == 0:
            unchecked.append(name)
            continue
        clone = networks.get(name) or clone_of(log, name, rows)
        act = (behaviours or {}).get(name, clone.sample)
        values = fitted.evaluate(*behaved(log, rows, act, rng))
        modelled = _modelled(dynamics, act, rng, fitted) if dynamics else (None, None)
        mean, spread = got.mean(0), got.std(0)
        measured = float(mean[0]), float(mean[1]), float(spread[0]), float(spread[1])
        checks.append(
            SourceCheck(name, len(got), *measured, values.returned, values.cost, values.amplification, *modelled)
        )
        clones.append(clone)
        if spread[1] > 0:
            shapes.append((got[:, 1] - mean[1]) / spread[1])
    shape = np.concatenate(shapes) if shapes else np.zeros(1)
    return Calibration(tuple(checks), tuple(clones), shape, tuple(unchecked))


def _modelled(
    dynamics: Dynamics, act: Callable[[Rows, np.random.Generator], Rows], rng: np.random.Generator, fitted: FittedQ
) -> tuple[float, float]:
    rolled = dynamics.roll_out(lambda observations: act(observations, rng), fitted.horizon, fitted.discount)
    returned, cost = (float(np.mean(rolled.ends(signal))) for signal in ("return", "cost"))
    return returned, cost


def behaved(
    log: Dataset, rows: NDArray[np.bool_], act: Callable[[Rows, np.random.Generator], Rows], rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """(next actions, start actions) of the source that wrote these rows: as logged where it wrote them, elsewhere and
    after the last row of an episode by `act`."""
    starts, last = log.episode_starts, log.episode_ends - 1
    logged = rows.copy()
    logged[last] = False
    next_actions = np.where(logged[:, None], np.roll(log.actions, -1, axis=0), act(log.next_observations, rng))
    first = np.where(rows[starts][:, None], log.actions[starts], act(log.observations[starts], rng))
    return np.asarray(next_actions, np.float32), np.asarray(first, np.float32)


def whole_episodes(log: Dataset, rows: NDArray[np.bool_] | None, discount: float, horizon: int) -> NDArray[np.float64]:
    """(episodes, 2): discounted return and cost over the horizon of the episodes, among these rows, that were not cut
    off early."""
    if rows is None:
        return np.zeros((0, 2))
    starts, ends = log.episode_starts, log.episode_ends
    length = np.minimum(ends - starts, horizon)
    missing = 1.0 - over_horizon(1.0, discount, length) / over_horizon(1.0, discount, horizon)
    whole = rows[starts] & (log.terminations[ends - 1] | (missing <= WHOLE))
    sums = [
        [discounted_sum(x[start : start + steps], discount) for x in (log.rewards, log.costs)]
        for start, steps in zip(starts[whole], length[whole], strict=True)
    ]
    return np.array(sums, np.float64).reshape(-1, 2)
