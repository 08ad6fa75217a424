"""CPQ, Constraints Penalized Q-learning (Xu, Zhan and Zhu, AAAI 2022).

Maximise the expected discounted reward of a policy learned from a log, subject to an expected discounted cost of at
most l from each state:

    Step 1   make out-of-distribution actions look unsafe:  push Qc(s, a) up for a ~ nu, those of the policy's actions
             that a detector finds foreign to the log
    Step 2   learn Qr by a Bellman operator that backs up only from pairs with Qc <= l
    Step 3   maximise indicator(Qc <= l) Qr over the policy's actions

`CPQ.paper()` is Algorithm 1 as printed. `CPQ()` departs from it where the printed algorithm stalls; each departure is
an option below, with its reason. Names follow the paper: s, a are a logged pair, s', a' what follows, l the limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ringfence.algorithms.checks import common, one_of, positive, share
from ringfence.algorithms.critics import Critics, cost_bellman_target, describe_critics, fresh_critics, smaller_value
from ringfence.algorithms.interface import Batch, Export, Metrics, Sample, Spec, Stage
from ringfence.algorithms.ood import DETECTORS, LatentKL, auroc, is_ood
from ringfence.algorithms.optimise import Adam
from ringfence.algorithms.watch import cpq_warnings
from ringfence.networks import Critic, TanhGaussianActor, describe_cvae, polyak, sample_tanh, tanh_log_prob

Scalar = Float[Array, ""]
PerState = Float[Array, " batch"]
Values = Float[Array, "*batch"]
Observations = Float[Array, "*batch obs"]
Actions = Float[Array, "*batch act"]


class State(eqx.Module):
    """Everything that training changes, and the limit."""

    step: Int[Array, ""]
    limit: Scalar  # l
    floor: Scalar  # the least value that the log's rewards allow
    detector: LatentKL  # the CVAE and the threshold d
    critics: Critics
    targets: Critics
    actor: TanhGaussianActor
    averaged_actor: TanhGaussianActor
    alpha: Scalar
    detector_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    actor_optimiser: optax.OptState


# Step 1: the cost critic


class OODActions(NamedTuple):
    """The actions that nu gives, with weights such that Qc(s, nu(s)) = sum_j weights_j Qc(s, a_j)."""

    actions: Float[Array, "m batch act"]
    weights: Float[Array, "m batch"]  # all 0 in a state where no action was kept
    found: PerState  # 1 in the states where at least one was

    def mean(self, values: Float[Array, "m batch"]) -> PerState:
        """Qc(s, nu(s)) = 1/m sum_j Qc(s, a_j), or 0 where m = 0 (Algorithm 1, line 11)."""
        return jnp.sum(self.weights * values, 0)


def choose_ood(
    actions: Float[Array, "n batch act"],
    kept: Bool[Array, "n batch"],
    estimator: Literal["all", "one"],
    key: PRNGKeyArray,
) -> OODActions:
    """Algorithm 1, lines 10 and 11: the mean over the m kept actions of each state, nothing where m = 0.

    "one" draws one of the m uniformly. Its expectation over the draw is the same, and the critic then sees one action
    of each state instead of n."""
    counts = kept.sum(0)
    found = (counts > 0).astype(actions.dtype)
    if estimator == "all":
        return OODActions(actions, kept / jnp.maximum(counts, 1), found)
    scores = jnp.where(kept, jax.random.uniform(key, kept.shape), -1.0)
    chosen = jnp.argmax(scores, 0)
    picked = jnp.take_along_axis(actions, chosen[None, :, None], 0)
    return OODActions(picked, found[None], found)


def cost_critic_loss(
    cost_critic: Critic, batch: Batch, target: PerState, ood: OODActions, alpha: Scalar, ood_limit: Scalar
) -> tuple[Scalar, tuple[PerState, PerState]]:
    """E (Qc(s, a) - T^pi Qc(s, a))^2 - alpha (E Qc(s, nu(s)) - l_c): the objective of Step 1, in the form that also
    tunes alpha ("Practical Considerations"). The gradient flows into Qc(s, a) and Qc(s, nu(s)), not into the target,
    the actions or alpha."""
    # Logged and OOD actions in one pass: larger products are faster
    logged_and_ood = cost_critic(batch.observations, jnp.concatenate([batch.actions[None], ood.actions]))
    values, pushed = logged_and_ood[0], ood.mean(logged_and_ood[1:])
    loss = jnp.mean((values - target) ** 2) - alpha * (jnp.mean(pushed) - ood_limit)
    return loss, (values, pushed)


def alpha_step(
    alpha: Scalar, pushed: PerState, found: PerState, ood_limit: Scalar, rate: float, over: Literal["all", "ood"]
) -> Scalar:
    """Dual ascent on alpha >= 0: it rises while E Qc(s, nu(s)) < l_c and falls above.

    As printed the mean is over all states, those without an OOD action counting as 0, so that alpha rises even when
    nothing is OOD. "ood" leaves those states out."""
    shortfall = ood_limit - pushed if over == "all" else found * (ood_limit - pushed)
    return jnp.maximum(alpha + rate * jnp.mean(shortfall), 0.0)


# Step 2: the reward critics


def penalized_bellman_target(
    targets: Critics,
    batch: Batch,
    next_actions: Actions,
    limit: Scalar,
    discount: float,
    unsafe_value: Scalar | float | None = 0.0,
) -> PerState:
    """T_P^pi Qr(s, a) = r + discount indicator(Qc(s', a') <= l) Qr(s', a') (Section 4, Step 2), with the smaller of the
    two target reward critics. `unsafe_value` stands in for Qr(s', a') where Qc(s', a') > l: 0 in the paper, which is
    pessimistic only if no reward is negative; None leaves Qr(s', a') itself (the plain Bellman operator)."""
    following = smaller_value(targets.reward, batch.next_observations, next_actions)
    if unsafe_value is not None:
        safe = targets.cost(batch.next_observations, next_actions) <= limit
        following = jnp.where(safe, following, unsafe_value)
    return batch.rewards + discount * batch.continues * following


def reward_critic_loss(
    reward_critics: tuple[Critic, Critic], batch: Batch, target: PerState
) -> tuple[Scalar, PerState]:
    """E (Qr_i(s, a) - T_P^pi Qr(s, a))^2, summed over both critics."""
    first, second = (critic(batch.observations, batch.actions) for critic in reward_critics)
    return jnp.mean((first - target) ** 2) + jnp.mean((second - target) ** 2), jnp.minimum(first, second)


# Step 3: the actor


def actor_objective(
    qr: Values, qc: Values, limit: Scalar, recovery: Literal["none", "switch", "hinge"], weight: float
) -> Values:
    """What the actor maximises at (s, a). The paper's is indicator(Qc <= l) Qr ("none").

    Its gradient is 0 wherever the indicator is, so a policy that is unsafe everywhere cannot come back. "switch" lowers
    Qc there; "hinge" lowers the excess of Qc over l everywhere and lets Qr keep its say in unsafe states."""
    size = jnp.maximum(limit, 1e-3)
    if recovery == "hinge":
        return qr - weight * jnp.maximum(qc - limit, 0.0) / size
    safe = qc <= limit
    return jnp.where(safe, qr, 0.0 if recovery == "none" else -weight * qc / size)


def score_function_loss(objective: Float[Array, "n batch"], log_prob: Float[Array, "n batch"]) -> Scalar:
    """- E objective(s, a) log pi(a | s): its gradient is the score-function policy gradient, which feels the edge of
    the indicator. The mean of a state's other n - 1 actions is the baseline; it leaves the expectation alone."""
    n = objective.shape[0]
    baseline = (objective.sum(0) - objective) / max(n - 1, 1)
    return -jnp.mean(jax.lax.stop_gradient(objective - baseline) * log_prob)


