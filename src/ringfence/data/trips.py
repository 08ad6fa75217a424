"""Levels of single columns beyond which logged episodes end: a height below which a robot has fallen, a temperature at which
a plant shuts down.

Ends are rare in a log, so that a network which learns them from state and action says little shortly before one. But most
ends have a simple reason: one measured value has passed a level. Where the log shows such a level, an imagined episode ends
when its next state passes it. A policy that falls is then seen to fall as soon as the model's states do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringfence.data.dataset import Dataset

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Level:
    """A level of one column of the state, and how many terminations it explains that those found before it do not."""

    column: int
    below: bool  # which side of it ends an episode
    value: float
    terminations: int


@dataclass(frozen=True, eq=False)
class Trips:
    """Two levels for each column of a state; infinite where the column ends no episode."""

    low: Rows
    high: Rows

    @classmethod
    def at(cls, levels: Sequence[Level], columns: int) -> "Trips":
        low, high = np.full(columns, -np.inf, np.float32), np.full(columns, np.inf, np.float32)
        for level in levels:
            (low if level.below else high)[level.column] = level.value
        return cls(low, high)

    def moved_out(self, by: Rows) -> "Trips":
        """The same levels, further out by so much for each column."""
        return Trips(self.low - by, self.high + by)

    def __call__(self, observations: Rows) -> NDArray[np.bool_]:
        """Whether each state has passed a level."""
        return np.asarray(np.any((observations < self.low) | (observations > self.high), axis=-1))


def find_levels(log: Dataset) -> list[Level]:
    """The fewest levels that explain the log's terminations, found greedily: the level that explains most comes first, and
    one that explains no further termination is not taken.

    A level of a column can only lie beyond every state in which an episode went on. It is put halfway between the outermost
    of these and the nearest of the states beyond it in which an episode ended."""
    ended = log.next_observations[log.terminations]
    went_on = ~log.terminations[:, None]
    least = np.minimum(log.observations.min(0), log.next_observations.min(0, where=went_on, initial=np.inf))
    most = np.maximum(log.observations.max(0), log.next_observations.max(0, where=went_on, initial=-np.inf))
    beyond = np.stack([ended < least, ended > most])  # (side, termination, column)
    unexplained, levels = np.ones(len(ended), bool), []
    while unexplained.any():
        explains = beyond[:, unexplained].sum(1)
        side, column = (int(i) for i in np.unravel_index(np.argmax(explains), explains.shape))
        if not explains[side, column]:
            break
        passed = beyond[side, :, column]
        values = ended[passed, column]
        value = (least[column] + values.max()) / 2 if side == 0 else (most[column] + values.min()) / 2
        levels.append(Level(column, side == 0, float(value), int(explains[side, column])))
        unexplained &= ~passed
    return levels


def find_trips(log: Dataset) -> Trips:
    return Trips.at(find_levels(log), log.observations.shape[1])
