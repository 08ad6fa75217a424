"""Features of a state and an action that critics are linear in.

A critic that is linear in many fixed features is fitted exactly, by one linear solve: no learning rate, no target
network, no question whether it has converged. The features are the scaled inputs, hinges at quantiles of each of them
(a cost is often a hinge: degrees above a limit, the size of a torque) and random ReLU units of all of them together
(Rahimi and Recht, "Uniform approximation of functions with random bases", 2008).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringfence.data.dataset import Dataset

Rows = NDArray[np.float32]  # (rows, columns)
Features = Callable[[Rows, Rows], Rows]
"""(observations, actions) in the user's units to features, one row each; the first feature is 1."""

COUNT = 400  # of features
KNOTS = (0.1, 0.5, 0.9)  # quantiles at which each input has a hinge
STEEPNESS = 1.5  # how fast a random unit varies over the spread of the inputs
STRAIGHT = 3.0  # spreads; what lies further out counts by its logarithm


@dataclass(frozen=True, eq=False)
class Scaling:
    """Columns in units of their spread around their median. Far outliers are compressed: one runaway of a plant must not
    hide what happens in normal operation."""

    centre: Rows
    spread: Rows

    @classmethod
    def of(cls, columns: Rows) -> "Scaling":
        low, centre, high = np.quantile(columns, (0.1, 0.5, 0.9), axis=0).astype(np.float32)
        spread = (high - low) / 2
        spread = np.where(spread > 0, spread, columns.std(axis=0))
        return cls(centre, np.where(spread > 1e-6 * (np.abs(centre) + 1e-6), spread, 1.0).astype(np.float32))

    def __call__(self, columns: Rows) -> Rows:
        scaled = (columns - self.centre) / self.spread
        size = np.abs(scaled)
        far = np.sign(scaled) * (STRAIGHT + np.log1p(np.maximum(size - STRAIGHT, 0.0)))
        return np.where(size > STRAIGHT, far, scaled).astype(np.float32)


@dataclass(frozen=True, eq=False)
class RandomFeatures:
    """[1, z, hinges of z, ReLU(W z + b)], z the scaled observation and action."""

    scaling: Scaling
    knots: Rows  # (knots, inputs)
    weights: Rows  # (inputs, units)
    bias: Rows

    @classmethod
    def of(cls, log: Dataset, count: int = COUNT, seed: int | Sequence[int] = 0) -> "RandomFeatures":
        return cls.of_columns(np.concatenate([log.observations, log.actions], 1), count, seed)

    @classmethod
    def of_columns(cls, columns: Rows, count: int = COUNT, seed: int | Sequence[int] = 0) -> "RandomFeatures":
        scaling = Scaling.of(columns)
        knots = np.quantile(scaling(columns), KNOTS, axis=0).astype(np.float32)
        inputs = columns.shape[1]
        units = max(count - 1 - (1 + len(KNOTS)) * inputs, 32)
        rng = np.random.default_rng(seed)
        weights = STEEPNESS / np.sqrt(inputs) * rng.standard_normal((inputs, units))
        return cls(scaling, knots, weights.astype(np.float32), rng.standard_normal(units).astype(np.float32))

    def __call__(self, observations: Rows, actions: Rows) -> Rows:
        return self.of_inputs(np.concatenate([observations, actions], 1))

    def of_inputs(self, columns: Rows) -> Rows:
        z = self.scaling(columns)
        hinges = [np.maximum(z - knot, 0.0) for knot in self.knots]
        units = np.maximum(z @ self.weights + self.bias, 0.0)
        return np.concatenate([np.ones((len(z), 1), np.float32), z, *hinges, units], 1)
