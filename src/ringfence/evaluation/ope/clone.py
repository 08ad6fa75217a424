"""What each source of a log does: its actions regressed on features of the state, and its own residuals as noise."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from ringfence.data.dataset import Dataset
from ringfence.evaluation.ope.features import RandomFeatures, Rows

STATE_FEATURES = 600
ROWS_PER_FEATURE = 20  # at least
RESIDUALS = 20_000  # rows whose residuals are kept as noise


@dataclass(frozen=True, eq=False)
class Clone:
    """A behaviour as the log shows it: mean action of a state, and residuals to draw from."""

    name: str
    features: RandomFeatures
    weights: NDArray[np.float64]  # (features, act)
    residuals: Rows  # (rows, act)
    low: Rows
    high: Rows

    def mean(self, observations: Rows) -> Rows:
        parts = [
            self.features.of_inputs(observations[i : i + 20_000]) @ self.weights.astype(np.float32)
            for i in range(0, len(observations), 20_000)
        ]
        return np.asarray(np.clip(np.concatenate(parts), self.low, self.high))

    def sample(self, observations: Rows, rng: np.random.Generator) -> Rows:
        noise = self.residuals[rng.integers(0, len(self.residuals), len(observations))]
        return np.asarray(np.clip(self.mean(observations) + noise, self.low, self.high))

    @property
    def spread(self) -> Rows:
        """The standard deviation of each action around its mean."""
        return np.asarray(np.maximum(self.residuals.std(0), 1e-3 * (self.high - self.low)))

    def log_density(self, observations: Rows, actions: Rows) -> NDArray[np.float64]:
        """Of a Gaussian around the mean action; constants that cancel in a ratio are left out."""
        z = (actions - self.mean(observations)) / self.spread
        return np.asarray(-0.5 * (z.astype(np.float64) ** 2).sum(1))


def sources_of(log: Dataset) -> list[tuple[str, NDArray[np.bool_]]]:
    """(name, rows) of each behaviour that wrote the log; one, if the log does not say."""
    if log.source is None:
        return [("the log", np.ones(len(log), np.bool_))]
    return [
        (name, rows) for code, name in enumerate(log.source_names) if (rows := np.asarray(log.source == code)).any()
    ]


def clone_of(log: Dataset, name: str, rows: NDArray[np.bool_], ridge: float = 1e-4) -> Clone:
    observations, actions = log.observations[rows], log.actions[rows]
    features = RandomFeatures.of_columns(observations, min(STATE_FEATURES, len(observations) // ROWS_PER_FEATURE))
    x = features.of_inputs(observations)
    gram = (x.T @ x).astype(np.float64) / len(x)
    size = np.diag(gram).copy()
    gram[np.diag_indices_from(gram)] += ridge * (size + 1e-3 * size.mean())
    weights = linalg.solve(gram, (x.T @ actions).astype(np.float64) / len(x), assume_a="pos")
    residuals = actions - x @ weights.astype(np.float32)
    kept = np.linspace(0, len(residuals) - 1, min(len(residuals), RESIDUALS)).astype(int)
    return Clone(name, features, weights, residuals[kept], log.action_low, log.action_high)
