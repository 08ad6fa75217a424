"""Judges policies from a log alone."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringfence.data.dataset import Dataset
from ringfence.deploy import Policy
from ringfence.errors import InvalidSetting
from ringfence.evaluation.episodes import Controller, has_memory
from ringfence.evaluation.ope.actions import actions_of, many
from ringfence.evaluation.ope.calibration import MOST_DISTANCE, Behaviours, Calibration, calibrate
from ringfence.evaluation.ope.columns import check_columns
from ringfence.evaluation.ope.dynamics import LEAST_ROWS, fit_dynamics, network_spread
from ringfence.evaluation.ope.features import COUNT, RandomFeatures
from ringfence.evaluation.ope.fqe import AveragedFittedQ, FittedQ, Values
from ringfence.evaluation.ope.judge_inputs import (
    at_most,
    check_confidence,
    check_sizes,
    discount_of,
    name_of,
    steps_that_count,
    whether_learned_from,
    why_unchecked,
)
from ringfence.evaluation.ope.judgement import (
    MOST_LEAVING,
    Estimate,
    Judgement,
    RowsWere,
    bounded,
    decide,
    half_width,
    why_not_judgeable,
    why_rows_cannot_judge,
)
from ringfence.evaluation.ope.opinion import SecondOpinion, second_opinion
from ringfence.evaluation.ope.rollouts import RollOuts
from ringfence.evaluation.ope.support import Coverage, Support
from ringfence.evaluation.ope.tail import Tail, tail_of
from ringfence.limits import DISCOUNT, check_limit
from ringfence.training import defaults
from ringfence.values import is_whole

ROWS_PER_FEATURE = 20  # at least
DRAWS = 5  # of random features, where backups decide
MOST_ROWS = 300_000  # judged from at most so many rows (whole episodes, drawn by seed)
MOST_BACKED_UP = 100_000  # of them, for backups and support, where there is a model of the plant from all
REFERENCE_SHARE = 0.25  # of a log without reference episodes of its own


class Evidence(NamedTuple):
    """What a log says of one policy."""

    values: Values  # by backups
    rolled: RollOuts | None  # in the model of the plant, if there is one
    support: Support
    opinion: SecondOpinion


class Judge:
    """Judges policies from one log. `log` are the judging episodes: the policy must not have been trained on them.
    `reference` are other episodes of the same behaviours, which tell how far the estimates can be trusted; without
    them a part of `log` is set apart for it. Sources whose controllers are known can be given as `behaviours`; else their
    actions are regressed on the state. Where no `features` are given and backups decide, `draws` draws of them are
    evaluated. `exact` says that the `features` given can express every value, as in a finite
    problem: then backups cannot miss where a policy goes, and no model of the plant is fitted. Nor does a model judge a
    small log or a noisy plant."""

    def __init__(
        self,
        log: Dataset,
        reference: Dataset | None = None,
        *,
        discount: float = DISCOUNT,
        horizon: int | None = None,
        seed: int = 0,
        features: Any = None,
        behaviours: Behaviours | None = None,
        exact: bool = False,
        draws: int = DRAWS,
    ):
        if not 0 < discount < 1:
            raise InvalidSetting(f"discount must lie strictly between 0 and 1, not {discount}")
        if horizon is not None and (not is_whole(horizon) or horizon < 1):
            raise InvalidSetting(f"horizon must be a whole number of steps of at least 1, not {horizon!r}")
        self.fingerprint = log.fingerprint
        if reference is None:
            log, reference = log.hold_out(REFERENCE_SHARE, seed)
        for part in (log, reference):
            check_sizes(part)
        self.horizon = max(log.horizon, reference.horizon) if horizon is None else horizon
        log = at_most(log, MOST_ROWS, seed)
        self.rows, self.episodes, self.costly = len(log), len(log.episode_starts), bool(log.costs.any())
        self.steps = min(self.horizon, steps_that_count(discount))
        modelled = len(log) >= LEAST_ROWS and not exact
        dynamics = fit_dynamics(log, self.steps, seed=seed) if modelled else None
        self.noisy = tuple(log.observation_names[column] for column in dynamics.noisy) if dynamics else ()
        self.dynamics = None if self.noisy else dynamics
        log = log if self.dynamics is None else at_most(log, MOST_BACKED_UP, seed)
        self.log, self.discount, self.exact = log, discount, exact
        self.draws = draws
        self.fitted: FittedQ
        if features is None:
            count = min(COUNT, len(log) // ROWS_PER_FEATURE)
            drawn = [RandomFeatures.of(log, count, seed)]
            if self.dynamics is None:
                drawn += [RandomFeatures.of(log, count, [seed, draw]) for draw in range(1, draws)]
            self.fitted = AveragedFittedQ(log, drawn, discount, self.steps, seed=seed)
        else:
            self.fitted = FittedQ(log, features, discount, self.steps, seed=seed)
        self.calibration: Calibration = calibrate(self.fitted, reference, seed, behaviours, self.dynamics)
        if not self.calibration.checks:
            raise InvalidSetting(why_unchecked(log, reference, self.horizon))
        self.coverage = Coverage(self.fitted, seed)

    def __call__(
        self,
        policy: Controller,
        limit: float | None = None,
        *,
        confidence: float = defaults.CONFIDENCE,
        name: str | None = None,
        rows_were: RowsWere | None = None,
    ) -> Judgement:
        """The judgement on one policy. `rows_were` is what the caller knows of the judging rows: whether the policy learned
        from them. If it is not given, only what the policy's file says of its log is known."""
        check_confidence(confidence)
        if limit is not None:
            check_limit(limit)
        if has_memory(policy):
            raise InvalidSetting(
                "a policy that remembers its episode (it has reset()) cannot be judged: a log says what followed from "
                "single states; of a Guard judge its policy"
            )
        rows_were = rows_were or whether_learned_from(policy, {self.fingerprint})
        return self.judgement(self.evidence(policy, limit), limit, confidence, name or name_of(policy), rows_were)

    def evidence(self, policy: Controller, limit: float | None = None) -> Evidence:
        """What the log and the model say of a policy, before any confidence. A policy of a range of limits needs one."""
        if isinstance(policy, Policy):
            check_columns(policy.artifact, self.log)
            policy = policy.at_limit(limit)
        log = self.log
        next_actions, start_actions = (
            actions_of(policy, observations, log.action_low, log.action_high)
            for observations in (log.next_observations, log.observations[log.episode_starts])
        )
        values = self.fitted.evaluate(next_actions, start_actions)
        rolled = self.dynamics.roll_out(many(policy), self.steps, self.discount) if self.dynamics else None
        support = self.coverage.of(policy, next_actions, start_actions, values, self.calibration.clones, rolled)
        opinion = second_opinion(self.fitted, self.calibration.clones, next_actions, start_actions, values)
        return Evidence(values, rolled, support, opinion)

    def judgement(
        self, evidence: Evidence, limit: float | None, confidence: float, name: str, rows_were: RowsWere = "unknown"
    ) -> Judgement:
        """What is said of a policy because of this evidence."""
        values, rolled, support, opinion = evidence
        log, modelled_error = self.log, rolled is not None
        distance = 0.0 if self.exact else support.distance  # exact features know every pair
        returned, _ = self._estimates("return", values, rolled, distance, confidence)
        cost, (backups, modelled) = self._estimates("cost", values, rolled, distance, confidence)
        why_not = why_rows_cannot_judge(rows_were, self.episodes)
        why_not += why_not_judgeable(values, support, self.calibration.error("cost", modelled_error))
        verdict, reason, advice = decide(cost, limit, confidence, why_not, self.horizon)
        tail = self._tail(cost, values, rolled, limit)
        return Judgement(
            name=name,
            returned=returned,
            cost=cost,
            limit=limit,
            confidence=confidence,
            discount=self.discount,
            horizon=self.horizon,
            rows=self.rows,
            share_over_limit=tail.share_over_limit,
            share_over_limit_at_most=tail.share_at_most,
            worst_tenth=tail.worst_tenth,
            worst_tenth_at_most=tail.worst_tenth_at_most,
            support=support,
            sources=self.calibration.checks,
            second_opinion=opinion,
            sampling_spread=float(values.sampling_spread[1]),
            calibration_spread=self.calibration.spread("cost", values.cost, values.amplification, distance),
            backups=backups,
            modelled=modelled,
            return_is_bounded=not why_not and self._return_is_bounded(support),
            judgeable=not why_not,
            verdict=verdict,
            reason=reason,
            advice=advice,
            rows_were=rows_were,
            logged_steps=float(np.minimum(log.episode_ends - log.episode_starts, self.steps).mean()),
            modelled_steps=None if rolled is None else rolled.steps,
            unchecked=self.calibration.unchecked,
            noisy=self.noisy,
            episodes=self.episodes,
            costly=self.costly,
        )

    def _tail(self, cost: Estimate, values: Values, rolled: RollOuts | None, limit: float | None) -> Tail:
        """Episodes scatter as in the log, or as in the model of the plant: whichever is worse. A policy between two gaits
        scatters more than either of them, and only roll-outs show it."""
        scatter = max(values.cost_spread, self.calibration.least_scatter(cost.value))
        as_logged = tail_of(cost.value, cost.upper, scatter, self.calibration.shape, limit)
        if rolled is None:
            return as_logged
        return as_logged.or_worse(tail_of(cost.value, cost.upper, 1.0, rolled.scatter, limit))

    def _estimates(
        self, signal: str, values: Values, rolled: RollOuts | None, distance: float, confidence: float
    ) -> tuple[Estimate, tuple[Estimate, Estimate | None]]:
        """The value and its bounds, by roll-outs if there are any, else by backups; and those of each alone. Sampling error
        (jackknife of episodes), or how far networks differ, that of the features and measured error (calibration) add up as
        variances."""
        returns = signal == "return"
        value = values.returned if returns else values.cost
        sampling, features = (
            float(spread[0 if returns else 1]) for spread in (values.sampling_spread, values.feature_spread)
        )
        calibrated = self.calibration.spread(signal, value, values.amplification, distance)
        width = half_width(sampling, calibrated, confidence, len(values.influences), features, self.draws)
        backups = bounded(value, width, positive=not returns)
        if rolled is None:
            return backups, (backups, None)
        modelled = self._modelled(signal, rolled, distance, confidence)
        return modelled, (backups, modelled)

    def _modelled(self, signal: str, rolled: RollOuts, distance: float, confidence: float) -> Estimate:
        """By roll-outs. What a policy earns and costs after it has left the log's states, or passed a level of which one
        cannot be sure, lies between nothing and what is imagined: each bound takes its own end, and the value is in the
        middle, and so between what it is with and without disturbances. The upper bound of the cost counts no end by a
        level."""
        from_starts = rolled.start_spread(signal)

        def around(by_plant: NDArray[np.float64]) -> Estimate:
            value = float(by_plant.mean())
            measured = float(np.hypot(self.calibration.modelled_spread(signal, value, distance), from_starts))
            width = half_width(network_spread(by_plant), measured, confidence, len(by_plant))
            return bounded(value, width, positive=signal == "cost")

        least, most = (around(by_plant) for by_plant in rolled.ends(signal))
        upper = max(most.upper, around(rolled.greatest_cost).upper) if signal == "cost" else most.upper
        return Estimate((least.value + most.value) / 2, least.lower, upper)

    def _return_is_bounded(self, support: Support) -> bool:
        near = support.distance <= MOST_DISTANCE and (support.leaving or 0.0) <= MOST_LEAVING
        return self.exact or near


def judge(
    policy: Controller,
    log: Dataset,
    limit: float | None = None,
    *,
    reference: Dataset | None = None,
    discount: float | None = None,
    horizon: int | None = None,
    confidence: float = defaults.CONFIDENCE,
    seed: int = 0,
    name: str | None = None,
) -> Judgement:
    """Judge one policy (a `Policy` or any function from observations to actions) from a log that it was not trained on. The
    discount is the policy's own if none is given."""
    judging = Judge(log, reference, discount=discount_of([policy], discount), horizon=horizon, seed=seed)
    return judging(policy, limit, confidence=confidence, name=name)
