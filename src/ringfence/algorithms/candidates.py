"""Choosing among sampled actions, as BCQ and BEAR do, with a price on cost.

Both draw n candidate actions in a state. Their reward critics back up the best candidate under a soft-clipped double-Q
value; their policy takes the candidate with the greatest penalised value Qr - lambda Qc.
"""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.critics import Critics, cost_bellman_target
from ringfence.algorithms.interface import Batch, Metrics, Sample
from ringfence.algorithms.ood import cvae_loss
from ringfence.algorithms.optimise import Adam
from ringfence.networks import CVAE

Scalar = Float[Array, ""]
PerState = Float[Array, " batch"]
Candidates = Float[Array, "n batch act"]

LATENT_BOUND = 0.5  # generators decode z ~ N(0, 1) clipped to this, which keeps to likely actions (BCQ's code)


def generate(cvae: CVAE, observations: Float[Array, "batch obs"], latents: Float[Array, "n #batch z"]) -> Candidates:
    """Actions that the log might hold in these states, one for each latent."""
    count, batch = latents.shape[0], observations.shape[0]
    states = jnp.broadcast_to(observations, (count, *observations.shape))
    clipped = jnp.clip(latents, -LATENT_BOUND, LATENT_BOUND)
    return cvae.decode(states, jnp.broadcast_to(clipped, (count, batch, latents.shape[-1])))


def draw_latents(key: PRNGKeyArray, count: int, batch: int, action_dim: int) -> Float[Array, "n batch z"]:
    """z ~ N(0, 1) for each candidate of each state; the latent has twice the action's dimensions, as in BCQ."""
    return jax.random.normal(key, (count, batch, 2 * action_dim))


def balanced_normal(key: PRNGKeyArray, count: int, dim: int) -> Float[Array, "n dim"]:
    """Draws of N(0, 1) for a deterministic policy, which keeps them for good: each comes with its mirror image (and 0
    with an odd count), so that the few of them do not lean to one side."""
    half = jax.random.normal(key, (count // 2, dim))
    return jnp.concatenate([half, -half, jnp.zeros((count % 2, dim))])


def generator_step(
    optimiser: Adam,
    cvae: CVAE,
    optimiser_state: optax.OptState,
    batch: Batch,
    key: PRNGKeyArray,
    beta: float,
    decoder_std: float,
) -> tuple[CVAE, optax.OptState, Scalar]:
    """The generator, its optimiser's state and its loss after one step down `cvae_loss`."""

    def loss(cvae: CVAE) -> Scalar:
        return cvae_loss(cvae, batch.observations, batch.actions, key, beta=beta, decoder_std=decoder_std)

    value, gradient = jax.value_and_grad(loss)(cvae)
    moved, optimiser_state = optimiser.step(gradient, optimiser_state, cvae)
    return moved, optimiser_state, value


def choose(
    critics: Critics, observations: Float[Array, "batch obs"], candidates: Candidates, price: Scalar
) -> Float[Array, "batch act"]:
    """The policy: argmax_j Qr_1(s, a_j) - lambda Qc(s, a_j)."""
    value = critics.reward[0](observations, candidates) - price * critics.cost(observations, candidates)
    best = jnp.argmax(value, 0)
    return jnp.take_along_axis(candidates, best[None, :, None], 0)[0]


def soft_clipped(first: Float[Array, "*b"], second: Float[Array, "*b"], weight: float) -> Float[Array, "*b"]:
    """w min(Q1, Q2) + (1 - w) max(Q1, Q2) (BCQ, Fujimoto et al. 2019, Eq. 13; BEAR has the same)."""
    return weight * jnp.minimum(first, second) + (1.0 - weight) * jnp.maximum(first, second)


def best_candidate_target(
    targets: Critics, batch: Batch, candidates: Candidates, discount: float, weight: float
) -> PerState:
    """r + discount max_j [w min_i Qr_i(s', a_j) + (1 - w) max_i Qr_i(s', a_j)]. Termination ends the sum, truncation
    does not."""
    first, second = (critic(batch.next_observations, candidates) for critic in targets.reward)
    return batch.rewards + discount * batch.continues * soft_clipped(first, second, weight).max(0)


def chosen_cost_target(
    targets: Critics, batch: Batch, candidates: Candidates, price: Scalar, discount: float
) -> PerState:
    """c + discount Qc(s', a'), where a' is the candidate that the policy would take: Qc is the cost of the policy, not
    of the costliest or the cheapest candidate."""
    chosen = choose(targets, batch.next_observations, candidates, price)
    return cost_bellman_target(targets.cost, batch, chosen, discount)


def critic_losses(
    critics: Critics, batch: Batch, reward_target: PerState, cost_target: PerState
) -> tuple[Scalar, tuple[Scalar, Scalar]]:
    """The sum of E (Qr_i - target)^2 over both reward critics and E (Qc - target)^2, and the two parts. They share no
    parameter, so each critic steps down its own loss only."""
    first, second = (critic(batch.observations, batch.actions) for critic in critics.reward)
    reward_loss = jnp.mean((first - reward_target) ** 2) + jnp.mean((second - reward_target) ** 2)
    cost_loss = jnp.mean((critics.cost(batch.observations, batch.actions) - cost_target) ** 2)
    return reward_loss + cost_loss, (reward_loss, cost_loss)


def critic_step(
    optimiser: Adam,
    critics: Critics,
    optimiser_state: optax.OptState,
    batch: Batch,
    reward_target: PerState,
    cost_target: PerState,
) -> tuple[Critics, optax.OptState, Metrics]:
    """The critics and their optimiser's state after one step down `critic_losses`, and the losses."""
    gradient, (reward_loss, cost_loss) = jax.grad(critic_losses, has_aux=True)(
        critics, batch, reward_target, cost_target
    )
    moved, optimiser_state = optimiser.step(gradient, optimiser_state, critics)
    return moved, optimiser_state, {"reward_loss": reward_loss, "cost_loss": cost_loss}


def critic_diagnostics(critics: Critics, sample: Sample, start_actions: Float[Array, "starts act"]) -> Metrics:
    """The critics at the policy's first actions, and on logged pairs beside what really followed them."""
    batch, reward = sample.batch, critics.reward[0]
    return {
        "qc_start": critics.cost(sample.starts, start_actions).mean(),
        "qr_start": reward(sample.starts, start_actions).mean(),
        "sample_qc_data": critics.cost(batch.observations, batch.actions).mean(),
        "sample_cost_to_go": sample.cost_to_go.mean(),
        "sample_qr_data": reward(batch.observations, batch.actions).mean(),
        "sample_return_to_go": sample.return_to_go.mean(),
    }
