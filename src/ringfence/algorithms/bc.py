"""Behaviour cloning: the policy that makes the logged actions most likely.

    maximise  E_(s,a)~log  log pi(a | s),      pi(. | s) = tanh of a Gaussian

BC learns from the whole log and knows nothing of cost. BC-Safe is the baseline of the CPQ paper (Section 6,
"Baselines"): the same, on the safe part of the log only. Both measure whether a method does more than copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ringfence.algorithms.checks import one_of, positive, share
from ringfence.algorithms.interface import Batch, Metrics, Sample, Spec, Stage
from ringfence.algorithms.optimise import adam_step
from ringfence.data.dataset import Dataset
from ringfence.data.episodes import EpisodeTable, episode_table
from ringfence.deploy.actors import mlp_tensors
from ringfence.errors import EmptyData, InvalidSetting
from ringfence.networks import TanhGaussianActor, tanh_log_prob

Scalar = Float[Array, ""]


class State(eqx.Module):
    actor: TanhGaussianActor
    optimiser: optax.OptState


def cloning_loss(actor: TanhGaussianActor, batch: Batch) -> Scalar:
    """- E log pi(a | s) over the logged pairs: the executed action's density, tanh included."""
    return -jnp.mean(tanh_log_prob(actor(batch.observations), batch.actions))


@dataclass(frozen=True)
class BC:
    """Behaviour cloning on the whole log. Its limit changes nothing but what evaluations compare with."""

    name: ClassVar[str] = "bc"

    limit: float | None = None
    discount: float = 0.99  # only of the diagnostics, and of BC-Safe's choice of episodes
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4

    def __post_init__(self) -> None:
        if self.limit is not None:
            positive(self, "limit", zero=True)
        for field in ("batch_size", "learning_rate"):
            positive(self, field)
        share(self, "discount")

    def init(self, key: PRNGKeyArray, limit: Scalar, spec: Spec) -> State:
        actor = TanhGaussianActor(spec.observation_dim, spec.action_dim, self.hidden, key=key)
        return State(actor, self._adam.init(actor))

    def stages(self, steps: int) -> tuple[Stage, ...]:
        return (Stage("policy", steps, self.update),)

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        loss, gradient = jax.value_and_grad(cloning_loss)(state.actor, batch)
        actor, optimiser = adam_step(self._adam, gradient, state.optimiser, state.actor)
        return replace(state, actor=actor, optimiser=optimiser), {"actor_loss": loss}

    def diagnose(self, state: State, sample: Sample, key: PRNGKeyArray) -> Metrics:
        batch = sample.batch
        return {
            "log_likelihood": -cloning_loss(state.actor, batch),
            "policy_std": state.actor(batch.observations).std.mean(),
            "policy_distance": jnp.sqrt(jnp.mean((state.actor.mode(batch.observations) - batch.actions) ** 2)),
        }

    def policy(self, state: State) -> tuple[str, dict[str, np.ndarray]]:
        return "tanh-gaussian", mlp_tensors("actor", state.actor.mlp)

    def warnings(self, stage: str, history: list[Mapping[str, float]]) -> list[str]:
        return []

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)


@dataclass(frozen=True)
class BCSafe(BC):
    """Behaviour cloning on the safe part of the log.

    Where the log says which behaviour wrote each row (`source`), the safe part is every episode of the safe sources:
    those whose mean discounted cost per episode is within the limit. Otherwise it is the episodes whose own
    discounted cost is. The second rule prefers lucky episodes of an unsafe behaviour; `select` forces either.
    """

    name: ClassVar[str] = "bc-safe"

    select: Literal["auto", "source", "episodes"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "select", ("auto", "source", "episodes"))

    def restrict(self, dataset: Dataset, limits: Sequence[float]) -> Dataset:
        """The safe part of the log. All members of a run share one log, so limits that mean different parts are
        refused."""
        by_source = dataset.source is not None if self.select == "auto" else self.select == "source"
        if by_source and dataset.source is None:
            raise InvalidSetting("select='source' needs a log with a source column; use select='episodes'")
        table = episode_table(dataset, self.discount)
        choose = episodes_of_safe_sources if by_source else episodes_inside
        chosen = [choose(table, limit) for limit in limits]
        for limit, episodes in zip(limits, chosen, strict=True):
            if not episodes.any():
                raise EmptyData(nothing_safe(dataset, table, limit, by_source))
        if any((episodes != chosen[0]).any() for episodes in chosen):
            raise InvalidSetting(
                f"bc-safe learns from the part of the log that is inside the limit, and the limits "
                f"{', '.join(f'{limit:g}' for limit in limits)} mean different parts; train one limit at a time"
            )
        return dataset.select_episodes(chosen[0])


def episodes_inside(table: EpisodeTable, limit: float) -> Bool[np.ndarray, " episodes"]:
    """Episodes whose discounted cost from the first step is at most the limit."""
    inside: np.ndarray = table.discounted_costs <= limit
    return inside


def episodes_of_safe_sources(table: EpisodeTable, limit: float) -> Bool[np.ndarray, " episodes"]:
    """All episodes of those sources whose mean discounted cost per episode is at most the limit."""
    assert table.source is not None
    safe = [code for code, cost in mean_costs(table).items() if cost <= limit]
    return np.isin(table.source, safe)


def mean_costs(table: EpisodeTable) -> dict[int, float]:
    """Each source's mean discounted cost per episode."""
    assert table.source is not None
    return {int(code): float(table.discounted_costs[table.source == code].mean()) for code in np.unique(table.source)}


def nothing_safe(dataset: Dataset, table: EpisodeTable, limit: float, by_source: bool) -> str:
    least = f"the least discounted cost of an episode is {table.discounted_costs.min():.4g}"
    if not by_source:
        return f"no episode is inside the limit of {limit:g}, so there is nothing safe to clone: {least}"
    costs = ", ".join(f"{dataset.source_names[code]} {cost:.4g}" for code, cost in mean_costs(table).items())
    return (
        f"no source is inside the limit of {limit:g}, so there is nothing safe to clone: mean discounted costs are "
        f"{costs}; {least}. select='episodes' clones single episodes inside the limit, whoever wrote them"
    )
