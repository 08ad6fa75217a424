"""BEAR-Lagrangian: BEAR (Kumar, Fu, Tucker and Levine, NeurIPS 2019) with an adaptive price on cost.

    maximise  E_s E_a~pi Qr(s, a)
    subject to  E_s Qc(s, pi(s)) <= l                       (price lambda_cost)
                E_s MMD(pi(. | s), behaviour(. | s)) <= epsilon   (price lambda_mmd)

This is the naive approach of the CPQ paper (Section 3.2) with its two multipliers. The paper reports (Section 6) that
they rise alternately until they outweigh Qr; `lambda_cost`, `lambda_mmd` and `reward_share` show whether they do.

The behaviour is sampled from a conditional VAE of the log, trained first and then fixed. As in BEAR the policy that
runs draws p actions and takes the best, here by Qr - lambda_cost Qc, and a warm-up only clones: the actor lowers the
MMD, with neither reward nor cost in its loss and lambda_cost at rest. lambda_mmd moves from the first step, so that it
has settled when Qr enters the loss.

Where the paper and its authors' code differ, this is the paper: the MMD compares actions, where the code compares them
before the tanh, and Qr is the mean of the smaller critic's values, where the code takes the smaller of their means over
the samples. The code also clips the actor's noise to +-0.5 in the samples of the actor's loss; we do not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.bcq_lag import BCQLag
from ringfence.algorithms.candidates import (
    CandidateMethod,
    Candidates,
    CandidateState,
    balanced_normal,
    choose,
    critic_diagnostics,
    draw_latents,
    generate,
)
from ringfence.algorithms.checks import one_of, positive
from ringfence.algorithms.critics import describe_critics, smaller_value
from ringfence.algorithms.interface import Batch, Export, Metrics, Sample, Spec, Stage
from ringfence.algorithms.lagrange import LogMultiplier, log_dual_step
from ringfence.networks import Gaussian, TanhGaussianActor, describe_cvae, polyak, sample_tanh

Scalar = Float[Array, ""]
PerState = Float[Array, " batch"]
Kernel = Literal["laplacian", "gaussian"]
Observations = Float[Array, "batch obs"]


class State(CandidateState):
    """In addition: the actor, the price of the MMD, and the noise of the deterministic policy."""

    actor: TanhGaussianActor
    target_actor: TanhGaussianActor
    actor_optimiser: optax.OptState
    mmd_multiplier: LogMultiplier
    noise: Float[Array, "p act"]


def kernel_means(
    x: Float[Array, "n batch act"], y: Float[Array, "m batch act"], kernel: Kernel, width: float
) -> PerState:
    """The mean over all pairs of k(x_i, y_j), in each state, with k = exp(-|x - y|_1 / (2 width)) (Laplacian) or
    exp(-|x - y|_2^2 / (2 width)) (Gaussian); both as in BEAR's code."""
    difference = x[:, None] - y[None]
    distance = jnp.abs(difference) if kernel == "laplacian" else difference**2
    return jnp.mean(jnp.exp(-distance.sum(-1) / (2.0 * width)), (0, 1))


def mmd(x: Float[Array, "n batch act"], y: Float[Array, "m batch act"], kernel: Kernel, width: float) -> PerState:
    """The maximum mean discrepancy of two samples of actions in each state (BEAR, Section 5):

        MMD^2 = mean k(x, x') - 2 mean k(x, y) + mean k(y, y')

    The means run over all pairs, a sample with itself included, so that two samples of one distribution have a small
    positive MMD, not 0. The 1e-6 under the root keeps its gradient finite."""
    squared = kernel_means(x, x, kernel, width) - 2.0 * kernel_means(x, y, kernel, width)
    return jnp.sqrt(jnp.maximum(squared + kernel_means(y, y, kernel, width), 0.0) + 1e-6)