# The method


@dataclass(frozen=True)
class CPQ:
    """CPQ's hyper-parameters.

    >>> CPQ(limit=30.0).backup, CPQ.paper(limit=30.0).backup
    ('value', 'zero')
    """

    name: ClassVar[str] = "cpq"
    shown: ClassVar[tuple[str, ...]] = ("detector_loss", "indicator", "ood_rate", "alpha", "qr_policy", "qc_policy")
    small: ClassVar[Mapping[str, Any]] = {
        "cvae_steps": 200,
        "ood_samples": 4,
        "actor_learning_rate": 3e-3,
        "average_decay": 0.99,
    }

    limit: float | None = None  # l: bound on the expected discounted cost from each state
    discount: float = 0.99
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4  # of the CVAE and the critics (Adam)
    actor_learning_rate: float = 3e-4
    tau: float = 0.02  # of the target critics; at 0.005 they need some 20,000 steps to reach their scale

    # Stage one: the detector
    detector: str = "latent-kl"  # a key of `ood.DETECTORS`
    cvae_steps: int = 20_000
    beta: float = 1.0
    decoder_std: float = 0.05  # sets the scale of beta and d; at 1 the posterior collapses
    ood_threshold: float | None = None  # d as an absolute KL; None takes the quantile below
    ood_quantile: float = 0.99  # d as a quantile of the log's own KL: it means the same on every log

    # Step 1
    ood_samples: int = 10  # n
    ood_estimator: Literal["all", "one"] = "one"  # the same in expectation, and "one" is cheaper
    ood_limit_ratio: float = 1.5  # l_c / l
    alpha: float | None = None  # None tunes it by dual ascent from 0
    alpha_rate: float = 1e-3
    alpha_over: Literal["all", "ood"] = "ood"  # "all" lets alpha grow when nothing is OOD

    # Step 2
    backup: Literal["zero", "floor", "value"] = "value"  # for unsafe a': backing up 0 makes Qr myopic at the limit

    # Step 3
    actor_gradient: Literal["reparametrised", "score"] = "reparametrised"

    # Departures from the paper
    sized_critics: bool = True  # values of hundreds in units of their size: Adam needs ages to grow a network to them
    layer_norm: bool = True  # in the critics: keeps them from inflating on actions the log does not have
    anchor: float = 0.4  # weight of (a - logged a)^2 against Qr over its mean size: Qr alone drifts off the log
    recovery: Literal["none", "switch", "hinge"] = "hinge"  # a force back to safety, see `actor_objective`
    recovery_weight: float = 3.0
    margin: float = 0.0  # the actor aims at (1 - margin) l, for critics that err
    average_decay: float = 0.9995  # the policy handed out is the average over steps: it swings less

    def __post_init__(self) -> None:
        common(self)
        positive(
            self, "actor_learning_rate", "tau", "cvae_steps", "ood_samples", "beta", "decoder_std", "ood_limit_ratio"
        )
        positive(self, "alpha_rate", "anchor", "recovery_weight", zero=True)
        share(self, "ood_quantile", "margin", "average_decay")
        one_of(self, "detector", tuple(DETECTORS))
        one_of(self, "ood_estimator", ("all", "one"))
        one_of(self, "alpha_over", ("all", "ood"))
        one_of(self, "backup", ("zero", "floor", "value"))
        one_of(self, "actor_gradient", ("reparametrised", "score"))
        one_of(self, "recovery", ("none", "switch", "hinge"))

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Algorithm 1 as printed. What the paper's main text leaves open (d, beta, learning rates, network sizes) has
        our values."""
        printed = {
            "ood_estimator": "all",
            "alpha_over": "all",
            "backup": "zero",
            "sized_critics": False,
            "layer_norm": False,
            "anchor": 0.0,
            "recovery": "none",
            "margin": 0.0,
            "average_decay": 0.0,
            "tau": 0.005,
        }
        return cls(**{**printed, **changes})

    def init(self, key: PRNGKeyArray, limit: Scalar, spec: Spec) -> State:
        """Algorithm 1, lines 1 and 8."""
        keys = jax.random.split(key, 5)
        sizes = (spec.observation_dim, spec.action_dim, self.hidden)
        horizon = 1.0 / (1.0 - self.discount) if self.sized_critics else None
        critics = fresh_critics(spec, self.hidden, keys[:3], normalise=self.layer_norm, horizon=horizon)
        actor = TanhGaussianActor(*sizes, key=keys[3])
        detector = DETECTORS[self.detector].create(
            *sizes,
            threshold=0.0 if self.ood_threshold is None else self.ood_threshold,
            beta=self.beta,
            decoder_std=self.decoder_std,
            key=keys[4],
        )
        return State(
            step=jnp.zeros((), jnp.int32),
            limit=jnp.asarray(limit, jnp.float32),
            floor=jnp.asarray(min(spec.least_reward, 0.0) / (1.0 - self.discount), jnp.float32),
            detector=detector,
            critics=critics,
            targets=critics,
            actor=actor,
            averaged_actor=actor,
            alpha=jnp.asarray(self.alpha or 0.0, jnp.float32),
            detector_optimiser=self._critic_adam.init(detector),
            critic_optimiser=self._critic_adam.init(critics),
            actor_optimiser=self._actor_adam.init(actor),
        )

    def stages(self, steps: int) -> tuple[Stage, ...]:
        """Algorithm 1: "VAE Training", then "Policy Training" with the VAE fixed."""
        return (
            Stage("detector", self.cvae_steps, self.update_detector, self.calibrate_detector),
            Stage("policy", steps, self.update),
        )

    def update_detector(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """Algorithm 1, lines 4 and 5."""

        def loss(detector: LatentKL) -> Scalar:
            return detector.loss(batch.observations, batch.actions, key)

        value, gradient = jax.value_and_grad(loss)(state.detector)
        detector, optimiser = self._critic_adam.step(gradient, state.detector_optimiser, state.detector)
        return replace(state, detector=detector, detector_optimiser=optimiser), {"detector_loss": value}

    def calibrate_detector(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """Set d, and measure how well the detector tells the log's actions from random ones."""
        logged = state.detector.score(batch.observations, batch.actions)
        uniform = jax.random.uniform(key, batch.actions.shape, minval=-1.0, maxval=1.0)
        random = state.detector.score(batch.observations, uniform)
        threshold = jnp.quantile(logged, self.ood_quantile) if self.ood_threshold is None else self.ood_threshold
        detector = replace(state.detector, threshold=jnp.asarray(threshold, jnp.float32))
        report = {
            "threshold": detector.threshold,
            "kl_data": logged.mean(),
            "kl_random": random.mean(),
            "ood_share_data": is_ood(detector, logged).mean(),
            "ood_share_random": is_ood(detector, random).mean(),
            "auroc_random": auroc(logged, random),
        }
        return replace(state, detector=detector), report

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """Algorithm 1, lines 9 to 15."""
        next_key, ood_key, choice_key, actor_key = jax.random.split(key, 4)
        ood_limit = self.ood_limit_ratio * state.limit

        # Lines 10 and 11: n actions of the policy, and those of them that are out of distribution
        candidates, _ = sample_tanh(state.actor(batch.observations), ood_key, (self.ood_samples,))
        scores = state.detector.score(batch.observations, candidates)
        kept = is_ood(state.detector, scores)
        ood = choose_ood(candidates, kept, self.ood_estimator, choice_key)

        # Line 12: the critics
        next_actions, _ = sample_tanh(state.actor(batch.next_observations), next_key)
        cost_target = cost_bellman_target(state.targets.cost, batch, next_actions, self.discount)
        reward_target = penalized_bellman_target(
            state.targets, batch, next_actions, state.limit, self.discount, self._unsafe_value(state)
        )

        def critic_loss(critics: Critics) -> tuple[Scalar, Any]:
            # One gradient for both losses: they share no parameter.
            cost_loss, (qc, pushed) = cost_critic_loss(critics.cost, batch, cost_target, ood, state.alpha, ood_limit)
            reward_loss, qr = reward_critic_loss(critics.reward, batch, reward_target)
            return cost_loss + reward_loss, (cost_loss, reward_loss, qr, qc, pushed)

        gradient, (cost_loss, reward_loss, qr, qc, pushed) = jax.grad(critic_loss, has_aux=True)(state.critics)
        critics, critic_optimiser = self._critic_adam.step(gradient, state.critic_optimiser, state.critics)
        alpha = state.alpha
        if self.alpha is None:
            alpha = alpha_step(alpha, pushed, ood.found, ood_limit, self.alpha_rate, self.alpha_over)

        # Line 13: the actor
        gradient, actor_metrics = jax.grad(self.actor_loss, has_aux=True)(
            state.actor, critics, batch, state.limit, actor_key
        )
        actor, actor_optimiser = self._actor_adam.step(gradient, state.actor_optimiser, state.actor)

        # Lines 14 and 15: the targets
        targets = polyak(state.targets, critics, self.tau)

        state = replace(
            state,
            step=state.step + 1,
            critics=critics,
            targets=targets,
            actor=actor,
            averaged_actor=polyak(state.averaged_actor, actor, self._averaging_rate(state.step)),
            alpha=alpha,
            critic_optimiser=critic_optimiser,
            actor_optimiser=actor_optimiser,
        )
        return state, {
            "cost_loss": cost_loss,
            "reward_loss": reward_loss,
            "alpha": alpha,
            "qr_data": qr.mean(),
            "qc_data": qc.mean(),
            "qc_ood": pushed.sum() / jnp.maximum(ood.found.sum(), 1.0),
            "ood_rate": kept.mean(),
            "kl_policy": scores.mean(),
            **actor_metrics,
        }

    def actor_loss(
        self, actor: TanhGaussianActor, critics: Critics, batch: Batch, limit: Scalar, key: PRNGKeyArray
    ) -> tuple[Scalar, Metrics]:
        """- E indicator(Qc(s, a) <= l) Qr(s, a), a ~ pi (Section 4, Step 3), with the departures that are switched on.
        No gradient reaches the critics, and none flows through the indicator itself."""
        count = (self.ood_samples,) if self.actor_gradient == "score" else (1,)
        gaussian = actor(batch.observations)
        actions, _ = sample_tanh(gaussian, key, count)
        if self.actor_gradient == "score":
            actions = jax.lax.stop_gradient(actions)
        qr = smaller_value(critics.reward, batch.observations, actions)
        qc = critics.cost(batch.observations, actions)
        departs = self.anchor > 0 or self.recovery != "none"
        size = jax.lax.stop_gradient(jnp.mean(jnp.abs(qr))) + 1e-6 if departs else 1.0
        aim = (1.0 - self.margin) * limit
        objective = actor_objective(qr / size, qc, aim, self.recovery, self.recovery_weight)
        if self.actor_gradient == "score":
            loss = score_function_loss(objective, tanh_log_prob(gaussian, actions))
        else:
            loss = -jnp.mean(objective)
        if self.anchor > 0:
            drawn = sample_tanh(gaussian, key)[0] if self.actor_gradient == "score" else actions[0]
            loss += self.anchor * jnp.mean((drawn - batch.actions) ** 2)
        return loss, {
            "actor_loss": loss,
            "indicator": jnp.mean(qc <= aim),
            "qr_policy": qr.mean(),
            "qc_policy": qc.mean(),
        }

    def diagnose(self, state: State, sample: Sample, key: PRNGKeyArray) -> Metrics:
        """How the critics compare with what the log shows really followed, and what the detector says."""
        batch = sample.batch
        actions, _ = sample_tanh(state.actor(batch.observations), key)
        start_actions = state.averaged_actor.mode(sample.starts)
        return {
            "qc_start": state.critics.cost(sample.starts, start_actions).mean(),
            "qr_start": smaller_value(state.critics.reward, sample.starts, start_actions).mean(),
            "sample_qc_data": state.critics.cost(batch.observations, batch.actions).mean(),
            "sample_cost_to_go": sample.cost_to_go.mean(),
            "sample_qr_data": smaller_value(state.critics.reward, batch.observations, batch.actions).mean(),
            "sample_qr_policy": smaller_value(state.critics.reward, batch.observations, actions).mean(),
            "sample_return_to_go": sample.return_to_go.mean(),
            "greatest_return_to_go": sample.return_to_go.max(),
            "kl_data": state.detector.score(batch.observations, batch.actions).mean(),
            "policy_std": jnp.exp(state.actor(batch.observations).log_std).mean(),
            "policy_distance": jnp.sqrt(jnp.mean((state.averaged_actor.mode(batch.observations) - batch.actions) ** 2)),
        }

    def export(self, state: State) -> Export:
        networks = {
            "actor": state.averaged_actor,
            **describe_critics(state.critics),
            **describe_cvae(state.detector.cvae),
        }
        return Export("tanh-gaussian", networks, {"threshold": state.detector.threshold[None]})

    def warnings(self, stage: str, history: list[Mapping[str, float]]) -> list[str]:
        return cpq_warnings(stage, history)

    @property
    def _critic_adam(self) -> Adam:
        return Adam(self.learning_rate)

    @property
    def _actor_adam(self) -> Adam:
        return Adam(self.actor_learning_rate)

    def _unsafe_value(self, state: State) -> Scalar | float | None:
        """What is backed up for an unsafe a'."""
        if self.backup == "value":
            return None
        return state.floor if self.backup == "floor" else 0.0

    def _averaging_rate(self, step: Int[Array, ""]) -> Scalar:
        """1 without averaging. With it, a short memory at first, so that the random start is soon forgotten."""
        return jnp.maximum(1.0 - self.average_decay, 1.0 / (1.0 + step / 10.0))
