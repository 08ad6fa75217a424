"""The log on the device: one row of numbers per transition, so that drawing a batch is one gather."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ringfence.algorithms.interface import Batch, Sample, Spec
from ringfence.data.dataset import Dataset

SAMPLE_ROWS = 2048
# A row's cost-to-go within its episode stands for the whole future only if the episode goes on for long after it.
LEFT_OUT = 0.05


class DeviceData(NamedTuple):
    """Rows of [s, s', a, r, c, continues] as logged, which of them start an episode, and what scales them. Scaling
    happens on the batch, so that the log is held once."""

    rows: Float[Array, "rows width"]
    episode_starts: Int[Array, " episodes"]
    observation_mean: Float[Array, " obs"]
    observation_scale: Float[Array, " obs"]
    action_centre: Float[Array, " act"]
    action_scale: Float[Array, " act"]

    def batch(self, indices: Int[Array, " batch"], starts: Int[Array, " starts"] | None = None) -> Batch:
        """The transitions at these rows and the states of the rows in `starts` (of all that start an episode, if none
        are given), observations normalised and actions in [-1, 1]."""
        rows = self.rows[indices]
        obs, act = self.observation_mean.shape[0], self.action_centre.shape[0]
        observations, following, actions, rest = jnp.split(rows, (obs, 2 * obs, 2 * obs + act), axis=-1)
        return Batch(
            observations=self._normalise(observations),
            actions=jnp.clip((actions - self.action_centre) * self.action_scale, -1.0, 1.0),
            rewards=rest[..., 0],
            costs=rest[..., 1],
            next_observations=self._normalise(following),
            continues=rest[..., 2],
            starts=self._normalise(self.rows[self.episode_starts if starts is None else starts, :obs]),
        )

    def draw(self, key: PRNGKeyArray, size: int) -> Batch:
        """As many transitions and as many starts of episodes, each drawn uniformly with replacement."""
        indices = jax.random.randint(key, (size,), 0, self.rows.shape[0])
        episodes = jax.random.randint(jax.random.fold_in(key, 1), (size,), 0, self.episode_starts.shape[0])
        return self.batch(indices, self.episode_starts[episodes])

    def _normalise(self, observations: Float[Array, "*batch obs"]) -> Float[Array, "*batch obs"]:
        return (observations - self.observation_mean) * self.observation_scale


def to_device(dataset: Dataset) -> DeviceData:
    """Pack the log and hand it to JAX. On the CPU the packed rows are not copied again."""
    obs, act = dataset.observations.shape[1], dataset.actions.shape[1]
    rows = aligned_empty((len(dataset), 2 * obs + act + 3))
    rows[:, :obs] = dataset.observations
    rows[:, obs : 2 * obs] = dataset.next_observations
    rows[:, 2 * obs : 2 * obs + act] = dataset.actions
    rows[:, -3] = dataset.rewards
    rows[:, -2] = dataset.costs
    rows[:, -1] = ~dataset.terminations
    normaliser = dataset.normaliser
    return DeviceData(
        rows=jax.device_put(rows),
        episode_starts=jnp.asarray(dataset.episode_starts, jnp.int32),
        observation_mean=jnp.asarray(normaliser.mean),
        observation_scale=jnp.asarray(1.0 / normaliser.std),
        action_centre=jnp.asarray((dataset.action_high + dataset.action_low) / 2),
        action_scale=jnp.asarray(2.0 / (dataset.action_high - dataset.action_low)),
    )


def aligned_empty(shape: tuple[int, int]) -> np.ndarray:
    """An uninitialised float32 array that starts on a cache line, which lets JAX use it in place."""
    size = shape[0] * shape[1]
    memory = np.empty(size + 16, np.float32)
    skip = (-memory.ctypes.data % 64) // 4
    return memory[skip : skip + size].reshape(shape)


def spec_of(dataset: Dataset) -> Spec:
    return Spec(
        observation_dim=dataset.observations.shape[1],
        action_dim=dataset.actions.shape[1],
        least_reward=float(dataset.rewards.min()),
        mean_reward=float(dataset.rewards.mean(dtype=np.float64)),
        mean_reward_size=float(np.abs(dataset.rewards).mean(dtype=np.float64)),
        mean_cost=float(dataset.costs.mean(dtype=np.float64)),
    )


def diagnostic_sample(dataset: Dataset, data: DeviceData, discount: float) -> Sample:
    """A fixed sample of rows, with what followed them, and of the states that episodes start in. Rows too near to a
    truncation are left out where others exist: the log does not show their future."""
    rng = np.random.default_rng(0)
    lengths = dataset.episode_ends - dataset.episode_starts
    remaining = np.repeat(dataset.episode_ends, lengths) - np.arange(len(dataset))
    terminated = np.repeat(dataset.terminations[dataset.episode_ends - 1], lengths)
    known = np.flatnonzero(terminated | (discount**remaining < LEFT_OUT))
    pool = known if len(known) else np.arange(len(dataset))
    rows = np.sort(rng.choice(pool, min(SAMPLE_ROWS, len(pool)), replace=False))
    starts = dataset.episode_starts
    starts = np.sort(rng.choice(starts, min(SAMPLE_ROWS, len(starts)), replace=False))
    return Sample(
        batch=data.batch(jnp.asarray(rows), jnp.asarray(starts)),
        cost_to_go=jnp.asarray(dataset.cost_to_go(discount)[rows], jnp.float32),
        return_to_go=jnp.asarray(dataset.return_to_go(discount)[rows], jnp.float32),
    )
