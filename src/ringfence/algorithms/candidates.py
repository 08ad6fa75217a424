"""Choosing among sampled actions, as BCQ and BEAR do, with a price on cost: what the two have in common.

Both draw n candidate actions in a state. Their reward critics back up the best candidate under a soft-clipped double-Q
value; their policy takes the candidate with the greatest penalised value Qr - lambda Qc. Both train a generator of actions
first, a conditional VAE of the log, and then leave it fixed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.checks import at_most_one, check_settings, positive
from ringfence.algorithms.cpq import cost_bellman_target
from ringfence.algorithms.critics import Critics, fresh_critics
from ringfence.algorithms.interface import Batch, Metrics, Sample, Spec
from ringfence.algorithms.lagrange import Multiplier, lagrange_warnings, pid_step
from ringfence.algorithms.ood import cvae_loss
from ringfence.limits import DISCOUNT
from ringfence.networks import CVAE, polyak
from ringfence.optimise import Adam
from ringfence.steps import steps_with_critics

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


def critic_diagnostics(
    critics: Critics, sample: Sample, start_actions: Float[Array, "starts act"], actions: Float[Array, "batch act"]
) -> Metrics:
    """The critics at the policy's first actions, and on logged pairs beside what really followed them; and how far the
    policy's actions are from the logged ones."""
    batch, reward = sample.batch, critics.reward[0]
    return {
        "qc_start": critics.cost(sample.starts, start_actions).mean(),
        "qr_start": reward(sample.starts, start_actions).mean(),
        "sample_qc_data": critics.cost(batch.observations, batch.actions).mean(),
        "sample_cost_to_go": sample.cost_to_go.mean(),
        "sample_qr_data": reward(batch.observations, batch.actions).mean(),
        "sample_return_to_go": sample.return_to_go.mean(),
        "policy_distance": jnp.sqrt(jnp.mean((actions - batch.actions) ** 2)),
    }


class CandidateState(eqx.Module):
    """What training changes in both methods, and the limit."""

    limit: Scalar  # l
    generator: CVAE
    critics: Critics
    targets: Critics
    multiplier: Multiplier  # lambda, the price of cost
    generator_optimiser: optax.OptState
    critic_optimiser: optax.OptState


AnyState = TypeVar("AnyState", bound=CandidateState)


@dataclass(frozen=True)
class CandidateMethod:
    """The hyper-parameters that both methods have, and the steps that are the same in both."""

    limit: float | None = None  # l: bound on the expected discounted cost
    discount: float = DISCOUNT
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4  # of all networks (Adam)
    tau: float = 0.005  # of the target networks

    # Stage one: the generator
    cvae_steps: int = 20_000
    beta: float = 1.0
    # BCQ weighs the mean squared error against half the mean KL over 2 act latents; per dimension of the action that
    # is the evidence lower bound of a decoder with this standard deviation.
    decoder_std: float = 8.0**-0.5

    candidates: int = 10  # n in BCQ, p in BEAR
    soft_clipping: float = 0.75  # weight of the smaller of the two reward critics

    # The cost multiplier: dual ascent with this rate, or PID where the other gains are not 0
    lambda_rate: float = 1e-4
    lambda_proportional: float = 0.0
    lambda_derivative: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self)
        positive(self, "cvae_steps", "beta", "decoder_std", "candidates")
        at_most_one(self, "tau")
        at_most_one(self, "soft_clipping", zero=True)
        positive(self, "lambda_rate", "lambda_proportional", "lambda_derivative", zero=True)

    def common_state(self, keys: PRNGKeyArray, limit: Scalar, spec: Spec) -> dict[str, Any]:
        """The fields of `CandidateState` before training, from four keys."""
        critics = fresh_critics(spec, self.hidden, keys[:3])
        action_dim = spec.action_dim
        generator = CVAE(spec.observation_dim, action_dim, 2 * action_dim, self.hidden, key=keys[3])
        return {
            "limit": jnp.asarray(limit, jnp.float32),
            "generator": generator,
            "critics": critics,
            "targets": critics,
            "multiplier": Multiplier.zero(),
            "generator_optimiser": self._adam.init(generator),
            "critic_optimiser": self._adam.init(critics),
        }

    def update_generator(self, state: AnyState, batch: Batch, key: PRNGKeyArray) -> tuple[AnyState, Metrics]:
        """The generator only clones: neither critics nor multiplier move."""
        generator, optimiser, loss = generator_step(
            self._adam, state.generator, state.generator_optimiser, batch, key, self.beta, self.decoder_std
        )
        return replace(state, generator=generator, generator_optimiser=optimiser), {"generator_loss": loss}

    def update_critics(self, state: AnyState, batch: Batch, following: Candidates) -> tuple[AnyState, Metrics]:
        """One step of all critics and their targets, given the candidates at s'."""
        reward_target = best_candidate_target(state.targets, batch, following, self.discount, self.soft_clipping)
        cost_target = chosen_cost_target(state.targets, batch, following, state.multiplier.value, self.discount)
        critics, optimiser, losses = critic_step(
            self._adam, state.critics, state.critic_optimiser, batch, reward_target, cost_target
        )
        targets = polyak(state.targets, critics, self.tau)
        return replace(state, critics=critics, targets=targets, critic_optimiser=optimiser), losses

    def update_multiplier(
        self, state: AnyState, observations: Float[Array, "batch obs"], candidates: Candidates
    ) -> tuple[AnyState, Metrics]:
        """lambda follows the cost of what the policy now does."""
        actions = choose(state.critics, observations, candidates, state.multiplier.value)
        qc = state.critics.cost(observations, actions).mean()
        gains = (self.lambda_rate, self.lambda_proportional, self.lambda_derivative)
        multiplier = pid_step(state.multiplier, qc, state.limit, *gains)
        return replace(state, multiplier=multiplier), {
            "lambda_cost": multiplier.value,
            "qr_policy": state.critics.reward[0](observations, actions).mean(),
            "qc_policy": qc,
        }

    def warnings(self, stage: str, history: list[Mapping[str, float]]) -> list[str]:
        if stage != "policy" or not history:
            return []
        return lagrange_warnings(history) + self.warnings_of(history[-1])

    def warnings_of(self, last: Mapping[str, float]) -> list[str]:
        """The method's own warnings, from its last metrics."""
        return []

    @property
    def default_steps(self) -> int:
        return steps_with_critics(self.tau, self.discount)

    @property
    def _adam(self) -> Adam:
        return Adam(self.learning_rate)