def penalised_loss(
    reward: Float[Array, "n batch"], cost: Float[Array, "n batch"], distance: PerState, price: Scalar, mmd_price: Scalar
) -> Scalar:
    """- E [min_i Qr_i(s, a) - lambda_cost Qc(s, a)] + lambda_mmd E MMD: what the actor can change of the Lagrangian."""
    return -jnp.mean(reward - price * cost) + mmd_price * jnp.mean(distance)


@dataclass(frozen=True)
class BEARLag(CandidateMethod):
    """BEAR-Lagrangian's hyper-parameters."""

    name: ClassVar[str] = "bear-lag"
    shown: ClassVar[tuple[str, ...]] = ("generator_loss", "lambda_cost", "lambda_mmd", "qr_policy", "qc_policy")
    small: ClassVar[Mapping[str, Any]] = {**BCQLag.small, "warmup_steps": 50}

    warmup_steps: int = 20_000  # stage two: the actor only clones

    # The divergence constraint
    epsilon: float = 0.05
    mmd_samples: int = 5
    kernel: Kernel = "laplacian"
    kernel_width: float = 10.0
    mmd_rate: float = 1e-3  # of the logarithm of lambda_mmd (Adam)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "warmup_steps", "epsilon", "mmd_samples", "kernel_width")
        positive(self, "mmd_rate", zero=True)
        one_of(self, "kernel", ("laplacian", "gaussian"))

    def init(self, key: PRNGKeyArray, limit: Scalar, spec: Spec) -> State:
        keys = jax.random.split(key, 6)
        actor = TanhGaussianActor(spec.observation_dim, spec.action_dim, self.hidden, key=keys[4])
        return State(
            **self.common_state(keys[:4], limit, spec),
            actor=actor,
            target_actor=actor,
            actor_optimiser=self._adam.init(actor),
            mmd_multiplier=LogMultiplier.create(1.0, self.mmd_rate),
            noise=balanced_normal(keys[5], self.candidates, spec.action_dim),
        )

    def stages(self, steps: int) -> tuple[Stage, ...]:
        return (
            Stage("generator", self.cvae_steps, self.update_generator),
            Stage("warm-up", self.warmup_steps, self.update_cloning),
            Stage("policy", steps, self.update),
        )

    def update_cloning(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """The critics learn the values of an actor that only lowers the MMD, while the price of the MMD moves."""
        critic_key, actor_key = jax.random.split(key)
        state, metrics = self.update_critics(state, batch, self.following(state, batch, critic_key))
        state, seen = self.update_actor(state, batch, actor_key, self.cloning_loss)
        state = self.update_mmd_multiplier(state, seen["mmd"])
        return state, {**metrics, **seen, "lambda_mmd": state.mmd_multiplier.value}

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        critic_key, actor_key, choice_key = jax.random.split(key, 3)
        state, metrics = self.update_critics(state, batch, self.following(state, batch, critic_key))
        state, seen = self.update_actor(state, batch, actor_key, self.lagrangian)

        # Both prices follow what the policy now does
        candidates = sample_tanh(state.actor(batch.observations), choice_key, (self.candidates,))[0]
        state, priced = self.update_multiplier(state, batch.observations, candidates)
        state = self.update_mmd_multiplier(state, seen["mmd"])
        return state, {**metrics, **seen, **priced, "lambda_mmd": state.mmd_multiplier.value}

    def following(self, state: State, batch: Batch, key: PRNGKeyArray) -> Candidates:
        """The candidates at s'."""
        return sample_tanh(state.target_actor(batch.next_observations), key, (self.candidates,))[0]

    def update_actor(
        self, state: State, batch: Batch, key: PRNGKeyArray, loss: Callable[..., tuple[Scalar, Metrics]]
    ) -> tuple[State, Metrics]:
        gradient, seen = jax.grad(loss, has_aux=True)(state.actor, state, batch.observations, key)
        actor, optimiser = self._adam.step(gradient, state.actor_optimiser, state.actor)
        target_actor = polyak(state.target_actor, actor, self.tau)
        return replace(state, actor=actor, target_actor=target_actor, actor_optimiser=optimiser), seen

    def update_mmd_multiplier(self, state: State, distance: Scalar) -> State:
        moved = log_dual_step(state.mmd_multiplier, distance - self.epsilon, self.mmd_rate)
        return replace(state, mmd_multiplier=moved)

    def cloning_loss(
        self, actor: TanhGaussianActor, state: State, observations: Observations, key: PRNGKeyArray
    ) -> tuple[Scalar, Metrics]:
        """lambda_mmd E MMD, and nothing else."""
        _, distance = self.distance_to_behaviour(actor, state, observations, key)
        return state.mmd_multiplier.value * distance.mean(), {"mmd": distance.mean()}

    def lagrangian(
        self, actor: TanhGaussianActor, state: State, observations: Observations, key: PRNGKeyArray
    ) -> tuple[Scalar, Metrics]:
        """`penalised_loss` of the actor's own samples. No gradient reaches critics, generator or multipliers."""
        actions, distance = self.distance_to_behaviour(actor, state, observations, key)
        reward = smaller_value(state.critics.reward, observations, actions)
        cost = state.critics.cost(observations, actions)
        price, mmd_price = state.multiplier.value, state.mmd_multiplier.value
        parts = [jnp.mean(jnp.abs(reward)), price * jnp.mean(jnp.abs(cost)), mmd_price * jnp.mean(distance)]
        return penalised_loss(reward, cost, distance, price, mmd_price), {
            "mmd": distance.mean(),
            "reward_share": parts[0] / (sum(parts) + 1e-8),  # small where the penalties outweigh Qr
        }

    def distance_to_behaviour(
        self, actor: TanhGaussianActor, state: State, observations: Observations, key: PRNGKeyArray
    ) -> tuple[Candidates, PerState]:
        """Actions of the actor, and their MMD to actions of the generator."""
        actor_key, generator_key = jax.random.split(key)
        actions = sample_tanh(actor(observations), actor_key, (self.mmd_samples,))[0]
        behaviour = self.behaviour(state, observations, generator_key)
        return actions, mmd(actions, behaviour, self.kernel, self.kernel_width)

    def behaviour(self, state: State, observations: Observations, key: PRNGKeyArray) -> Candidates:
        latents = draw_latents(key, self.mmd_samples, observations.shape[0], state.noise.shape[-1])
        return generate(state.generator, observations, latents)

    def act(self, state: State, observations: Observations) -> Float[Array, "batch act"]:
        """The deterministic policy: the choice among the actions of the state's own fixed noise."""
        gaussian: Gaussian = state.actor(observations)
        candidates = jnp.tanh(gaussian.mean + gaussian.std * state.noise[:, None])
        return choose(state.critics, observations, candidates, state.multiplier.value)

    def diagnose(self, state: State, sample: Sample, key: PRNGKeyArray) -> Metrics:
        batch = sample.batch
        once, again = (self.behaviour(state, batch.observations, k) for k in jax.random.split(key))
        actions = self.act(state, sample.starts), self.act(state, batch.observations)
        return {
            **critic_diagnostics(state.critics, sample, *actions),
            # What the behaviour itself would show
            "mmd_floor": mmd(once, again, self.kernel, self.kernel_width).mean(),
            "policy_std": state.actor(batch.observations).std.mean(),
        }

    def export(self, state: State) -> Export:
        networks = {"actor": state.actor, **describe_cvae(state.generator), **describe_critics(state.critics)}
        return Export("bear", networks, {"lambda": state.multiplier.value[None], "noise": state.noise})

    def warnings_of(self, last: Mapping[str, float]) -> list[str]:
        if last.get("mmd_floor", 0.0) <= self.epsilon:
            return []
        return [
            f"epsilon is out of reach: two samples of the behaviour itself are {last['mmd_floor']:.3g} apart, "
            f"above epsilon {self.epsilon:g}, so only a narrower policy can keep it, and lambda_mmd may rise "
            "without end."
        ]
