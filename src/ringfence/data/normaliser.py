"""The scale of observations, so that networks see numbers of size one."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringfence.data.checks import blocks

# A column whose spread is below the rounding of its own size carries no signal; dividing by it would blow up noise.
RELATIVE_SPREAD = 1e-6
ABSOLUTE_SPREAD = 1e-8


@dataclass(frozen=True, eq=False)
class Normaliser:
    """(observation - mean) / std, per column. A constant column has std 1, or more if numbers of its size (such as seconds
    since 1970) are rounded by more: what is left of its changes must not swamp the other columns."""

    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @classmethod
    def of(cls, observations: NDArray[np.float32]) -> "Normaliser":
        mean, std = mean_and_std(observations)
        rounding = RELATIVE_SPREAD * np.abs(mean)
        constant = std <= np.maximum(rounding, ABSOLUTE_SPREAD)
        return cls(mean.astype(np.float32), np.where(constant, np.maximum(rounding, 1.0), std).astype(np.float32))

    def __call__(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        return (observations - self.mean) / self.std


def mean_and_std(values: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per column, in float64 and two passes: the textbook one-pass formula loses all digits for large means."""
    rows = len(values)
    mean = np.sum([values[block].sum(axis=0, dtype=np.float64) for block in blocks(rows)], axis=0) / rows
    squares = np.zeros_like(mean)
    for block in blocks(rows):
        squares += np.square(values[block] - mean).sum(axis=0)
    return mean, np.sqrt(squares / rows)
