"""BEAR-Lagrangian: BEAR (Kumar, Fu, Tucker and Levine, NeurIPS 2019) with an adaptive price on cost.

    maximise  E_s E_a~pi Qr(s, a)
    subject to  E_s Qc(s, pi(s)) <= l                       (price lambda_cost)
                E_s MMD(pi(. | s), behaviour(. | s)) <= epsilon   (price lambda_mmd)

This is the naive approach of the CPQ paper (Section 3.2) with its two multipliers. The paper reports (Section 6) that
they rise by turns and drown Qr; `lambda_cost`, `lambda_mmd` and `reward_share` show whether they do.

The behaviour is sampled from a conditional VAE of the log, trained first and then fixed. As in BEAR the policy that
runs draws p actions and takes the best, here by Qr - lambda_cost Qc, and a warm-up only clones: the actor lowers the
MMD, with neither reward nor cost in its loss and lambda_cost at rest. lambda_mmd moves from the first step, so that it
has found its size when Qr comes in.

Where the paper and its authors' code part, this is the paper: the MMD compares actions, where the code compares them
before the tanh, and Qr is the mean of the smaller critic's values, where the code takes the smaller of their means over
the samples. The code also clips the actor's noise to +-0.5 in the samples of the actor's loss; we do not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.bcq_lag import BCQLag
from ringfence.algorithms.candidates import (
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
from ringfence.algorithms.checks import common, one_of, positive
from ringfence.algorithms.critics import Critics, describe_critics, fresh_critics, smaller_value
from ringfence.algorithms.interface import Batch, Export, Metrics, Sample, Spec, Stage
from ringfence.algorithms.lagrange import LogMultiplier, Multiplier, lagrange_warnings, log_dual_step, pid_step
from ringfence.algorithms.optimise import Adam
from ringfence.networks import CVAE, Gaussian, TanhGaussianActor, describe_cvae, polyak, sample_tanh

Scalar = Float[Array, ""]
PerState = Float[Array, " batch"]
Kernel = Literal["laplacian", "gaussian"]
Observations = Float[Array, "batch obs"]


class State(eqx.Module):
    """Everything that training changes, the limit, and the noise of the deterministic policy."""

    limit: Scalar  # l
    generator: CVAE
    actor: TanhGaussianActor
    target_actor: TanhGaussianActor
    critics: Critics
    targets: Critics
    cost_multiplier: Multiplier
    mmd_multiplier: LogMultiplier
    noise: Float[Array, "p act"]
    generator_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    actor_optimiser: optax.OptState


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
class BEARLag:
    """BEAR-Lagrangian's hyper-parameters."""

    name: ClassVar[str] = "bear-lag"
    shown: ClassVar[tuple[str, ...]] = ("generator_loss", "lambda_cost", "lambda_mmd", "qr_policy", "qc_policy")
    small: ClassVar[Mapping[str, Any]] = {**BCQLag.small, "warmup_steps": 50}

    limit: float | None = None  # l: bound on the expected discounted cost
    discount: float = 0.99
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4  # of all networks (Adam)
    tau: float = 0.005  # of the target networks

    # Stage one: the generator, as in BCQ-Lagrangian
    cvae_steps: int = 20_000
    beta: float = 1.0
    decoder_std: float = 8.0**-0.5

    warmup_steps: int = 20_000  # stage two: the actor only clones

    candidates: int = 10  # p
    soft_clipping: float = 0.75  # weight of the smaller of the two reward critics

    # The divergence constraint
    epsilon: float = 0.05
    mmd_samples: int = 5
    kernel: Kernel = "laplacian"
    kernel_width: float = 10.0
    mmd_rate: float = 1e-3  # of the logarithm of lambda_mmd (Adam)

    # The cost multiplier: dual ascent with this rate, or PID where the other gains are not 0
    lambda_rate: float = 1e-4
    lambda_proportional: float = 0.0
    lambda_derivative: float = 0.0

    def __post_init__(self) -> None:
        common(self)
        positive(self, "tau", "cvae_steps", "beta", "decoder_std", "warmup_steps", "candidates")
        positive(self, "epsilon", "mmd_samples", "kernel_width")
        positive(self, "soft_clipping", "mmd_rate", zero=True)
        positive(self, "lambda_rate", "lambda_proportional", "lambda_derivative", zero=True)
        one_of(self, "kernel", ("laplacian", "gaussian"))

    def init(self, key: PRNGKeyArray, limit: Scalar, spec: Spec) -> State:
        keys = jax.random.split(key, 6)
        obs, act = spec.observation_dim, spec.action_dim
        critics = fresh_critics(spec, self.hidden, keys[:3])
        generator = CVAE(obs, act, 2 * act, self.hidden, key=keys[3])
        actor = TanhGaussianActor(obs, act, self.hidden, key=keys[4])
        return State(
            limit=jnp.asarray(limit, jnp.float32),
            generator=generator,
            actor=actor,
            target_actor=actor,
            critics=critics,
            targets=critics,
            cost_multiplier=Multiplier.zero(),
            mmd_multiplier=LogMultiplier.create(1.0, self.mmd_rate),
            noise=balanced_normal(keys[5], self.candidates, act),
            generator_optimiser=self._adam.init(generator),
            critic_optimiser=self._adam.init(critics),
            actor_optimiser=self._adam.init(actor),
        )

    def stages(self, steps: int) -> tuple[Stage, ...]:
        return (
            Stage("generator", self.cvae_steps, self.update_generator),
            Stage("warm-up", self.warmup_steps, self.update_cloning),
            Stage("policy", steps, self.update),
        )

    def update_generator(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        generator, optimiser, loss = generator_step(
            self._adam, state.generator, state.generator_optimiser, batch, key, self.beta, self.decoder_std
        )
        return replace(state, generator=generator, generator_optimiser=optimiser), {"generator_loss": loss}

    def update_cloning(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """The critics learn the values of an actor that only lowers the MMD, while the price of the MMD moves."""
        critic_key, actor_key = jax.random.split(key)
        state, metrics = self.update_critics(state, batch, critic_key)
        state, seen = self.update_actor(state, batch, actor_key, self.cloning_loss)
        state = self.update_mmd_multiplier(state, seen["mmd"])
        return state, {**metrics, **seen, "lambda_mmd": state.mmd_multiplier.value}

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        critic_key, actor_key, choice_key = jax.random.split(key, 3)
        state, metrics = self.update_critics(state, batch, critic_key)
        state, seen = self.update_actor(state, batch, actor_key, self.lagrangian)

        # Both prices follow what the policy now does
        candidates = sample_tanh(state.actor(batch.observations), choice_key, (self.candidates,))[0]
        actions = choose(state.critics, batch.observations, candidates, state.cost_multiplier.value)
        qc = state.critics.cost(batch.observations, actions).mean()
        state = replace(
            state,
            cost_multiplier=pid_step(
                state.cost_multiplier,
                qc,
                state.limit,
                self.lambda_rate,
                self.lambda_proportional,
                self.lambda_derivative,
            ),
        )
        state = self.update_mmd_multiplier(state, seen["mmd"])
        return state, {
            **metrics,
            **seen,
            "lambda_cost": state.cost_multiplier.value,
            "lambda_mmd": state.mmd_multiplier.value,
            "qr_policy": state.critics.reward[0](batch.observations, actions).mean(),
            "qc_policy": qc,
        }

    def update_critics(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        following = sample_tanh(state.target_actor(batch.next_observations), key, (self.candidates,))[0]
        price = state.cost_multiplier.value
        reward_target = best_candidate_target(state.targets, batch, following, self.discount, self.soft_clipping)
        cost_target = chosen_cost_target(state.targets, batch, following, price, self.discount)
        critics, optimiser, losses = critic_step(
            self._adam, state.critics, state.critic_optimiser, batch, reward_target, cost_target
        )
        targets = polyak(state.targets, critics, self.tau)
        return replace(state, critics=critics, targets=targets, critic_optimiser=optimiser), losses

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
        price, mmd_price = state.cost_multiplier.value, state.mmd_multiplier.value
        parts = [jnp.mean(jnp.abs(reward)), price * jnp.mean(jnp.abs(cost)), mmd_price * jnp.mean(distance)]
        return penalised_loss(reward, cost, distance, price, mmd_price), {
            "mmd": distance.mean(),
            "reward_share": parts[0] / (sum(parts) + 1e-8),  # of the Lagrangian's size: small when Qr is drowned
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
        return choose(state.critics, observations, candidates, state.cost_multiplier.value)

    def diagnose(self, state: State, sample: Sample, key: PRNGKeyArray) -> Metrics:
        batch = sample.batch
        once, again = (self.behaviour(state, batch.observations, k) for k in jax.random.split(key))
        return {
            **critic_diagnostics(state.critics, sample, self.act(state, sample.starts)),
            # What the behaviour itself would show
            "mmd_floor": mmd(once, again, self.kernel, self.kernel_width).mean(),
            "policy_std": state.actor(batch.observations).std.mean(),
            "policy_distance": jnp.sqrt(jnp.mean((self.act(state, batch.observations) - batch.actions) ** 2)),
        }

    def export(self, state: State) -> Export:
        networks = {"actor": state.actor, **describe_cvae(state.generator), **describe_critics(state.critics)}
        return Export("bear", networks, {"lambda": state.cost_multiplier.value[None], "noise": state.noise})

    def warnings(self, stage: str, history: list[Mapping[str, float]]) -> list[str]:
        if stage != "policy" or not history:
            return []
        last = history[-1]
        found = lagrange_warnings(history)
        if last.get("mmd_floor", 0.0) > self.epsilon:
            found.append(
                f"epsilon is out of reach: two samples of the behaviour itself are {last['mmd_floor']:.3g} apart, "
                f"above epsilon {self.epsilon:g}, so only a narrower policy can keep it, and lambda_mmd may rise "
                "without end."
            )
        return found

    @property
    def _adam(self) -> Adam:
        return Adam(self.learning_rate)
