"""CPQ as printed: Algorithm 1 of "Constraints Penalized Q-learning for Safe Offline Reinforcement Learning" (Xu, Zhan and
Zhu, AAAI 2022).

Maximise the expected discounted reward of a policy learned from a log, subject to an expected discounted cost of at
most l from each state:

    Step 1   make out-of-distribution actions look unsafe:  push Qc(s, a) up for a ~ nu, those of the policy's actions
             that a detector finds foreign to the log
    Step 2   learn Qr by a Bellman operator that backs up only from pairs with Qc <= l
    Step 3   maximise indicator(Qc <= l) Qr over the policy's actions

Names follow the paper: s, a are a logged pair, s', a' what follows, l the limit. This file is the paper and nothing else:
hyper-parameters are in `cpq_settings.py`, and what `ringfence.CPQ()` changes is in `cpq_default.py`.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ringfence.algorithms.cpq_settings import CPQSettings
from ringfence.algorithms.cpq_settings import State as State
from ringfence.algorithms.critics import Critics, fresh_critics, smaller_value
from ringfence.algorithms.interface import Batch, Metrics, Spec, Stage
from ringfence.algorithms.ood import LatentKL, cvae_loss, is_ood
from ringfence.networks import Critic, TanhGaussianActor, polyak, sample_tanh

Scalar = Float[Array, ""]
PerState = Float[Array, " batch"]
Values = Float[Array, "*batch"]
Actions = Float[Array, "*batch act"]


# Step 1: the cost critic


class OODActions(NamedTuple):
    """The actions that nu gives, with weights such that Qc(s, nu(s)) = sum_j weights_j Qc(s, a_j)."""

    actions: Float[Array, "m batch act"]
    weights: Float[Array, "m batch"]  # all 0 in a state where no action was kept

    @property
    def has_ood(self) -> PerState:
        """1 in the states where an action was kept, else 0."""
        return jnp.any(self.weights > 0.0, 0).astype(self.weights.dtype)

    def mean(self, values: Float[Array, "m batch"]) -> PerState:
        """Qc(s, nu(s)) = 1/m sum_j Qc(s, a_j), or 0 where m = 0 (Algorithm 1, line 12)."""
        return jnp.sum(self.weights * values, 0)


def all_ood_actions(actions: Float[Array, "n batch act"], kept: Bool[Array, "n batch"]) -> OODActions:
    """Algorithm 1, lines 11 and 12: the mean over the m kept actions of each state, nothing where m = 0."""
    return OODActions(actions, kept / jnp.maximum(kept.sum(0), 1))


def cost_bellman_target(target_cost_critic: Critic, batch: Batch, next_actions: Actions, discount: float) -> PerState:
    """T^pi Qc(s, a) = c + discount Qc(s', a'), a' ~ pi (Section 3.2). Termination ends the sum, truncation does not."""
    following = target_cost_critic(batch.next_observations, next_actions)
    return batch.costs + discount * batch.continues * following


def cost_critic_loss(
    cost_critic: Critic, batch: Batch, target: PerState, ood: OODActions, alpha: Scalar, ood_limit: Scalar
) -> tuple[Scalar, tuple[PerState, PerState]]:
    """E (Qc(s, a) - T^pi Qc(s, a))^2 - alpha (E Qc(s, nu(s)) - l_c): Eq. (5), which is Eq. (1) with alpha tuned. The
    gradient flows into Qc(s, a) and Qc(s, nu(s)), not into the target, the actions or alpha."""
    # Logged and OOD actions in one pass: larger products are faster
    logged_and_ood = cost_critic(batch.observations, jnp.concatenate([batch.actions[None], ood.actions]))
    values, ood_values = logged_and_ood[0], ood.mean(logged_and_ood[1:])
    loss = jnp.mean((values - target) ** 2) - alpha * jnp.mean(ood_values - ood_limit)
    return loss, (values, ood_values)


def alpha_step(alpha: Scalar, ood_values: PerState, ood_limit: Scalar, rate: float) -> Scalar:
    """Eq. (5), automatic alpha >= 0: it rises while E Qc(s, nu(s)) < l_c. A state without an OOD action counts as 0."""
    return jnp.maximum(alpha + rate * jnp.mean(ood_limit - ood_values), 0.0)


