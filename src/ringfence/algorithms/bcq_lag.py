"""BCQ-Lagrangian: BCQ (Fujimoto, Meger and Precup, ICML 2019) with an adaptive price on cost.

    maximise  E_s Qr(s, pi(s))   subject to   E_s Qc(s, pi(s)) <= l,      s from the log

pi(s) is chosen among n actions that a generator, a conditional VAE of the log, finds likely in s, each moved a little
(at most phi) by a perturbation network: the one with the greatest Qr - lambda Qc. The multiplier lambda follows the
violation by dual ascent, or by a PID controller. This is the baseline of the CPQ paper (Section 6).

Two things differ from the authors' code apart from the penalty. The generator is trained first and then fixed, as
everywhere in ringfence, instead of along with the critics. And n is the same in training and at run time, as in the
paper's definition of the policy (Section 4.2), where the code draws 10 and 100: the best of 100 is another policy than
the one whose cost Qc measures and lambda prices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.candidates import (
    LATENT_BOUND,
    Candidates,
    balanced_normal,
    best_candidate_target,
    choose,
    chosen_cost_target,
    critic_diagnostics,
    critic_step,
    draw_latents,
    generate,
    generator_step,
)
from ringfence.algorithms.checks import common, positive
from ringfence.algorithms.critics import Critics, describe_critics, fresh_critics
from ringfence.algorithms.interface import Batch, Export, Metrics, Sample, Spec, Stage
from ringfence.algorithms.lagrange import Multiplier, lagrange_warnings, pid_step
from ringfence.algorithms.optimise import Adam
from ringfence.networks import CVAE, MLP, Described, describe_cvae, polyak

Scalar = Float[Array, ""]
Observations = Float[Array, "batch obs"]


class State(eqx.Module):
    """Everything that training changes, the limit, and the latents of the deterministic policy."""

    limit: Scalar  # l
    generator: CVAE
    perturbation: MLP
    target_perturbation: MLP
    critics: Critics
    targets: Critics
    multiplier: Multiplier  # lambda
    latents: Float[Array, "n latent"]
    generator_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    perturbation_optimiser: optax.OptState


def perturb(perturbation: MLP, observations: Observations, actions: Candidates, phi: float) -> Candidates:
    """a + phi tanh(xi(s, a)), kept in [-1, 1] (BCQ, Section 4.2: the perturbation model)."""
    states = jnp.broadcast_to(observations, (*actions.shape[:-1], observations.shape[-1]))
    move = phi * jnp.tanh(perturbation(jnp.concatenate([states, actions], -1)))
    return jnp.clip(actions + move, -1.0, 1.0)


def perturbation_loss(
    perturbation: MLP, critics: Critics, observations: Observations, actions: Candidates, price: Scalar, phi: float
) -> Scalar:
    """- E [Qr_1(s, a) - lambda Qc(s, a)] over a generated and perturbed action of each state (BCQ, Eq. 12, with the
    penalty). No gradient reaches the critics, the generator or lambda."""
    moved = perturb(perturbation, observations, actions, phi)[0]
    return -jnp.mean(critics.reward[0](observations, moved) - price * critics.cost(observations, moved))


@dataclass(frozen=True)
class BCQLag:
    """BCQ-Lagrangian's hyper-parameters."""

    name: ClassVar[str] = "bcq-lag"
    shown: ClassVar[tuple[str, ...]] = ("generator_loss", "lambda_cost", "qr_policy", "qc_policy")
    small: ClassVar[Mapping[str, Any]] = {"cvae_steps": 200, "decoder_std": 0.1, "tau": 0.05, "lambda_rate": 5e-2}

    limit: float | None = None  # l: bound on the expected discounted cost
    discount: float = 0.99
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

    candidates: int = 10  # n
    phi: float = 0.05  # how far the perturbation may move an action, in units of half the action range
    soft_clipping: float = 0.75  # weight of the smaller of the two reward critics

    # The multiplier: dual ascent with this rate, or PID where the other gains are not 0
    lambda_rate: float = 1e-4
    lambda_proportional: float = 0.0
    lambda_derivative: float = 0.0

    def __post_init__(self) -> None:
        common(self)
        positive(self, "tau", "cvae_steps", "beta", "decoder_std", "candidates")
        positive(self, "phi", "soft_clipping", "lambda_rate", "lambda_proportional", "lambda_derivative", zero=True)

    def init(self, key: PRNGKeyArray, limit: Scalar, spec: Spec) -> State:
        keys = jax.random.split(key, 6)
        obs, act = spec.observation_dim, spec.action_dim
        critics = fresh_critics(spec, self.hidden, keys[:3])
        generator = CVAE(obs, act, 2 * act, self.hidden, key=keys[3])
        perturbation = MLP(obs + act, act, self.hidden, key=keys[4])
        return State(
            limit=jnp.asarray(limit, jnp.float32),
            generator=generator,
            perturbation=perturbation,
            target_perturbation=perturbation,
            critics=critics,
            targets=critics,
            multiplier=Multiplier.zero(),
            latents=balanced_normal(keys[5], self.candidates, 2 * act),
            generator_optimiser=self._adam.init(generator),
            critic_optimiser=self._adam.init(critics),
            perturbation_optimiser=self._adam.init(perturbation),
        )

    def stages(self, steps: int) -> tuple[Stage, ...]:
        return Stage("generator", self.cvae_steps, self.update_generator), Stage("policy", steps, self.update)

    def update_generator(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """The generator only clones: neither critics nor multiplier move."""
        generator, optimiser, loss = generator_step(
            self._adam, state.generator, state.generator_optimiser, batch, key, self.beta, self.decoder_std
        )
        return replace(state, generator=generator, generator_optimiser=optimiser), {"generator_loss": loss}

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        next_key, key = jax.random.split(key)
        size, act = batch.actions.shape
        price = state.multiplier.value

        # The critics
        following = self.propose(
            state,
            state.target_perturbation,
            batch.next_observations,
            draw_latents(next_key, self.candidates, size, act),
        )
        reward_target = best_candidate_target(state.targets, batch, following, self.discount, self.soft_clipping)
        cost_target = chosen_cost_target(state.targets, batch, following, price, self.discount)
        critics, critic_optimiser, losses = critic_step(
            self._adam, state.critics, state.critic_optimiser, batch, reward_target, cost_target
        )

        # The perturbation
        generated = generate(state.generator, batch.observations, draw_latents(key, self.candidates, size, act))
        gradient = jax.grad(perturbation_loss)(
            state.perturbation, critics, batch.observations, generated[:1], price, self.phi
        )
        perturbation, perturbation_optimiser = self._adam.step(
            gradient, state.perturbation_optimiser, state.perturbation
        )

        # The multiplier, on the cost of what the policy now does
        moved = perturb(perturbation, batch.observations, generated, self.phi)
        actions = choose(critics, batch.observations, moved, price)
        qc = critics.cost(batch.observations, actions).mean()
        multiplier = pid_step(
            state.multiplier, qc, state.limit, self.lambda_rate, self.lambda_proportional, self.lambda_derivative
        )

        state = replace(
            state,
            critics=critics,
            targets=polyak(state.targets, critics, self.tau),
            perturbation=perturbation,
            target_perturbation=polyak(state.target_perturbation, perturbation, self.tau),
            multiplier=multiplier,
            critic_optimiser=critic_optimiser,
            perturbation_optimiser=perturbation_optimiser,
        )
        return state, {
            **losses,
            "lambda_cost": multiplier.value,
            "qr_policy": critics.reward[0](batch.observations, actions).mean(),
            "qc_policy": qc,
        }

    def propose(
        self, state: State, perturbation: MLP, observations: Observations, latents: Float[Array, "n #batch latent"]
    ) -> Candidates:
        """The candidates of each state: generated, then perturbed."""
        return perturb(perturbation, observations, generate(state.generator, observations, latents), self.phi)

    def act(self, state: State, observations: Observations) -> Float[Array, "batch act"]:
        """The deterministic policy: the choice among the actions of the state's own fixed latents."""
        candidates = self.propose(state, state.perturbation, observations, state.latents[:, None])
        return choose(state.critics, observations, candidates, state.multiplier.value)

    def diagnose(self, state: State, sample: Sample, key: PRNGKeyArray) -> Metrics:
        batch = sample.batch
        generated = generate(state.generator, batch.observations, state.latents[:, None])
        return {
            **critic_diagnostics(state.critics, sample, self.act(state, sample.starts)),
            # 0 if the generator gives one action whatever the latent: then there is nothing to choose from
            "candidate_spread": generated.std(0).mean(),
            "policy_distance": jnp.sqrt(jnp.mean((self.act(state, batch.observations) - batch.actions) ** 2)),
        }

    def export(self, state: State) -> Export:
        networks = {
            **describe_cvae(state.generator),
            "perturbation": Described(state.perturbation, ("observation", "action"), "tanh"),
            **describe_critics(state.critics),
        }
        tensors = {
            "lambda": state.multiplier.value[None],
            "phi": jnp.full(1, self.phi),
            "latents": state.latents,
            "latent_bound": jnp.full(1, LATENT_BOUND),
        }
        return Export("bcq", networks, tensors)

    def warnings(self, stage: str, history: list[Mapping[str, float]]) -> list[str]:
        if stage != "policy" or not history:
            return []
        last = history[-1]
        found = lagrange_warnings(history)
        if last.get("candidate_spread", 1.0) < COLLAPSED_SPREAD:
            found.append(
                f"the generator gives nearly one action per state: its candidates spread by "
                f"{last['candidate_spread']:.2g} of half the action range, so the policy has nothing to choose from. "
                "Lower decoder_std or beta, unless the log itself is that narrow."
            )
        return found

    @property
    def _adam(self) -> Adam:
        return Adam(self.learning_rate)


COLLAPSED_SPREAD = 0.01
