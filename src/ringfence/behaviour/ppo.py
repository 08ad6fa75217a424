"""Proximal Policy Optimization (Schulman et al., 2017, arXiv:1707.06347), the clipped variant.

One iteration: run the policy for a segment in each environment, estimate advantages, then maximise the clipped
surrogate over a few epochs of minibatches. Costs are recorded and ignored: this is the unsafe half of the logs.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.behaviour.actor_critic import Moments, TanhMLP, actor_network, gaussian, value_network
from ringfence.behaviour.on_policy import (
    OnPolicy,
    advantages_and_targets,
    episode_metrics,
    experience,
    flattened,
    mean_kl,
    minibatches,
    normalised,
)
from ringfence.behaviour.segments import Sampler, Segments, episode_sums


@dataclass(frozen=True)
class PPO(OnPolicy):
    """Hyper-parameters."""

    clip: float = 0.2
    learning_rate: float = 3e-4
    epochs: int = 10
    minibatches: int = 32
    max_grad_norm: float = 0.5


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
    seen = experience(config, state.actor, state.observations, state.returns, sampler, iteration, total, seed)
    segments, std = seen.segments, jnp.float32(seen.std)
    rows = advantage_rows(config, state, segments, std, seen.returns.std)
    learning_rate = jnp.float32(config.learning_rate * (1.0 - iteration / total))
    networks = (state.actor, state.critic)
    (actor, critic), optimiser = update(config, networks, state.optimiser, rows, std, learning_rate, seen.key)
    moments = state.observations.including(jnp.asarray(segments.observations.reshape(segments.size, -1)))
    metrics = {
        **episode_metrics(episode_sums(segments, config.cost_discount), seen.std),
        "kl": float(mean_kl(state.actor, actor, rows.observations, std)),
    }
    return PPOState(actor, critic, optimiser, moments, seen.returns), metrics


@eqx.filter_jit
def advantage_rows(
    config: PPO, state: PPOState, segments: Segments, std: Float[Array, ""], reward_scale: Float[Array, ""]
) -> Rows:
    """Normalise, estimate advantages (and centre and scale them over the batch), flatten."""
    seen: Any = jax.tree.map(jnp.asarray, segments)
    observations = normalised(state.observations, seen)
    advantages, targets = advantages_and_targets(
        state.critic, seen.rewards / reward_scale, observations, seen, config.discount, config.gae_lambda
    )
    log_probs = gaussian(state.actor, std, observations[0]).log_prob(seen.actions)
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    return flattened(Rows(observations[0], seen.actions, log_probs, scaled, targets))


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
    size = max(count // config.minibatches, 1)

    def step(carry: Carry, chosen: Array) -> tuple[Carry, None]:
        networks, optimiser = carry
        minibatch = jax.tree.map(lambda x: x[chosen], rows)
        gradient = jax.grad(ppo_loss)(networks, minibatch, std, config.clip)
        change, optimiser = _adam(config).update(gradient, optimiser)
        return (jax.tree.map(lambda p, c: p - learning_rate * c, networks, change), optimiser), None

    chosen = minibatches(key, count, size, config.epochs)
    updated: Carry = jax.lax.scan(step, (networks, optimiser), chosen)[0]
    return updated


def _adam(config: PPO) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.scale_by_adam(eps=1e-5))