# Step 2: the reward critics


def penalized_bellman_target(
    targets: Critics, batch: Batch, next_actions: Actions, limit: Scalar, discount: float
) -> PerState:
    """T_P^pi Qr(s, a) = r + discount indicator(Qc(s', a') <= l) Qr(s', a') (Section 4, Step 2), with the smaller of the
    two target reward critics. 0 in place of Qr(s', a') is pessimistic only if no reward is negative."""
    following = smaller_value(targets.reward, batch.next_observations, next_actions)
    safe = targets.cost(batch.next_observations, next_actions) <= limit
    return batch.rewards + discount * batch.continues * jnp.where(safe, following, 0.0)


def reward_critic_loss(
    reward_critics: tuple[Critic, Critic], batch: Batch, target: PerState
) -> tuple[Scalar, PerState]:
    """E (Qr_i(s, a) - T_P^pi Qr(s, a))^2, summed over both critics: Eq. (3)."""
    first, second = (critic(batch.observations, batch.actions) for critic in reward_critics)
    return jnp.mean((first - target) ** 2) + jnp.mean((second - target) ** 2), jnp.minimum(first, second)


# Step 3: the actor


def values_of_actions(critics: Critics, batch: Batch, actions: Actions) -> tuple[Values, Values, Metrics]:
    """Qr(s, a) and Qc(s, a), with the smaller of the two reward critics, and their means to look at. Their gradient goes
    through the actions (reparametrised)."""
    qr = smaller_value(critics.reward, batch.observations, actions)
    qc = critics.cost(batch.observations, actions)
    return qr, qc, {"qr_policy": qr.mean(), "qc_policy": qc.mean()}


def safe_value(qr: Values, qc: Values, limit: Scalar) -> Values:
    """indicator(Qc(s, a) <= l) Qr(s, a): what the actor maximises, Eq. (4). No gradient flows through the indicator."""
    return jnp.where(qc <= limit, qr, 0.0)


# Algorithm 1


