"""Proximal Policy Optimization (Schulman et al., 2017, arXiv:1707.06347), the clipped variant.

One iteration: run the policy for a segment in each environment, estimate advantages, then maximise the clipped
surrogate over a few epochs of minibatches. Costs are recorded and ignored: this is the unsafe half of the logs.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.behaviour.actor_critic import (
    Moments,
    TanhMLP,
    actor_network,
    gaussian,
    generalised_advantages,
    mean_actions,
    temporal_differences,
    value_network,
)
from ringfence.behaviour.segments import NumpyActor, Sampler, Segments, episode_sums


@dataclass(frozen=True)
class PPO:
    """Hyper-parameters. The standard deviation falls from `std_start` to `std` over the first `std_anneal` of training,
    geometrically, and stays there: the policy ends up good at the noise that it writes the log with."""

    std: float = 0.2
    std_start: float = 0.5
    std_anneal: float = 0.6
    hidden: tuple[int, ...] = (64, 64)
    envs: int = 4
    segment: int = 1000
    discount: float = 0.99  # of rewards, in training
    cost_discount: float = 0.99  # the task's, for the discounted cost that is reported
    gae_lambda: float = 0.95
    clip: float = 0.2
    learning_rate: float = 3e-4
    epochs: int = 10
    minibatches: int = 32
    max_grad_norm: float = 0.5

    def std_at(self, progress: float) -> float:
        share = min(progress / self.std_anneal, 1.0) if self.std_anneal > 0 else 1.0
        return float(self.std_start ** (1.0 - share) * self.std**share)

    @property
    def steps_per_iteration(self) -> int:
        return self.envs * self.segment


class PPOState(eqx.Module):
    actor: TanhMLP
    critic: TanhMLP
    optimiser: optax.OptState
    observations: Moments
    returns: Moments  # of discounted returns so far; rewards are divided by their standard deviation


class Rows(eqx.Module):
    """A batch for the update, normalised and flat."""

    observations: Float[Array, "rows obs"]
    actions: Float[Array, "rows act"]
    log_probs: Float[Array, " rows"]
    advantages: Float[Array, " rows"]
    value_targets: Float[Array, " rows"]


def init(config: PPO, observation_dim: int, action_dim: int, key: PRNGKeyArray) -> PPOState:
    actor_key, critic_key = jax.random.split(key)
    actor = actor_network(observation_dim, action_dim, config.hidden, key=actor_key)
    critic = value_network(observation_dim, config.hidden, key=critic_key)
    return PPOState(
        actor, critic, _adam(config).init((actor, critic)), Moments.start((observation_dim,)), Moments.start()
    )


def clipped_surrogate(
    log_probs: Float[Array, " rows"],
    old_log_probs: Float[Array, " rows"],
    advantages: Float[Array, " rows"],
    clip: float,
) -> Float[Array, ""]:
    """L^CLIP = mean(min(r A, clip(r, 1 - clip, 1 + clip) A)), r = pi(a|s) / pi_old(a|s)   (Eq. 7)."""
    ratio = jnp.exp(log_probs - old_log_probs)
    return jnp.mean(jnp.minimum(ratio * advantages, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantages))


def ppo_loss(networks: tuple[TanhMLP, TanhMLP], rows: Rows, std: Float[Array, ""], clip: float) -> Float[Array, ""]:
    """-(L^CLIP - L^VF)   (Eq. 9; without the entropy bonus, because the standard deviation is not learned)."""
    actor, critic = networks
    log_probs = gaussian(actor, std, rows.observations).log_prob(rows.actions)
    value_loss = 0.5 * jnp.mean((critic(rows.observations)[..., 0] - rows.value_targets) ** 2)
    return value_loss - clipped_surrogate(log_probs, rows.log_probs, rows.advantages, clip)


def iterate(
    config: PPO, state: PPOState, sampler: Sampler, iteration: int, total: int, seed: int
) -> tuple[PPOState, dict[str, float]]:
    """One iteration of Algorithm 1. It depends on its arguments alone, so a resumed run gives the same numbers."""
    std = config.std_at(iteration / total)
    learning_rate = config.learning_rate * (1.0 - iteration / total)
    streams = np.random.SeedSequence([seed, iteration]).generate_state(config.envs + 1).tolist()
    segments = sampler(NumpyActor.of(state.actor, state.observations), std, streams[1:], config.segment)
    returns = state.returns.including(jnp.asarray(returns_so_far(segments, config.discount).ravel()))
    rows = advantage_rows(config, state, segments, jnp.float32(std), returns.std)
    (actor, critic), optimiser = update(
        config,
        (state.actor, state.critic),
        state.optimiser,
        rows,
        jnp.float32(std),
        jnp.float32(learning_rate),
        jax.random.key(streams[0]),
    )
    sums = episode_sums(segments, config.cost_discount)
    moments = state.observations.including(jnp.asarray(segments.observations.reshape(segments.size, -1)))
    metrics = {
        "return": sums.mean_return,
        "cost": sums.mean_cost,
        "discounted cost": sums.mean_discounted_cost,
        "length": sums.mean_length,
        "std": std,
        "kl": float(mean_kl(state.actor, actor, rows.observations, jnp.float32(std))),
    }
    return PPOState(actor, critic, optimiser, moments, returns), metrics


def returns_so_far(segments: Segments, discount: float) -> Float[np.ndarray, "steps envs"]:
    """R_t = r_t + discount R_{t-1} within each episode: its spread is the scale of the values to be learned."""
    totals = np.zeros_like(segments.rewards)
    running = np.zeros(segments.rewards.shape[1], np.float32)
    for t, (reward, ended) in enumerate(zip(segments.rewards, segments.ended, strict=True)):
        running = reward + discount * running
        totals[t] = running
        running = np.where(ended, 0.0, running)
    return totals


@eqx.filter_jit
def advantage_rows(
    config: PPO, state: PPOState, segments: Segments, std: Float[Array, ""], reward_scale: Float[Array, ""]
) -> Rows:
    """Normalise, estimate advantages (and centre and scale them over the batch), flatten."""
    seen: Any = jax.tree.map(jnp.asarray, segments)
    moments = state.observations
    observations = (seen.observations - moments.mean) / moments.std
    next_observations = (seen.next_observations - moments.mean) / moments.std
    values, next_values = state.critic(observations)[..., 0], state.critic(next_observations)[..., 0]
    deltas = temporal_differences(seen.rewards / reward_scale, values, next_values, seen.terminated, config.discount)
    advantages = generalised_advantages(deltas, seen.ended, config.discount * config.gae_lambda)
    log_probs = gaussian(state.actor, std, observations).log_prob(seen.actions)
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    grid = Rows(observations, seen.actions, log_probs, scaled, values + advantages)
    rows: Rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), grid)
    return rows


Networks = tuple[TanhMLP, TanhMLP]
Carry = tuple[Networks, optax.OptState]


@eqx.filter_jit
def update(
    config: PPO,
    networks: Networks,
    optimiser: optax.OptState,
    rows: Rows,
    std: Float[Array, ""],
    learning_rate: Float[Array, ""],
    key: PRNGKeyArray,
) -> Carry:
    """`epochs` passes over the batch in shuffled minibatches, all in one compiled program."""
    count = len(rows.log_probs)
    size = count // config.minibatches

    def step(carry: Carry, chosen: Array) -> tuple[Carry, None]:
        networks, optimiser = carry
        minibatch = jax.tree.map(lambda x: x[chosen], rows)
        gradient = jax.grad(ppo_loss)(networks, minibatch, std, config.clip)
        change, optimiser = _adam(config).update(gradient, optimiser)
        return (jax.tree.map(lambda p, c: p - learning_rate * c, networks, change), optimiser), None

    orders = jax.vmap(lambda k: jax.random.permutation(k, count))(jax.random.split(key, config.epochs))
    chosen = orders[:, : size * config.minibatches].reshape(-1, size)
    updated: Carry = jax.lax.scan(step, (networks, optimiser), chosen)[0]
    return updated


def _adam(config: PPO) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.scale_by_adam(eps=1e-5))


@eqx.filter_jit
def mean_kl(
    old: TanhMLP, new: TanhMLP, observations: Float[Array, "rows obs"], std: Float[Array, ""] | float
) -> Float[Array, ""]:
    """KL(pi_old || pi_new) of Gaussians with the same standard deviation: |difference of means|^2 / (2 std^2)."""
    apart = mean_actions(old, observations) - mean_actions(new, observations)
    return jnp.mean(jnp.sum(apart**2, -1)) / (2.0 * std**2)
