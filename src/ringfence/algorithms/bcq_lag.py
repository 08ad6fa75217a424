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

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.candidates import (
    LATENT_BOUND,
    CandidateMethod,
    Candidates,
    CandidateState,
    balanced_normal,
    choose,
    critic_diagnostics,
    draw_latents,
    generate,
)
from ringfence.algorithms.checks import positive
from ringfence.algorithms.critics import Critics, describe_critics
from ringfence.algorithms.interface import Batch, Export, Metrics, Sample, Spec, Stage
from ringfence.networks import MLP, Described, describe_cvae, pairs, polyak

Scalar = Float[Array, ""]
Observations = Float[Array, "batch obs"]
COLLAPSED_SPREAD = 0.01


class State(CandidateState):
    """In addition: the perturbation network, and the latents of the deterministic policy."""

    perturbation: MLP
    target_perturbation: MLP
    perturbation_optimiser: optax.OptState
    latents: Float[Array, "n latent"]


def perturb(perturbation: MLP, observations: Observations, actions: Candidates, phi: float) -> Candidates:
    """a + phi tanh(xi(s, a)), kept in [-1, 1] (BCQ, Section 4.2: the perturbation model)."""
    move = phi * jnp.tanh(perturbation(pairs(observations, actions)))
    return jnp.clip(actions + move, -1.0, 1.0)


def perturbation_loss(
    perturbation: MLP, critics: Critics, observations: Observations, actions: Candidates, price: Scalar, phi: float
) -> Scalar:
    """- E [Qr_1(s, a) - lambda Qc(s, a)] over a generated and perturbed action of each state (BCQ, Eq. 12, with the
    penalty). No gradient reaches the critics, the generator or lambda."""
    moved = perturb(perturbation, observations, actions, phi)[0]
    return -jnp.mean(critics.reward[0](observations, moved) - price * critics.cost(observations, moved))


@dataclass(frozen=True)
class BCQLag(CandidateMethod):
    """BCQ-Lagrangian's hyper-parameters."""

    name: ClassVar[str] = "bcq-lag"
    shown: ClassVar[tuple[str, ...]] = ("generator_loss", "lambda_cost", "qr_policy", "qc_policy")
    small: ClassVar[Mapping[str, Any]] = {"cvae_steps": 200, "decoder_std": 0.1, "tau": 0.05, "lambda_rate": 5e-2}

    phi: float = 0.05  # how far the perturbation may move an action, in units of half the action range

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "phi", zero=True)

    def init(self, key: PRNGKeyArray, limit: Scalar, spec: Spec) -> State:
        keys = jax.random.split(key, 6)
        obs, act = spec.observation_dim, spec.action_dim
        perturbation = MLP(obs + act, act, self.hidden, key=keys[4])
        return State(
            **self.common_state(keys[:4], limit, spec),
            perturbation=perturbation,
            target_perturbation=perturbation,
            perturbation_optimiser=self._adam.init(perturbation),
            latents=balanced_normal(keys[5], self.candidates, 2 * act),
        )

    def stages(self, steps: int) -> tuple[Stage, ...]:
        return Stage("generator", self.cvae_steps, self.update_generator), Stage("policy", steps, self.update)

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        next_key, key = jax.random.split(key)
        size, act = batch.actions.shape

        # The critics
        following = self.propose(
            state,
            state.target_perturbation,
            batch.next_observations,
            draw_latents(next_key, self.candidates, size, act),
        )
        state, losses = self.update_critics(state, batch, following)

        # The perturbation
        generated = generate(state.generator, batch.observations, draw_latents(key, self.candidates, size, act))
        gradient = jax.grad(perturbation_loss)(
            state.perturbation, state.critics, batch.observations, generated[:1], state.multiplier.value, self.phi
        )
        perturbation, optimiser = self._adam.step(gradient, state.perturbation_optimiser, state.perturbation)
        target_perturbation = polyak(state.target_perturbation, perturbation, self.tau)

        # The multiplier
        moved = perturb(perturbation, batch.observations, generated, self.phi)
        state, seen = self.update_multiplier(state, batch.observations, moved)
        state = replace(
            state, perturbation=perturbation, target_perturbation=target_perturbation, perturbation_optimiser=optimiser
        )
        return state, {**losses, **seen}

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
        actions = self.act(state, sample.starts), self.act(state, batch.observations)
        return {
            **critic_diagnostics(state.critics, sample, *actions),
            # 0 if the generator gives one action whatever the latent: then there is nothing to choose from
            "candidate_spread": generated.std(0).mean(),
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

    def warnings_of(self, last: Mapping[str, float]) -> list[str]:
        if last.get("candidate_spread", 1.0) >= COLLAPSED_SPREAD:
            return []
        return [
            f"the generator gives nearly one action per state: its candidates spread by "
            f"{last['candidate_spread']:.2g} of half the action range, so the policy has nothing to choose from. "
            "Lower decoder_std or beta, unless the log itself is that narrow."
        ]