@dataclass(frozen=True)
class PaperCPQ(CPQSettings):
    """CPQ as printed. Its hyper-parameters are those of `CPQSettings`."""

    name: ClassVar[str] = "cpq-paper"

    def init(self, key: PRNGKeyArray, limit: Scalar, spec: Spec) -> State:
        """Algorithm 1, lines 1 and 8."""
        keys = jax.random.split(key, 5)
        sizes = (spec.observation_dim, spec.action_dim, self.hidden)
        critics = self.fresh_critics(spec, keys[:3])
        actor = self.fresh_actor(spec, keys[3])
        detector = LatentKL.create(*sizes, threshold=self.ood_threshold or 0.0, key=keys[4])
        return State(
            limit=jnp.asarray(limit, jnp.float32),
            detector=detector,
            critics=critics,
            targets=critics,
            actor=actor,
            alpha=jnp.asarray(self.alpha or 0.0, jnp.float32),
            detector_optimiser=self._critic_adam.init(detector),
            critic_optimiser=self._critic_adam.init(critics),
            actor_optimiser=self._actor_adam.init(actor),
        )

    def stages(self, steps: int) -> tuple[Stage, ...]:
        """Algorithm 1: "VAE Training", then "Policy Training" with the VAE fixed."""
        detector = Stage("detector", self.cvae_steps, self.update_detector, self.calibrate_detector)
        return detector, Stage("policy", steps, self.update)

    def update_detector(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """Algorithm 1, lines 4 and 5."""

        def loss(detector: LatentKL) -> Scalar:
            pair = batch.observations, batch.actions
            return cvae_loss(detector.cvae, *pair, key, beta=self.beta, decoder_std=self.decoder_std)

        value, gradient = jax.value_and_grad(loss)(state.detector)
        detector, optimiser = self._critic_adam.step(gradient, state.detector_optimiser, state.detector)
        return replace(state, detector=detector, detector_optimiser=optimiser), {"detector_loss": value}

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """Algorithm 1, lines 11 to 16, on the mini-batch of line 10. A line that a departure may replace is a function."""
        next_key, ood_key, choice_key, actor_key = jax.random.split(key, 4)
        ood_limit = self.ood_limit_ratio * state.limit

        # Lines 11 and 12: n actions of the policy, and those of them that are out of distribution
        candidates, _ = sample_tanh(state.actor(batch.observations), ood_key, (self.ood_samples,))
        scores = state.detector.score(batch.observations, candidates)
        kept = is_ood(state.detector, scores)
        ood = self.choose_ood(candidates, kept, choice_key)

        # Line 13: the critics
        next_actions = self.next_actions(state, batch, next_key)
        cost_target = self.cost_target(state, batch, next_actions)
        reward_target = self.reward_target(state, batch, next_actions)

        def critic_loss(critics: Critics) -> tuple[Scalar, Any]:
            # One gradient for both losses: they share no parameter.
            cost_loss, (qc, qc_ood) = cost_critic_loss(critics.cost, batch, cost_target, ood, state.alpha, ood_limit)
            reward_loss, qr = reward_critic_loss(critics.reward, batch, reward_target)
            return cost_loss + reward_loss, (cost_loss, reward_loss, qr, qc, qc_ood)

        gradient, (cost_loss, reward_loss, qr, qc, qc_ood) = jax.grad(critic_loss, has_aux=True)(state.critics)
        critics, critic_optimiser = self._critic_adam.step(gradient, state.critic_optimiser, state.critics)
        alpha = self.next_alpha(state.alpha, qc_ood, ood, ood_limit) if self.alpha is None else state.alpha

        # Line 14: the actor
        gradient, actor_metrics = jax.grad(self.actor_loss, has_aux=True)(state.actor, critics, batch, state, actor_key)
        actor, actor_optimiser = self._actor_adam.step(gradient, state.actor_optimiser, state.actor)

        state = replace(
            state,
            critics=critics,
            targets=polyak(state.targets, critics, self.tau),  # lines 15 and 16
            actor=actor,
            alpha=alpha,
            critic_optimiser=critic_optimiser,
            actor_optimiser=actor_optimiser,
        )
        metrics = {"cost_loss": cost_loss, "reward_loss": reward_loss, "alpha": alpha, **actor_metrics}
        metrics |= {"qr_data": qr.mean(), "qc_data": qc.mean(), "ood_rate": kept.mean(), "kl_policy": scores.mean()}
        metrics |= {"qc_ood": qc_ood.sum() / jnp.maximum(ood.has_ood.sum(), 1.0)}
        return state, metrics

    # The lines that a departure may replace

    def fresh_critics(self, spec: Spec, keys: PRNGKeyArray) -> Critics:
        return fresh_critics(spec, self.hidden, keys)

    def fresh_actor(self, spec: Spec, key: PRNGKeyArray) -> TanhGaussianActor:
        return TanhGaussianActor(spec.observation_dim, spec.action_dim, self.hidden, key=key)

    def choose_ood(self, candidates: Array, kept: Bool[Array, "n batch"], key: PRNGKeyArray) -> OODActions:
        return all_ood_actions(candidates, kept)

    def next_actions(self, state: State, batch: Batch, key: PRNGKeyArray) -> Actions:
        return sample_tanh(state.actor(batch.next_observations), key)[0]  # a' ~ pi(. | s')

    def cost_target(self, state: State, batch: Batch, next_actions: Actions) -> PerState:
        return cost_bellman_target(state.targets.cost, batch, next_actions, self.discount)

    def reward_target(self, state: State, batch: Batch, next_actions: Actions) -> PerState:
        return penalized_bellman_target(state.targets, batch, next_actions, state.limit, self.discount)

    def next_alpha(self, alpha: Scalar, ood_values: PerState, ood: OODActions, ood_limit: Scalar) -> Scalar:
        return alpha_step(alpha, ood_values, ood_limit, self.alpha_rate)

    def actor_loss(
        self, actor: TanhGaussianActor, critics: Critics, batch: Batch, state: State, key: PRNGKeyArray
    ) -> tuple[Scalar, Metrics]:
        actions, _ = sample_tanh(actor(batch.observations), key, (1,))
        qr, qc, means = values_of_actions(critics, batch, actions)
        loss = -jnp.mean(safe_value(qr, qc, state.limit))
        return loss, {"actor_loss": loss, "indicator": jnp.mean(qc <= state.limit), **means}
