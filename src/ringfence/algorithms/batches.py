"""What methods draw from a log: transitions, starts of episodes, windows of episodes, bootstrap samples of episodes.

A sampler is a frozen dataclass with two pure functions. `prepare(data, key)` runs once for each member of a population and
gives what only this member draws from; `draw(data, key, prepared)` gives the batch of one step. `data` is the log: on the
device or, if it is too large for it, in main memory (`StreamedRows`). A sampler does not know which.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

Rows = Int[Array, "*batch"]


class Batch(NamedTuple):
    """Transitions (s, a, r, c, s'), whether the episode goes on after them, and states that episodes start in.

    `continues` is 0 where the episode terminated, which masks every bootstrap. A truncated episode would have gone
    on, so it is 1 there. `starts` are drawn apart from the transitions, for averages over the initial distribution;
    a method that does not use them does not pay for them. `times` are steps since the episode began, where the sampler
    gives them; `extras` are columns of the method's own (`AddsColumns`)."""

    observations: Float[Array, "*batch obs"]
    actions: Float[Array, "*batch act"]
    rewards: Float[Array, "*batch"]
    costs: Float[Array, "*batch"]
    next_observations: Float[Array, "*batch obs"]
    continues: Float[Array, "*batch"]
    starts: Float[Array, "starts obs"]
    times: Float[Array, "*batch"] | None = None
    extras: Mapping[str, Float[Array, "*batch columns"]] = {}


class Sample(NamedTuple):
    """A fixed part of the log for diagnostics, with what really followed each row (discounted, within its episode; if all
    episodes were cut off early, brought to a sum over an infinite horizon)."""

    batch: Batch
    cost_to_go: Float[Array, " batch"]
    return_to_go: Float[Array, " batch"]

    @property
    def starts(self) -> Float[Array, "starts obs"]:
        """States that logged episodes start in."""
        return self.batch.starts


class Held:
    """An array in main memory. It is compared by identity: programs are compiled for one log."""

    def __init__(self, array: np.ndarray):
        self.array = array


class StreamedRows(eqx.Module):
    """Rows in main memory, of which a batch is copied to the device when it is drawn. It is indexed as an array is, by rows
    or by rows and a slice of columns."""

    held: Held = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.held.array.shape

    def __getitem__(self, index: Any) -> Float[Array, "*batch columns"]:
        rows, columns = index if isinstance(index, tuple) else (index, slice(None))
        array = self.held.array[:, columns]
        drawn = jax.ShapeDtypeStruct((*jnp.shape(rows), array.shape[1]), jnp.float32)  # type: ignore[no-untyped-call]
        gathered: Array = jax.pure_callback(lambda at: array[np.asarray(at)], drawn, rows, vmap_method="expand_dims")
        return gathered


class DeviceData(NamedTuple):
    """The log: rows of [s, s', a, r, c, continues] as logged, where episodes start, and what scales them. A batch is one
    gather; scaling happens on the batch, so that the log is held once."""

    rows: Float[Array, "rows width"] | StreamedRows
    episode_starts: Int[Array, " episodes"]
    observation_mean: Float[Array, " obs"]
    observation_scale: Float[Array, " obs"]
    action_centre: Float[Array, " act"]
    action_scale: Float[Array, " act"]
    extras: Mapping[str, Float[Array, "rows columns"] | StreamedRows] = {}

    def batch(self, rows: Rows, starts: Int[Array, " starts"] | None = None) -> Batch:
        """The transitions at these rows and the states of the rows in `starts` (of all that start an episode, if none
        are given), observations normalised and actions in [-1, 1]."""
        packed = self.rows[rows]
        obs, act = self.observation_mean.shape[0], self.action_centre.shape[0]
        observations, following, actions, rest = jnp.split(packed, (obs, 2 * obs, 2 * obs + act), axis=-1)
        return Batch(
            observations=self._normalise(observations),
            actions=jnp.clip((actions - self.action_centre) * self.action_scale, -1.0, 1.0),
            rewards=rest[..., 0],
            costs=rest[..., 1],
            next_observations=self._normalise(following),
            continues=rest[..., 2],
            starts=self._normalise(self.rows[self.episode_starts if starts is None else starts, :obs]),
            extras={name: column[rows] for name, column in self.extras.items()},
        )

    @property
    def episode_ends(self) -> Int[Array, " episodes"]:
        """The row after the last row of each episode."""
        return jnp.append(self.episode_starts[1:], self.rows.shape[0])

    def episode_of(self, rows: Rows) -> Rows:
        return jnp.searchsorted(self.episode_starts, rows, side="right") - 1

    def times(self, rows: Rows) -> Float[Array, "*batch"]:
        """Steps since the episode began: 0 in its first row."""
        return (rows - self.episode_starts[self.episode_of(rows)]).astype(jnp.float32)

    def _normalise(self, observations: Float[Array, "*batch obs"]) -> Float[Array, "*batch obs"]:
        return (observations - self.observation_mean) * self.observation_scale


class Sampler(Protocol):
    """What a stage draws in each step. `size` is the number of rows (or windows) of a batch."""

    @property
    def size(self) -> int: ...

    def __hash__(self) -> int: ...

    def prepare(self, data: DeviceData, key: PRNGKeyArray) -> Any:
        """What only this member draws from. It is a function of the member's seed, so that a run resumes with the same."""

    def draw(self, data: DeviceData, key: PRNGKeyArray, prepared: Any) -> Any:
        """The batch of one step, a pytree that the stage's `update` understands."""


@dataclass(frozen=True)
class Transitions:
    """As many transitions and as many starts of episodes, each drawn uniformly with replacement."""

    size: int
    with_times: bool = False

    def prepare(self, data: DeviceData, key: PRNGKeyArray) -> tuple[()]:
        return ()

    def draw(self, data: DeviceData, key: PRNGKeyArray, prepared: tuple[()]) -> Batch:
        rows = jax.random.randint(key, (self.size,), 0, data.rows.shape[0])
        starts = jax.random.randint(jax.random.fold_in(key, 1), (self.size,), 0, data.episode_starts.shape[0])
        batch = data.batch(rows, data.episode_starts[starts])
        return batch._replace(times=data.times(rows)) if self.with_times else batch


class Episodes(NamedTuple):
    """Episodes with repetition, laid end to end."""

    starts: Int[Array, " episodes"]  # the first row of each
    ends: Int[Array, " episodes"]  # where each ends when they are laid end to end
    lengths: Int[Array, " episodes"]


@dataclass(frozen=True)
class BootstrapTransitions:
    """Transitions and starts of a bootstrap sample of whole episodes: each member has its own, as many episodes as the log
    drawn with replacement. Uncertainty between members is then that of the log, whose unit is the episode."""

    size: int
    with_times: bool = False

    def prepare(self, data: DeviceData, key: PRNGKeyArray) -> Episodes:
        count = data.episode_starts.shape[0]
        chosen = jax.random.randint(key, (count,), 0, count)
        lengths = (data.episode_ends - data.episode_starts)[chosen]
        return Episodes(data.episode_starts[chosen], jnp.cumsum(lengths), lengths)

    def draw(self, data: DeviceData, key: PRNGKeyArray, prepared: Episodes) -> Batch:
        places = jax.random.randint(key, (self.size,), 0, prepared.ends[-1])
        episode = jnp.searchsorted(prepared.ends, places, side="right")
        times = places - (prepared.ends - prepared.lengths)[episode]
        starts = jax.random.randint(jax.random.fold_in(key, 1), (self.size,), 0, prepared.starts.shape[0])
        batch = data.batch(prepared.starts[episode] + times, prepared.starts[starts])
        return batch._replace(times=times.astype(jnp.float32)) if self.with_times else batch


class Windows(NamedTuple):
    """Rows that follow each other: arrays of (windows, length, ...). `inside` is false after the end of the episode, where
    the last row is repeated."""

    batch: Batch
    inside: Bool[Array, "windows length"]


@dataclass(frozen=True)
class EpisodeWindows:
    """Windows of `length` rows, each beginning at a row drawn uniformly; an episode's end may cut them short."""

    size: int
    length: int

    def prepare(self, data: DeviceData, key: PRNGKeyArray) -> tuple[()]:
        return ()

    def draw(self, data: DeviceData, key: PRNGKeyArray, prepared: tuple[()]) -> Windows:
        first = jax.random.randint(key, (self.size,), 0, data.rows.shape[0])[:, None]
        last = data.episode_ends[data.episode_of(first)] - 1
        rows = first + jnp.arange(self.length)
        starts = jax.random.randint(jax.random.fold_in(key, 1), (self.size,), 0, data.episode_starts.shape[0])
        within = jnp.minimum(rows, last)
        batch = data.batch(within, data.episode_starts[starts])._replace(times=data.times(within))
        return Windows(batch, rows <= last)
