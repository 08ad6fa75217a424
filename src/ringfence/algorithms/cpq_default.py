"""CPQ, Constraints Penalized Q-learning, with the departures from the paper that make it learn.

`CPQ` is Algorithm 1 (`cpq.py`) with some of its lines replaced; the method says which line each departure replaces, and the
functions with their reasons are in `cpq_departures.py`. To try one without a departure, give its line back:
`class Printed(CPQ): reward_target = PaperCPQ.reward_target`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ringfence.algorithms.checks import one_of, positive
from ringfence.algorithms.cpq import Actions, OODActions, PaperCPQ, PerState, Scalar, State, Values, values_of_actions
from ringfence.algorithms.cpq_clone import EPISODE_COST, Clone, episode_costs
from ringfence.algorithms.cpq_departures import (
    alpha_step_where_ood,
    anchor_growth,
    anchor_loss,
    averaging_rate,
    cost_target_beyond_the_end,
    one_ood_action,
    penalised_value,
    reward_bellman_target,
    safe_weights,
    smoothed_actions,
)
from ringfence.algorithms.cpq_expected import EPISODES, Policies
from ringfence.algorithms.cpq_handout import HandedOut, export_with_choice, hand_out_of, is_chosen
from ringfence.algorithms.cpq_imagined import (
    HELD_OUT,
    Controller,
    Imagined,
    Plant,
    feedback_rate,
    held_out_rows,
    next_slack,
)
from ringfence.algorithms.cpq_limits import (
    LimitBlind,
    band_limits,
    check_limits,
    export_with_limit,
    for_drawn_limits,
    sample_with_limit,
    slack_at,
    spec_with_limit,
    spread_limits,
    with_limit,
)
from ringfence.algorithms.critics import Critics, fresh_critics
from ringfence.algorithms.interface import Batch, Export, Metrics, Sample, Spec
from ringfence.data.dataset import Dataset
from ringfence.networks import TanhGaussianActor, polyak, sample_tanh
from ringfence.steps import STEPS

EpisodeEnd = Literal["ends", "neutral", "failure"]
PLANT_KEY = 29  # tells the keys of the plant's model from those that the printed algorithm splits off


class AveragedState(State):
    """The state of Algorithm 1, and the average of the actor over steps."""

    step: Int[Array, ""]
    averaged_actor: TanhGaussianActor
    growth: Scalar  # of the anchor on this log: 1, or more where episodes terminated
    slack: Float[Array, " bands"]  # the actor is held to slack x l; one for each band of a range of limits
    plant: Plant | None  # where feedback sets the slack
    imagined: Imagined | None
    clone: Clone | None  # of the safe episodes; None if no policy is chosen to be handed out
    costly: Clone | None  # of the others, where logged episodes terminated
    starts: Float[Array, "starts obs"] | None  # states that episodes start in; None if no policy is chosen


@dataclass(frozen=True)
class CPQ(PaperCPQ):
    """CPQ's hyper-parameters: the paper's, and those of the departures.

    >>> CPQ(limit=30.0).anchor, CPQ.paper(limit=30.0).name
    (1.5, 'cpq-paper')
    """

    name: ClassVar[str] = "cpq"

    hidden: tuple[int, ...] = (128, 128)  # those of the report, see docs/cpq.md
    tau: float = 0.02  # critics reach their scale four times as soon as with the paper preset's
    cvae_steps: int = 5_000  # AUROC 0.80 where 20,000 give 0.85 (noise of 0.3), in a quarter of the time

    anchor: float = 1.5  # weight of `anchor_loss` where no logged episode terminated
    termination_anchor: float = 13.0  # what it grows by with the share of episodes that terminated, see `anchor_growth`
    unsafe_anchor: float = 0.1  # of an unsafe logged action, where that of a safe one is 1, see `safe_weights`
    target_noise: float = 0.1  # on the next actions that the critics back up, in units of half the range of an action
    recovery_weight: float = 3.0  # of the excess of Qc over the limit, see `penalised_value`
    feedback: float = 3e-3  # rate at which imagined costs set the actor's limit, see `cpq_imagined.py`; 0 holds it to l
    episode_end: EpisodeEnd = "neutral"  # what termination means for the cost, see `cost_of_end`
    limits: tuple[float, float] | None = (
        None  # one policy for every limit of a range, see `cpq_limits.py`; experimental
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "anchor", "termination_anchor", "unsafe_anchor", "recovery_weight", "target_noise", zero=True)
        positive(self, "feedback", zero=True)
        one_of(self, "episode_end", get_args(EpisodeEnd))
        if self.limits is not None:
            check_limits(self.limits, self.limit)

    @property
    def default_steps(self) -> int:
        """More than the critics need: a policy between two gaits settles later, and only then keeps its pace."""
        return max(STEPS, super().default_steps)

    @staticmethod
    def paper(**changes: Any) -> PaperCPQ:
        """Algorithm 1 as printed."""
        return PaperCPQ(**changes)

    def init(self, key: PRNGKeyArray, limit: Scalar, spec: Spec) -> AveragedState:
        printed = super().init(key, limit, spec)
        failed = 0.0 if self.episode_end == "ends" else spec.terminated  # an end that belongs to the task is no failure
        growth = jnp.asarray(anchor_growth(failed, self.termination_anchor), jnp.float32)
        bands = band_limits(self.limits, limit)
        plant, imagined, clone, costly, starts = None, None, None, None, None
        if self.feedback > 0.0:
            keys = jax.random.split(jax.random.fold_in(key, PLANT_KEY), 3)
            plant = Plant.create(spec, self.hidden, keys[0])
            imagined = Imagined.create(spec, bands, self.discount, keys[1])
            if self.limits is None:
                fresh = self.fresh_actor(spec, keys[2])
                clone = Clone.create(fresh, self._actor_adam)
                costly = Clone.create(fresh, self._actor_adam, costly=True) if failed > 0.0 else None
                starts = jnp.zeros((EPISODES, spec.observation_dim))
        return AveragedState(
            **vars(printed),
            step=jnp.zeros((), jnp.int32),
            averaged_actor=printed.actor,
            growth=growth,
            slack=jnp.ones_like(bands),
            plant=plant,
            imagined=imagined,
            clone=clone,
            costly=costly,
            starts=starts,
        )

    def columns(self, dataset: Dataset) -> Mapping[str, np.ndarray]:
        """What the episode of each row cost, for the safe clone, and which rows measure the model of the plant."""
        return {EPISODE_COST: episode_costs(dataset, self.discount), HELD_OUT: held_out_rows(dataset)}

    def update_detector(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """Lines 4 and 5; the model of the plant and the clones learn from the same batches."""
        after, metrics = super().update_detector(state, batch, key)
        after = self._fit_clones(cast(AveragedState, after), batch)
        if after.plant is None:
            return after, metrics
        plant, error = after.plant.fit(batch, self.cvae_steps)
        return replace(after, plant=plant), {**metrics, "plant_loss": error}

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """Algorithm 1 with the lines below, then the average of the actor and the feedback."""
        assert isinstance(state, AveragedState)
        rate = averaging_rate(state.step)
        printed = super().update
        update = printed if self.limits is None else for_drawn_limits(printed, self.limits)
        after, metrics = update(state, batch, key)
        averaged = polyak(state.averaged_actor, after.actor, rate)
        after = replace(cast(AveragedState, after), step=state.step + 1, averaged_actor=averaged)
        return self._imagine(self._fit_clones(after, batch), metrics, batch)

    def _fit_clones(self, state: AveragedState, batch: Batch) -> AveragedState:
        if state.clone is None or state.starts is None or EPISODE_COST not in batch.extras:
            return state
        clone, costly = (
            each and each.fit(batch, state.limit, self._actor_adam) for each in (state.clone, state.costly)
        )
        return replace(state, clone=clone, costly=costly, starts=jnp.resize(batch.starts, state.starts.shape))

    def _imagine(self, state: AveragedState, metrics: Metrics, batch: Batch) -> tuple[AveragedState, Metrics]:
        if state.plant is None or state.imagined is None:
            return state, metrics
        actors = self._controller(state.actor), self._controller(state.averaged_actor)
        imagined = state.imagined.advance(state.plant, *actors, batch.starts, self.discount)
        cost = imagined.cost(self.discount)
        rate = feedback_rate(state.step, state.plant.error, self.feedback)
        slack = next_slack(state.slack, cost, band_limits(self.limits, state.limit), rate)
        metrics = {**metrics, "imagined_cost": cost.mean(), "slack": slack.mean()}
        return replace(state, imagined=imagined, slack=slack), metrics

    def _controller(self, actor: TanhGaussianActor) -> Controller:
        """The actor in imagined episodes. Those of a range have limits of their own, spread over it."""
        if self.limits is None:
            return actor.mode
        limits = self.limits
        return lambda rows: actor.mode(with_limit(rows, spread_limits(limits, rows.shape[0]), limits))

    def fresh_critics(self, spec: Spec, keys: PRNGKeyArray) -> Critics:
        """Line 8. LayerNorm keeps critics from inflating on actions that the log does not have. Their outputs have the size
        of the log's values: Adam needs tens of thousands of steps to grow a network's outputs to hundreds."""
        horizon = 1.0 / (1.0 - self.discount)
        seen = spec_with_limit(spec, self.limits)
        return fresh_critics(seen, self.hidden, keys, normalise=True, horizon=horizon)

    def fresh_actor(self, spec: Spec, key: PRNGKeyArray) -> TanhGaussianActor:
        """Line 8."""
        return super().fresh_actor(spec_with_limit(spec, self.limits), key)

    def choose_ood(self, candidates: Array, kept: Bool[Array, "n batch"], key: PRNGKeyArray) -> OODActions:
        """Line 12."""
        return one_ood_action(candidates, kept, key)

    def next_alpha(self, alpha: Scalar, ood_values: PerState, ood: OODActions, ood_limit: Scalar) -> Scalar:
        """Line 13, Eq. (5)."""
        return alpha_step_where_ood(alpha, ood_values, ood.has_ood, ood_limit, self.alpha_rate)

    def next_actions(self, state: State, batch: Batch, key: PRNGKeyArray) -> Actions:
        """Line 13, a'."""
        return smoothed_actions(state.actor.mode(batch.next_observations), self.target_noise, key)

    def cost_target(self, state: State, batch: Batch, next_actions: Actions) -> PerState:
        """Line 13, Eq. (1)."""
        end = self.cost_of_end(state.limit)
        return cost_target_beyond_the_end(state.targets.cost, batch, next_actions, self.discount, end)

    def cost_of_end(self, limit: Scalar) -> Scalar:
        """The discounted cost that follows the termination of an episode. "ends": none. "neutral": l, as if it went on at
        the limit's pace, so that ending makes a policy neither safer nor less safe. "failure": l_c, what an OOD action is
        to cost, so that ending is unsafe."""
        return {"ends": 0.0, "neutral": 1.0, "failure": self.ood_limit_ratio}[self.episode_end] * limit

    def reward_target(self, state: State, batch: Batch, next_actions: Actions) -> PerState:
        """Line 13, Eq. (3)."""
        return reward_bellman_target(state.targets, batch, next_actions, self.discount)

    def actor_objective(self, qr: Values, qc: Values, limit: Scalar) -> Values:
        """Line 14, Eq. (4)."""
        return penalised_value(qr, qc, limit, self.recovery_weight)

    def actor_loss(
        self, actor: TanhGaussianActor, critics: Critics, batch: Batch, state: State, key: PRNGKeyArray
    ) -> tuple[Scalar, Metrics]:
        """Line 14, with the anchor and the limit that feedback sets."""
        assert isinstance(state, AveragedState)
        limit = slack_at(state.slack, state.limit, self.limits) * state.limit
        actions, _ = sample_tanh(actor(batch.observations), key, (1,))
        qr, qc, means = values_of_actions(critics, batch, actions)
        logged_cost = critics.cost(batch.observations, batch.actions)
        weights = safe_weights(logged_cost, limit, self.unsafe_anchor)
        loss = -jnp.mean(self.actor_objective(qr, qc, limit))
        loss += self.anchor * state.growth * anchor_loss(actions[0], batch.actions, weights)
        return loss, {"actor_loss": loss, "indicator": jnp.mean(qc <= limit), **means}

    def policy_actor(self, state: State) -> TanhGaussianActor:
        assert isinstance(state, AveragedState)
        return state.averaged_actor

    def diagnose(self, state: State, sample: Sample, key: PRNGKeyArray) -> Metrics:
        if self.limits is not None:
            sample = sample_with_limit(sample, state.limit, self.limits)
            state = replace(state, detector=LimitBlind(state.detector.cvae, state.detector.threshold))
        return super().diagnose(state, sample, key)

    def hand_out(self, state: AveragedState) -> HandedOut | None:
        """The policy that is handed out, and why; None where there is no choice, and it is the averaged actor."""
        given = self._candidates(state)
        if given is None or state.imagined is None or not is_chosen(int(state.step), given.plant):
            return None
        found = hand_out_of(given, int(state.imagined.horizon), self.discount)
        expected = jnp.stack([found.choice.returned, found.choice.cost, found.greatest_cost])
        return found if bool(jnp.isfinite(expected).all()) else None

    def _candidates(self, state: AveragedState) -> Policies | None:
        if state.clone is None or state.starts is None or state.plant is None:
            return None
        end = jnp.asarray(self.cost_of_end(state.limit), jnp.float32)
        policies = state.averaged_actor, state.clone, state.costly
        return Policies(state.plant, *policies, state.starts, state.limit, end, state.growth)

    def export(self, state: State) -> Export:
        assert isinstance(state, AveragedState)
        export = super().export(state)
        if self.limits is not None:
            return export_with_limit(export, self.limits)
        given, found = self._candidates(state), self.hand_out(state)
        return export if given is None or found is None else export_with_choice(export, found, given, self.discount)
