"""Can the log judge this policy at all? How far its actions lie from logged ones, along the path it would take.

A pair is foreign if its leverage (see `fqe`) is above that of all but one in two hundred logged pairs. Rows count by their
weight in the estimate, so that states which the policy would never reach do not matter. The same is asked of the states
that it comes to in a model of the plant, if there is one.

The log shows what happens when its sources' actions are changed by about as much as their own noise. A policy that acts
within that distance of a source, in the source's states, stays among states that the source shows. One that does not may
drift away from all of them, and neither backups nor a model can see that: they know logged states only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringfence.data.dataset import Dataset
from ringfence.deploy import Policy
from ringfence.evaluation.episodes import Controller
from ringfence.evaluation.ope.clone import Clone, sources_of
from ringfence.evaluation.ope.features import Rows
from ringfence.evaluation.ope.fqe import FittedQ, Values
from ringfence.evaluation.ope.rollouts import RollOuts

SAMPLE = 10_000
DETECTED = 2000  # of them, which the policy's own detector looks at
NEIGHBOURS_OF = 400  # pairs whose nearest logged neighbour is looked for


@dataclass(frozen=True)
class Support:
    """How well the log covers a policy."""

    foreign: float  # share of its actions, in the log's states, that are unlike logged ones
    foreign_on_path: float  # the same, each state weighted by how often the policy would come there
    nearest: float  # distance to the nearest logged pair, in units of that between logged pairs (median, on the path)
    effective_episodes: float  # how many logged episodes the estimate rests on
    amplification: float  # of errors, by weights of rows that cancel each other; 1 is none (see `fqe.Values`)
    detector: float | None  # share of its actions that its own detector calls foreign, if it has one
    distance: float  # of its actions from those of the nearest source, in that source's states and units of its noise
    foreign_modelled: float | None = (
        None  # share of foreign pairs on its path in the model of the plant, if there is one
    )
    leaving: float | None = None  # share of its roll-outs that leave the log's states, see `dynamics`


class Coverage:
    """What a log covers; prepared once for any number of policies."""

    def __init__(self, fitted: FittedQ, seed: int = 0):
        self.fitted, rng = fitted, np.random.default_rng(seed)
        self.log = fitted.log
        self.rows = np.sort(rng.choice(len(self.log), min(SAMPLE, len(self.log)), replace=False))
        columns = np.concatenate([self.log.observations, self.log.actions], 1)
        spread = columns.std(0)
        self.scale = np.where(spread > 0, spread, 1.0)
        self.logged = (columns / self.scale).astype(np.float32)
        probe = rng.choice(len(self.log), min(NEIGHBOURS_OF, len(self.log)), replace=False)
        lengths = self.log.episode_ends - self.log.episode_starts
        self.episode = np.repeat(np.arange(len(lengths)), lengths)
        self.usual = float(np.median(self._nearest(self.logged[probe], self.episode[probe]))) or 1.0

    def of(
        self,
        controller: Controller,
        next_actions: Rows,
        start_actions: Rows,
        values: Values,
        clones: Sequence[Clone] = (),
        rolled: RollOuts | None = None,
    ) -> Support:
        """The policy's pairs are those that it plays after some rows, where the episode went on, and in the first states of
        episodes."""
        log, starts = self.log, self.log.episode_starts
        rows = self.rows[~log.terminations[self.rows]]  # after a termination nobody acts
        observations = np.concatenate([log.next_observations[rows], log.observations[starts]])
        actions = np.concatenate([next_actions[rows], start_actions])
        of = np.concatenate([rows, starts])  # the row whose episode and source a pair is of
        share = len(log) / len(self.rows)  # rows that each of these stands for
        after = share * self.fitted.discount * np.maximum(values.weights[rows], 0.0)
        weights = np.concatenate([after, np.full(len(starts), 1 / len(starts))])
        if not values.in_range:  # diverging backups give no weights, so all rows weigh the same
            weights = np.ones(len(of))
        weights = weights / weights.sum()
        pairs = np.asarray(self.fitted.features(observations, actions), np.float32)
        foreign = self.fitted.leverage(pairs) > self.fitted.most_leverage
        rng = np.random.default_rng(0)
        probe = rng.choice(len(of), min(NEIGHBOURS_OF, len(of)), p=weights)
        own = np.concatenate([observations[probe], actions[probe]], 1) / self.scale
        nearest = float(np.median(self._nearest(own.astype(np.float32), self.episode[of[probe]]))) / self.usual
        length = len(log) / len(starts)
        return Support(
            foreign=float(foreign.mean()),
            foreign_on_path=float(weights @ foreign),
            nearest=nearest,
            effective_episodes=values.effective_rows / length,
            amplification=values.amplification,
            detector=_by_detector(controller, observations, actions),
            distance=distance_of(log, of, observations, actions, clones),
            foreign_modelled=None if rolled is None else rolled.share(self._foreign(rolled)),
            leaving=None if rolled is None else rolled.leaving,
        )

    def _foreign(self, rolled: RollOuts) -> NDArray[np.bool_]:
        """Of each pair of the roll-outs, one step in five; the steps between are taken to be like it."""
        stride, shape = 5, rolled.alive.shape
        kept = rolled.observations[::stride], rolled.actions[::stride]
        flat = (x.reshape(-1, x.shape[-1]) for x in kept)
        pairs = np.asarray(self.fitted.features(*flat), np.float32)
        foreign = self.fitted.leverage(pairs) > self.fitted.most_leverage
        return np.repeat(foreign.reshape(-1, *shape[1:]), stride, axis=0)[: shape[0]]

    def _nearest(self, points: Rows, episodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Distance of each point to the nearest logged pair of another episode than its own."""
        out = np.full(len(points), np.inf)
        norms = (points**2).sum(1)
        for i in range(0, len(self.logged), 20_000):
            part = self.logged[i : i + 20_000]
            squared = norms[:, None] + (part**2).sum(1) - 2 * points @ part.T
            squared = np.where(self.episode[i : i + 20_000] == episodes[:, None], np.inf, squared)
            out = np.minimum(out, squared.min(1))
        return np.asarray(np.sqrt(np.maximum(out, 0.0)))


def distance_of(
    log: Dataset, rows: NDArray[np.int64], observations: Rows, actions: Rows, clones: Sequence[Clone]
) -> float:
    """How far the policy acts from the nearest source: the root mean square difference of these actions from the source's
    mean actions, in units of its noise, in those of the states whose row it wrote. Infinite without sources."""
    found = [np.inf]
    written = dict(sources_of(log))
    for clone in clones:
        own = written[clone.name][rows]
        if own.any():
            apart = (actions[own] - clone.mean(observations[own])) / clone.spread
            found.append(float(np.sqrt((apart.astype(np.float64) ** 2).mean())))
    return float(min(found))


def _by_detector(controller: Controller, observations: Rows, actions: Rows) -> float | None:
    if not isinstance(controller, Policy) or controller.artifact.detector_threshold is None:
        return None
    few = np.random.default_rng(0).permutation(len(actions))[:DETECTED]  # rows are in the order of the log
    scores = controller.artifact.detector_score(observations[few], actions[few])
    return float(np.mean(scores >= controller.artifact.detector_threshold))
