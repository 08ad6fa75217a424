"""One policy for every limit of a range: `CPQ(limits=(20, 60))`. Experimental; docs/limits.md has the measurements.

The limit l becomes an input of actor and critics, pi(a | s, l) and Q(s, a, l), beside the observation: one more column.
Each row of a batch has a limit of its own, drawn anew, and every line of CPQ that uses l uses the row's. In s' the limit is
that of s: l bounds the cost from each state, so it stays the same along an episode. The detector does not see it: which
actions the log has does not depend on what is allowed.

Some lines compare a row with its batch: how large Qr is, and which logged actions are the least costly. Rows with a
very different limit are no basis for this comparison: at a low limit hardly any logged action is safe, at a high one
nearly all are. So the rows of a batch come sorted by their limit, and these lines look at one band of similar limits at
a time (`in_bands`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.interface import Batch, Export, Metrics, Sample, Spec, Update
from ringfence.algorithms.ood import LatentKL
from ringfence.errors import InvalidSetting
from ringfence.limits import check_range, scaled_to_range
from ringfence.networks import describe

Range = tuple[float, float]
Function = TypeVar("Function", bound=Callable[..., Any])
PerRow = Float[Array, " batch"]

BANDS = 8  # of a batch, at most
ROWS_OF_A_BAND = 16  # at least: fewer say little about a quantile
LIMIT_KEY = 17  # tells the key of the limits from the keys that the update splits off


def check_limits(limits: Range, limit: float | None) -> None:
    """Raise unless `limits` is a range that a policy can be trained for, and no single limit is given besides."""
    check_range(limits)
    if limit is not None:
        raise InvalidSetting(
            f"limit={limit:g} and limits={limits!r}: give one of them; a policy for a range is told its limit when it acts"
        )


# The limit as an input


def draw_limits(limits: Range, count: int, key: PRNGKeyArray) -> PerRow:
    """A limit for each of `count` rows, rising: the i-th is uniform in the i-th of `count` equal parts of the range. Rows
    are drawn from the log independently, so each meets each limit alike, and every batch covers the whole range."""
    share = (jnp.arange(count) + jax.random.uniform(key, (count,))) / count
    return limits[0] + (limits[1] - limits[0]) * share


def with_limit(
    observations: Float[Array, "rows obs"], limit: Float[Array, "*rows"], limits: Range
) -> Float[Array, "rows obs_and_limit"]:
    """(s, l) side by side, for one limit or for one of each row."""
    column = jnp.broadcast_to(scaled_to_range(limit, limits), observations.shape[:-1])
    return jnp.concatenate([observations, column[..., None]], -1)


def spread_limits(limits: Range, count: int) -> PerRow:
    """`count` limits, rising: the middles of as many equal parts of the range."""
    return limits[0] + (limits[1] - limits[0]) * (jnp.arange(count) + 0.5) / count


def band_limits(limits: Range | None, limit: Float[Array, ""]) -> Float[Array, " bands"]:
    """The middle of each band of the range; without a range the limit is the only one."""
    if limits is None:
        return jnp.asarray(limit, jnp.float32)[None]
    return spread_limits(limits, BANDS)


def slack_at(
    slack: Float[Array, " bands"], limit: Float[Array, "*rows"], limits: Range | None
) -> Float[Array, "*rows"]:
    """The slack at a limit: on straight lines between the bands' middles."""
    return slack[0] if limits is None else jnp.interp(limit, band_limits(limits, jnp.zeros(())), slack)


def spec_with_limit(spec: Spec, limits: Range | None) -> Spec:
    """What actor and critics see: with a range of limits an observation has one number more."""
    return spec if limits is None else replace(spec, observation_dim=spec.observation_dim + 1)


class LimitBlind(LatentKL):
    """The detector, for observations with a limit, which it does not look at."""

    def score(
        self, observations: Float[Array, "batch obs_and_limit"], actions: Float[Array, "*n batch act"]
    ) -> Float[Array, "*n batch"]:
        return super().score(observations[..., :-1], actions)


# Training


def for_drawn_limits(update: Update, limits: Range) -> Update:
    """An update of CPQ in which each row of the batch has a limit of its own."""

    def conditioned(state: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        limit = draw_limits(limits, batch.observations.shape[0], jax.random.fold_in(key, LIMIT_KEY))
        seen = replace(state, limit=limit, detector=LimitBlind(state.detector.cvae, state.detector.threshold))
        rows = batch._replace(
            observations=with_limit(batch.observations, limit, limits),
            next_observations=with_limit(batch.next_observations, limit, limits),
        )
        after, metrics = update(seen, rows, key)
        return replace(after, limit=state.limit, detector=state.detector), metrics

    return conditioned


def in_bands(function: Function) -> Function:
    """A function of (values of each row ..., limit, setting) that compares rows with each other. With one limit it sees the
    whole batch; with a limit for each row it sees one band of similar limits at a time."""

    @wraps(function)
    def by_band(*values_limit_setting: Any) -> Any:
        *values, limit, setting = values_limit_setting
        if jnp.ndim(limit) == 0:
            return function(*values, limit, setting)
        rows = limit.shape[0]
        bands = band_count(rows)
        split = [x.reshape(*x.shape[:-1], bands, rows // bands) for x in (*values, limit)]
        each: Any = jax.vmap(lambda *parts: function(*parts, setting), in_axes=-2, out_axes=-2)
        found = each(*split)
        return found.reshape(*found.shape[:-2], rows)

    return by_band  # type: ignore[return-value]


def band_count(rows: int) -> int:
    """The largest power of two up to BANDS that divides the rows and leaves enough of them in each band."""
    bands = BANDS
    while bands > 1 and (rows % bands or rows // bands < ROWS_OF_A_BAND):
        bands //= 2
    return bands


# Diagnostics and export


def sample_with_limit(sample: Sample, limit: Float[Array, ""], limits: Range) -> Sample:
    """The diagnostic sample as actor and critics see it at one limit."""
    batch = sample.batch._replace(
        observations=with_limit(sample.batch.observations, limit, limits),
        starts=with_limit(sample.batch.starts, limit, limits),
    )
    return sample._replace(batch=batch)


def export_with_limit(export: Export, limits: Range) -> Export:
    """The export of networks that have the limit as an input: of actor and critics it follows the observation."""
    widened: Mapping[str, Any] = {
        name: described._replace(inputs=("observation", "limit", *described.inputs[1:]))
        if name in ("actor", "reward_1", "reward_2", "cost")
        else described
        for name, described in ((name, describe(network)) for name, network in export.networks.items())
    }
    return export._replace(networks=widened, limit_range=(float(limits[0]), float(limits[1])))
