"""Constrained Policy Optimization (Achiam et al., 2017, arXiv:1705.10528).

One iteration: run the policy, estimate advantages of reward and cost and the discounted cost J_C itself, take the step
that the trust-region problem gives (`trust_region`), and shorten it until both surrogates and the KL hold.
This is the safe half of the logs: as much return as it can get with J_C at most the limit.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
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
from ringfence.behaviour.trust_region import conjugate_gradients, solve_dual


@dataclass(frozen=True)
class CPO(OnPolicy):
    """Hyper-parameters. The standard deviation is set, not learned: a learned one would shrink to save torque (noise
    alone costs 0.8 std a step), and leave a log too narrow to learn from."""

    std: float = 0.15
    std_start: float = 0.25
    envs: int = 8
    limit: float = 30.0
    # Aim this far below: J_C is estimated from a few episodes, and the last iterate should be inside
    margin: float = 0.5
    cost_gae_lambda: float = 0.95
    delta: float = 0.015
    damping: float = 0.1
    cg_iterations: int = 15
    backtracks: int = 12
    backtrack: float = 0.8
    critic_learning_rate: float = 1e-3
    critic_epochs: int = 8
    critic_minibatch: int = 250
    fisher_stride: int = 4  # every fourth row is enough to estimate the Fisher matrix


class CPOState(eqx.Module):
    actor: TanhMLP
    critics: tuple[TanhMLP, TanhMLP]  # of reward, of cost
    optimiser: optax.OptState
    observations: Moments
    returns: Moments


class Rows(eqx.Module):
    observations: Float[Array, "rows obs"]
    actions: Float[Array, "rows act"]
    log_probs: Float[Array, " rows"]
    reward_advantages: Float[Array, " rows"]
    cost_advantages: Float[Array, " rows"]
    value_targets: Float[Array, "rows 2"]


class Surrogates(NamedTuple):
    reward: Float[Array, ""]
    cost: Float[Array, ""]
    kl: Float[Array, ""]


def init(config: CPO, observation_dim: int, action_dim: int, key: PRNGKeyArray) -> CPOState:
    actor_key, reward_key, cost_key = jax.random.split(key, 3)
    critics = tuple(value_network(observation_dim, config.hidden, key=k) for k in (reward_key, cost_key))
    return CPOState(
        actor_network(observation_dim, action_dim, config.hidden, key=actor_key),
        (critics[0], critics[1]),
        _adam(config).init((critics[0], critics[1])),
        Moments.start((observation_dim,)),
        Moments.start(),
    )


def surrogates(actor: TanhMLP, old: TanhMLP, rows: Rows, std: Float[Array, ""]) -> Surrogates:
    """E[pi(a|s)/pi_k(a|s) A(s, a)] for reward and cost, and the mean KL(pi_k || pi): Eq. 10 on the rows."""
    log_probs = gaussian(actor, std, rows.observations).log_prob(rows.actions)
    ratio = jnp.exp(log_probs - rows.log_probs)
    return Surrogates(
        jnp.mean(ratio * rows.reward_advantages),
        jnp.mean(ratio * rows.cost_advantages),
        mean_kl(old, actor, rows.observations, std),
    )


@eqx.filter_jit
def directions(
    config: CPO, actor: TanhMLP, rows: Rows, std: Float[Array, ""]
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " 3"]]:
    """H^-1 g and H^-1 b by conjugate gradients, and (q, r, s) of the dual."""
    flat, rebuild = ravel_pytree(actor)
    g = jax.grad(lambda x: surrogates(rebuild(x), actor, rows, std).reward)(flat)
    b = jax.grad(lambda x: surrogates(rebuild(x), actor, rows, std).cost)(flat)
    thinned = rows.observations[:: config.fisher_stride]

    def product(v: Array) -> Array:
        return fisher_vector_product(actor, thinned, std, v) + config.damping * v

    inverse_g = conjugate_gradients(product, g, config.cg_iterations)
    inverse_b = conjugate_gradients(product, b, config.cg_iterations)
    return inverse_g, inverse_b, jnp.stack([g @ inverse_g, b @ inverse_g, b @ inverse_b])


def fisher_vector_product(
    actor: TanhMLP, observations: Float[Array, "rows obs"], std: Float[Array, ""], v: Float[Array, " n"]
) -> Float[Array, " n"]:
    """H v, H the Hessian of the mean KL(pi_k || pi) at pi = pi_k: the derivative of its gradient along v."""
    flat, rebuild = ravel_pytree(actor)
    gradient = jax.grad(lambda x: mean_kl(actor, rebuild(x), observations, std))
    product: Array = jax.jvp(gradient, (flat,), (v,))[1]
    return product


def constrained_step(
    config: CPO, actor: TanhMLP, rows: Rows, std: Float[Array, ""], excess: float
) -> tuple[TanhMLP, dict[str, float]]:
    """Solve for the step, then backtrack. `excess` is c: how far the constraint is violated (negative if it is not),
    in units of the cost surrogate.

    Accepted is the first step within the trust region that does not raise the cost surrogate further than the
    constraint leaves room for and, unless the policy is over the limit, does not lower the reward surrogate. (Over the
    limit the way back in may have to be paid with reward; holding on to it would leave the policy stuck there.)"""
    inverse_g, inverse_b, qrs = directions(config, actor, rows, std)
    q, r, s = (float(x) for x in qrs)
    dual = solve_dual(q, r, s, excess, config.delta)
    recovery = dual.case == "recovery"
    step = -dual.nu * inverse_b if recovery else (inverse_g - dual.nu * inverse_b) / dual.lam
    before = shortened(actor, step, 0.0, rows, std)[1]
    report = {"case": {"unconstrained": 0.0, "constrained": 1.0, "recovery": 2.0}[dual.case], "step": 0.0, "kl": 0.0}
    for scale in config.backtrack ** np.arange(config.backtracks):
        candidate, after = shortened(actor, step, jnp.float32(scale), rows, std)
        better = excess > 0 or after.reward >= before.reward
        safe = after.cost - before.cost <= max(-excess, 0.0)
        if better and safe and after.kl <= config.delta:
            return candidate, report | {"step": float(scale), "kl": float(after.kl)}
    return actor, report


@eqx.filter_jit
def shortened(
    actor: TanhMLP, step: Float[Array, " n"], scale: float, rows: Rows, std: Float[Array, ""]
) -> tuple[TanhMLP, Surrogates]:
    flat, rebuild = ravel_pytree(actor)
    candidate: TanhMLP = rebuild(flat + scale * step)
    return candidate, surrogates(candidate, actor, rows, std)


def iterate(
    config: CPO, state: CPOState, sampler: Sampler, iteration: int, total: int, seed: int
) -> tuple[CPOState, dict[str, float]]:
    """One iteration of Algorithm 1; it depends on its arguments alone."""
    seen = experience(config, state.actor, state.observations, state.returns, sampler, iteration, total, seed)
    segments, std = seen.segments, jnp.float32(seen.std)
    rows = advantage_rows(config, state, segments, std, seen.returns.std)
    sums = episode_sums(segments, config.cost_discount)
    # J_C(pi) = J_C(pi_k) + (discounted steps of an episode) E[ratio A_C]: Eq. 2 for episodes that may end early.
    excess = (sums.mean_discounted_cost - (config.limit - config.margin)) / sums.mean_discounted_length
    actor, report = constrained_step(config, state.actor, rows, std, excess)
    critics, optimiser = fit_critics(config, state.critics, state.optimiser, rows, seen.key)
    moments = state.observations.including(jnp.asarray(segments.observations.reshape(segments.size, -1)))
    metrics = {**episode_metrics(sums, seen.std), **report}
    return CPOState(actor, critics, optimiser, moments, seen.returns), metrics


@eqx.filter_jit
def advantage_rows(
    config: CPO, state: CPOState, segments: Segments, std: Float[Array, ""], reward_scale: Float[Array, ""]
) -> Rows:
    """Advantages of reward (scaled, which changes nothing in the step) and of cost (in its own units); both centred.

    Costs are divided by the limit for the cost critic, so that its targets are near 1."""
    seen: Any = jax.tree.map(jnp.asarray, segments)
    observations = normalised(state.observations, seen)
    signals = (seen.rewards / reward_scale, seen.costs / config.limit)
    decays = ((config.discount, config.gae_lambda), (config.cost_discount, config.cost_gae_lambda))
    advantages, targets = [], []
    for critic, signal, decay in zip(state.critics, signals, decays, strict=True):
        advantage, target = advantages_and_targets(critic, signal, observations, seen, *decay)
        advantages.append(advantage - advantage.mean())
        targets.append(target)
    return flattened(
        Rows(
            observations[0],
            seen.actions,
            gaussian(state.actor, std, observations[0]).log_prob(seen.actions),
            advantages[0] / (advantages[0].std() + 1e-8),
            advantages[1] * config.limit,
            jnp.stack(targets, -1),
        )
    )


Critics = tuple[TanhMLP, TanhMLP]


@eqx.filter_jit
def fit_critics(
    config: CPO, critics: Critics, optimiser: optax.OptState, rows: Rows, key: PRNGKeyArray
) -> tuple[Critics, optax.OptState]:
    """Least squares to the value targets, in shuffled minibatches."""
    count = len(rows.log_probs)
    size = min(config.critic_minibatch, count)

    def loss(critics: Critics, chosen: Array) -> Array:
        predicted = jnp.concatenate([critic(rows.observations[chosen]) for critic in critics], -1)
        return jnp.mean((predicted - rows.value_targets[chosen]) ** 2)

    def step(carry: tuple[Critics, optax.OptState], chosen: Array) -> tuple[tuple[Critics, optax.OptState], None]:
        critics, optimiser = carry
        change, optimiser = _adam(config).update(jax.grad(loss)(critics, chosen), optimiser)
        return (optax.apply_updates(critics, change), optimiser), None

    chosen = minibatches(key, count, size, config.critic_epochs)
    fitted: tuple[Critics, optax.OptState] = jax.lax.scan(step, (critics, optimiser), chosen)[0]
    return fitted


def _adam(config: CPO) -> optax.GradientTransformation:
    return optax.adam(config.critic_learning_rate)
