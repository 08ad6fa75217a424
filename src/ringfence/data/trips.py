"""Levels of single columns beyond which logged episodes end: a height below which a robot has fallen, a temperature at which
a plant shuts down.

Ends are rare in a log, so that a network which learns them from state and action says little shortly before one. But most
ends have a simple reason: one measured value has passed a level. Where the log shows such a level, an imagined episode ends
when its next state passes it. A policy that falls is then seen to fall as soon as the model's states do.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringfence.data.dataset import Dataset

Rows = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Trips:
    """Two levels for each column of a state; infinite where the column ends no episode."""

    low: Rows
    high: Rows

    def __call__(self, observations: Rows) -> NDArray[np.bool_]:
        """Whether each state has passed a level."""
        return np.asarray(np.any((observations < self.low) | (observations > self.high), axis=-1))


def find_trips(log: Dataset) -> Trips:
    """The fewest levels that explain the log's terminations, found greedily: the level that explains most comes first, and
    one that explains no further termination is not taken.

    A level of a column can only lie beyond every state in which an episode went on. It is put halfway between the outermost
    of these and the nearest of the states beyond it in which an episode ended."""
    ended = log.next_observations[log.terminations]
    went_on = np.concatenate([log.observations, log.next_observations[~log.terminations]])
    least, most = went_on.min(0), went_on.max(0)
    low, high = np.full_like(least, -np.inf), np.full_like(most, np.inf)
    unexplained = np.ones(len(ended), bool)
    while unexplained.any():
        beyond = np.stack([ended < least, ended > most])  # (side, termination, column)
        explains = beyond[:, unexplained].sum(1)
        side, column = np.unravel_index(np.argmax(explains), explains.shape)
        if not explains[side, column]:
            break
        passed = beyond[side, :, column]
        if side == 0:
            low[column] = (least[column] + ended[passed, column].max()) / 2
        else:
            high[column] = (most[column] + ended[passed, column].min()) / 2
        unexplained &= ~passed
    return Trips(low, high)
