"""The log on the device, and what a method may know of it."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from ringfence.algorithms.batches import DeviceData, Held, Sample, StreamedRows
from ringfence.algorithms.interface import Spec
from ringfence.data.dataset import Dataset
from ringfence.limits import over_horizon

SAMPLE_ROWS = 2048
# A row's cost-to-go within its episode stands for the whole future only if the episode goes on for long after it.
LEFT_OUT = 0.05
MOST_OF_MEMORY = 0.5  # of the device, for the log: the rest is for networks and batches


def to_device(dataset: Dataset, extras: Mapping[str, np.ndarray] | None = None) -> DeviceData:
    """Pack the log, and the method's own columns, and hand them to JAX. On the CPU the packed rows are not copied again. A
    log that is too large for the device stays in main memory; training comes to the same numbers."""
    obs, act = dataset.observations.shape[1], dataset.actions.shape[1]
    rows = aligned_empty((len(dataset), 2 * obs + act + 3))
    rows[:, :obs] = dataset.observations
    rows[:, obs : 2 * obs] = dataset.next_observations
    rows[:, 2 * obs : 2 * obs + act] = dataset.actions
    rows[:, -3] = dataset.rewards
    rows[:, -2] = dataset.costs
    rows[:, -1] = ~dataset.terminations
    normaliser = dataset.normaliser
    columns = {name: np.asarray(column, np.float32) for name, column in (extras or {}).items()}
    room = device_memory()
    is_large = room is not None and sum(x.nbytes for x in (rows, *columns.values())) > MOST_OF_MEMORY * room

    def placed(array: np.ndarray) -> jax.Array | StreamedRows:
        return StreamedRows(Held(array)) if is_large else jax.device_put(array)

    return DeviceData(
        rows=placed(rows),
        episode_starts=jnp.asarray(dataset.episode_starts, jnp.int32),
        observation_mean=jnp.asarray(normaliser.mean),
        observation_scale=jnp.asarray(1.0 / normaliser.std),
        action_centre=jnp.asarray((dataset.action_high + dataset.action_low) / 2),
        action_scale=jnp.asarray(2.0 / (dataset.action_high - dataset.action_low)),
        extras={name: placed(column) for name, column in columns.items()},
    )


def device_memory() -> int | None:
    """Bytes of the device that JAX may use; None where it is main memory itself, or JAX does not say."""
    known = jax.devices()[0].memory_stats() or {}
    return known.get("bytes_limit")


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
        mean_reward=float(dataset.rewards.mean(dtype=np.float64)),
        mean_reward_size=float(np.abs(dataset.rewards).mean(dtype=np.float64)),
        mean_cost=float(dataset.costs.mean(dtype=np.float64)),
        horizon=dataset.horizon,
        terminated=float(dataset.terminations[dataset.episode_ends - 1].mean()),
    )


def diagnostic_sample(dataset: Dataset, data: DeviceData, discount: float) -> Sample:
    """A fixed sample of rows, with what followed them, and of the states that episodes start in. Rows too near to a
    truncation are left out: the log does not show their future. If it shows that of no row, rows with at least half an
    episode left are taken, and their sums are extrapolated to an infinite horizon, as critics have it, at a steady pace."""
    rng = np.random.default_rng(0)
    lengths = dataset.episode_ends - dataset.episode_starts
    remaining = np.repeat(dataset.episode_ends, lengths) - np.arange(len(dataset))
    terminated = np.repeat(dataset.terminations[dataset.episode_ends - 1], lengths)
    known = np.flatnonzero(terminated | (discount**remaining < LEFT_OUT))
    pool = known if len(known) else np.flatnonzero(remaining >= dataset.horizon / 2)
    rows = np.sort(rng.choice(pool, min(SAMPLE_ROWS, len(pool)), replace=False))
    starts = dataset.episode_starts
    starts = np.sort(rng.choice(starts, min(SAMPLE_ROWS, len(starts)), replace=False))
    shown = np.float64(1.0) if len(known) else over_horizon(1.0, discount, remaining[rows])
    return Sample(
        batch=data.batch(jnp.asarray(rows), jnp.asarray(starts))._replace(times=data.times(jnp.asarray(rows))),
        cost_to_go=jnp.asarray(dataset.cost_to_go(discount)[rows] / shown, jnp.float32),
        return_to_go=jnp.asarray(dataset.return_to_go(discount)[rows] / shown, jnp.float32),
    )
