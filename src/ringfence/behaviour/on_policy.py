"""What an iteration of PPO and one of CPO have in common: run the policy, estimate advantages, fit in minibatches."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ringfence.behaviour.actor_critic import (
    Moments,
    TanhMLP,
    generalised_advantages,
    mean_actions,
    temporal_differences,
)
from ringfence.behaviour.segments import EpisodeSums, NumpyActor, Sampler, Segments
from ringfence.limits import DISCOUNT

Grid = TypeVar("Grid")


@dataclass(frozen=True)
class OnPolicy:
    """Hyper-parameters of PPO and CPO. Over the first `std_anneal` of training the standard deviation falls geometrically
    from `std_start` to `std`, and stays there: the policy is trained for the noise that the log is collected with."""

    std: float = 0.2
    std_start: float = 0.5
    std_anneal: float = 0.6
    hidden: tuple[int, ...] = (64, 64)
    envs: int = 4
    segment: int = 1000
    discount: float = DISCOUNT  # of rewards, in training
    cost_discount: float = DISCOUNT  # of costs: the one that the limit is meant with
    gae_lambda: float = 0.95

    def std_at(self, progress: float) -> float:
        share = min(progress / self.std_anneal, 1.0) if self.std_anneal > 0 else 1.0
        return float(self.std_start ** (1.0 - share) * self.std**share)

    @property
    def steps_per_iteration(self) -> int:
        return self.envs * self.segment


class Experience(NamedTuple):
    """What one iteration sees of the environments."""

    segments: Segments
    std: float
    returns: Moments  # of discounted returns so far, this iteration's included
    key: PRNGKeyArray  # for what the iteration does with it


def experience(
    config: OnPolicy,
    actor: TanhMLP,
    observations: Moments,
    returns: Moments,
    sampler: Sampler,
    iteration: int,
    total: int,
    seed: int,
) -> Experience:
    """A segment in each environment. It depends on its arguments alone, so a resumed run gives the same numbers."""
    std = config.std_at(iteration / total)
    streams = np.random.SeedSequence([seed, iteration]).generate_state(config.envs + 1).tolist()
    segments = sampler(NumpyActor.of(actor, observations), std, streams[1:], config.segment)
    returns = returns.including(jnp.asarray(returns_so_far(segments, config.discount).ravel()))
    return Experience(segments, std, returns, jax.random.key(streams[0]))


def returns_so_far(segments: Segments, discount: float) -> Float[np.ndarray, "steps envs"]:
    """R_t = r_t + discount R_{t-1} within each episode: its spread is the scale of the values to be learned."""
    totals = np.zeros_like(segments.rewards)
    running = np.zeros(segments.rewards.shape[1], np.float32)
    for t, (reward, ended) in enumerate(zip(segments.rewards, segments.ended, strict=True)):
        running = reward + discount * running
        totals[t] = running
        running = np.where(ended, 0.0, running)
    return totals


def normalised(moments: Moments, segments: Any) -> tuple[Array, Array]:
    """Observations and next observations, normalised."""
    return (
        (segments.observations - moments.mean) / moments.std,
        (segments.next_observations - moments.mean) / moments.std,
    )


def advantages_and_targets(
    critic: TanhMLP, signal: Array, observations: tuple[Array, Array], segments: Any, discount: float, gae_lambda: float
) -> tuple[Array, Array]:
    """Generalised advantages of a signal (rewards or costs) under its critic, and what the critic should have said."""
    values, next_values = (critic(x)[..., 0] for x in observations)
    deltas = temporal_differences(signal, values, next_values, segments.terminated, discount)
    advantages = generalised_advantages(deltas, segments.ended, discount * gae_lambda)
    return advantages, values + advantages


def flattened(grid: Grid) -> Grid:
    """(steps, environments, ...) as rows."""
    rows: Grid = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), grid)
    return rows


def minibatches(key: PRNGKeyArray, rows: int, size: int, epochs: int) -> Int[Array, "minibatches size"]:
    """The rows of each minibatch: a new order in every epoch; a remainder smaller than a minibatch is dropped."""
    orders = jax.vmap(lambda k: jax.random.permutation(k, rows))(jax.random.split(key, epochs))
    return orders[:, : rows // size * size].reshape(-1, size)


def episode_metrics(sums: EpisodeSums, std: float) -> dict[str, float]:
    return {
        "return": sums.mean_return,
        "cost": sums.mean_cost,
        "discounted cost": sums.mean_discounted_cost,
        "length": sums.mean_length,
        "std": std,
    }


@eqx.filter_jit
def mean_kl(
    old: TanhMLP, new: TanhMLP, observations: Float[Array, "rows obs"], std: Float[Array, ""] | float
) -> Float[Array, ""]:
    """KL(pi_old || pi_new) of Gaussians with the same standard deviation: |difference of means|^2 / (2 std^2)."""
    apart = mean_actions(old, observations) - mean_actions(new, observations)
    return jnp.mean(jnp.sum(apart**2, -1)) / (2.0 * std**2)
