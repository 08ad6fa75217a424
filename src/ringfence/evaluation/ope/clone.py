"""What each source of a log does: its actions regressed on the state, and its own residuals as noise.

By networks where the log is large enough for a model of the plant: clones then act in that model, and there small errors of
a clone add up. Else by features, which a linear solve fits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from ringfence.data.dataset import Dataset
from ringfence.evaluation.ope.features import RandomFeatures, Rows
from ringfence.evaluation.ope.regression import draw_weights, fit_networks, scaling
from ringfence.networks import MLP

STATE_FEATURES = 600
ROWS_PER_FEATURE = 20  # at least
RESIDUALS = 20_000  # rows whose residuals are kept as noise
HIDDEN, STEPS = (128, 128), 4_000  # of networks
CHUNK = 20_000  # rows at a time


@dataclass(frozen=True, eq=False)
class Clone:
    """A behaviour as the log shows it: mean action of a state, and residuals to draw from."""

    name: str
    regression: Callable[[Rows], Rows]  # observations to actions
    residuals: Rows  # (rows, act)
    low: Rows
    high: Rows

    def mean(self, observations: Rows) -> Rows:
        parts = [self.regression(observations[i : i + CHUNK]) for i in range(0, len(observations), CHUNK)]
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
    """The source that wrote these rows, by features."""
    observations, actions = log.observations[rows], log.actions[rows]
    features = RandomFeatures.of_columns(observations, min(STATE_FEATURES, len(observations) // ROWS_PER_FEATURE))
    x = features.of_inputs(observations)
    gram = (x.T @ x).astype(np.float64) / len(x)
    size = np.diag(gram).copy()
    gram[np.diag_indices_from(gram)] += ridge * (size + 1e-3 * size.mean())
    weights = linalg.solve(gram, (x.T @ actions).astype(np.float64) / len(x), assume_a="pos").astype(np.float32)
    return _with_residuals(log, name, rows, lambda some: features.of_inputs(some) @ weights)


def network_clones(log: Dataset, *, steps: int = STEPS, seed: int = 0) -> list[Clone]:
    """Every source of the log, by networks."""
    sources = sources_of(log)
    centre, spread = scaling(log.observations)
    weights = draw_weights(log.episode_ends - log.episode_starts)
    draws = [np.where(rows, weights, 0.0) for _, rows in sources]
    x = (log.observations - centre) / spread
    networks = fit_networks(x, log.actions, draws, HIDDEN, squared_error, steps, seed)

    def by(network: MLP) -> Callable[[Rows], Rows]:
        return lambda some: np.asarray(_outputs(network, (some - centre) / spread))

    return [
        _with_residuals(log, name, rows, by(network)) for (name, rows), network in zip(sources, networks, strict=True)
    ]


def squared_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.asarray(((outputs - targets) ** 2).mean(0).sum())


@jax.jit
def _outputs(network: MLP, x: jax.Array) -> jax.Array:
    return network(x)


def _with_residuals(log: Dataset, name: str, rows: NDArray[np.bool_], regression: Callable[[Rows], Rows]) -> Clone:
    written = np.flatnonzero(rows)
    kept = written[np.linspace(0, len(written) - 1, min(len(written), RESIDUALS)).astype(int)]
    residuals = log.actions[kept] - regression(log.observations[kept])
    return Clone(name, regression, np.asarray(residuals, np.float32), log.action_low, log.action_high)
