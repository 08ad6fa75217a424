"""What a guard must know of the training log beyond its range: how the columns go together, how long they stand still.

Both become tensors of the artifact, so that a guard needs no log:

    guard_centre, guard_whitening   d(s) = |W' (s - centre)|^2 of normalised observations, a Mahalanobis distance
    guard_distance                  the `QUANTILE` of d over the log
    guard_stillness                 for each column, the most consecutive steps of an episode with the same value
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ringfence.deploy.artifact import Artifact

QUANTILE = 0.99  # as that of CPQ's detector
KEPT = 0.95  # of the rows, those nearest to the centre, give centre and covariance: a few wild rows would blur them
ROUNDS = 2
RIDGE = 1e-4  # of normalised columns: one that is a function of the others does not divide by zero
ROWS = 100_000


def with_reference(artifact: Artifact, log: Any) -> Artifact:
    """The artifact with what a guard must know of the log, for one that was trained before artifacts had it. `log` is the
    `Dataset` that it was trained on."""
    normalised = (log.observations - artifact.observation_mean) / artifact.observation_std
    tensors = {**artifact.tensors, **guard_tensors(normalised, log.terminations | log.truncations)}
    ranges = {"observation_low": log.observations.min(0), "observation_high": log.observations.max(0)}
    return replace(artifact, tensors=tensors, **ranges)


def guard_tensors(normalised: np.ndarray, ends: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors of a log: its normalised observations (rows, obs), and which rows end an episode."""
    chosen = normalised[:: max(1, len(normalised) // ROWS)].astype(np.float64)
    near = chosen
    for _ in range(ROUNDS):
        centre, covariance = near.mean(0), np.atleast_2d(np.cov(near.T)) if len(near) > 1 else np.eye(near.shape[1])
        whitening = np.linalg.cholesky(np.linalg.inv(covariance + RIDGE * np.eye(len(covariance))))
        distances = (((chosen - centre) @ whitening) ** 2).sum(1)
        near = chosen[distances <= np.quantile(distances, KEPT)]
    return {
        "guard_centre": centre,
        "guard_whitening": whitening,
        "guard_distance": np.array([np.quantile(distances, QUANTILE)]),
        "guard_stillness": stillness(normalised, ends),
    }


def stillness(rows: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """For each column the length of the longest stretch of equal values inside one episode.

    >>> stillness(np.array([[1.0], [1.0], [2.0], [2.0], [2.0]]), np.array([False, False, False, True, True]))
    array([2.])
    """
    at = np.arange(1, len(rows))

    def longest(column: np.ndarray) -> float:
        same = (column[1:] == column[:-1]) & ~ends[:-1]
        broken = np.maximum.accumulate(np.where(same, 0, at))  # the latest row whose predecessor differs
        return 1.0 + float(np.where(same, at - broken, 0).max(initial=0))

    return np.array([longest(column) for column in rows.T])
