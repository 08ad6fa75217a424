"""What is said of a policy: estimates with their bounds, one of three sentences, the reason, and what would help."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np
from scipy.stats import norm, t

from ringfence.evaluation.ope.calibration import MOST_DISTANCE, SourceCheck
from ringfence.evaluation.ope.fqe import GROUPS, Values
from ringfence.evaluation.ope.opinion import SecondOpinion
from ringfence.evaluation.ope.support import Support

MOST_FOREIGN = 0.2  # share of foreign actions on the policy's path above which the log cannot tell
MOST_FOREIGN_MODELLED = 0.4  # the same on its path in the model of the plant
MOST_LEAVING = 0.5  # share of the roll-outs in the model, which leave the log's states, up to which they are bounds
LEAST_EPISODES = 0.5  # effective episodes below which it cannot
LEAST_JUDGING = 5  # episodes to judge by, below which it cannot: what they have in common may be chance
MOST_ERROR = 0.5  # relative error on the log's own behaviours above which it cannot

RowsWere = Literal["not learned from", "learned from", "unknown"]
Sentence = Literal["inside", "outside", "cannot tell"]
SENTENCES: dict[Sentence, str] = {
    "inside": "inside the limit (at this confidence)",
    "outside": "outside the limit",
    "cannot tell": "the log cannot tell",
}


@dataclass(frozen=True)
class Estimate:
    """An expectation, and one-sided bounds: each holds at the judgement's confidence."""

    value: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Judgement:
    """What the log says of one policy. Sums are discounted and over the log's horizon. The bounds of the return are bounds
    only if `return_is_bounded`; else they are those of an estimate that can be far too high."""

    name: str
    returned: Estimate
    cost: Estimate
    limit: float | None
    confidence: float
    discount: float
    horizon: int
    rows: int
    share_over_limit: float | None  # of episodes
    share_over_limit_at_most: float | None  # the same if the expected cost is at its upper bound
    worst_tenth: float  # mean cost of the worst tenth of episodes (CVaR)
    worst_tenth_at_most: float
    support: Support
    sources: tuple[SourceCheck, ...]
    second_opinion: SecondOpinion
    sampling_spread: float  # standard deviation of the cost by backups over samples of episodes
    calibration_spread: float  # the same from the error on the log's own behaviours
    backups: Estimate  # the cost by fitted Q evaluation alone
    modelled: Estimate | None  # the cost by roll-outs in the model of the plant alone; None without a model
    return_is_bounded: bool
    judgeable: bool
    verdict: Sentence | None  # None without a limit
    reason: str
    advice: str
    rows_were: RowsWere = "unknown"  # whether the policy learned from the rows that judge it
    logged_steps: float = 0.0  # how long the judging episodes last on average, up to the horizon
    modelled_steps: float | None = None  # the same of the policy's in the model of the plant; None without a model
    unchecked: tuple[str, ...] = ()  # sources of the log without a whole reference episode
    episodes: int = 0  # that judge
    costly: bool = True  # whether any step of them cost anything
    noisy: tuple[
        str, ...
    ] = ()  # columns for whose changes no model of the plant was used: a good part of them is noise

    @property
    def inside(self) -> bool:
        return self.verdict == "inside"

    @property
    def return_note(self) -> str:
        """What the bounds of the return are worth."""
        if self.return_is_bounded:
            return f"the return is at least {self.returned.lower:.4g} (at {percent(self.confidence)})"
        return f"the return of {self.returned.value:.4g} is an estimate without a bound: {self._why_unbounded}"

    @property
    def _why_unbounded(self) -> str:
        if not self.judgeable:
            return "the log cannot judge the policy"
        drifts = "it may drift into states that the log does not show"
        if self.support.distance > MOST_DISTANCE:
            return (
                "the policy acts unlike every source of the log in that source's own states (by "
                f"{self.support.distance:.2g} of its noise or more; at most {MOST_DISTANCE:g} for a bound); {drifts}"
            )
        return (
            f"{self.support.leaving or 0.0:.0%} of its episodes in a model of the plant come to states on which the model's "
            f"networks contradict each other (at most {MOST_LEAVING:.0%} for a bound); {drifts}"
        )

    @property
    def sentence(self) -> str:
        if self.verdict is None:
            return self.reason
        return f"{SENTENCES[self.verdict]}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON: a number that is not finite is None."""
        found = {**asdict(self), "sentence": self.sentence, "return_note": self.return_note}
        return cast(dict[str, Any], finite_or_none(found))


def finite_or_none(value: Any) -> Any:
    """The same with None in place of every number that JSON does not have."""
    if isinstance(value, dict):
        return {name: finite_or_none(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def percent(confidence: float) -> str:
    """A confidence in words, never rounded up to 100 %.

    >>> percent(0.95), percent(0.999), percent(1 - 0.05 / 60)
    ('95%', '99.9%', '99.9167%')
    """
    return f"{100 * confidence:.6g}%"


def half_width(
    sampling: float, measured: float, confidence: float, groups: int = GROUPS, features: float = 0.0, draws: int = 0
) -> float:
    """How far a one-sided bound lies from the value, with these standard deviations; they add up as variances.

    A sampling error that was found from few groups of episodes is uncertain itself: Student's t with groups - 1 degrees of
    freedom takes the place of the normal quantile. With all of the groups, which every log of as many episodes has, the two
    differ by 4 % at a confidence of 95 %, and the normal one is taken. The same holds for the standard deviation over a few
    draws of features."""

    def quantile(number: int) -> float:
        return float(norm.ppf(confidence) if number >= GROUPS else t.ppf(confidence, max(number - 1, 1)))

    parts = quantile(groups) * sampling, quantile(GROUPS) * measured, quantile(draws) * features if features else 0.0
    return float(np.linalg.norm(parts))


def bounded(value: float, width: float, positive: bool) -> Estimate:
    """One-sided bounds at this distance from a value. An estimate below 0 of a quantity that is positive counts as 0, and no
    bound of it is below 0."""
    if not positive:
        return Estimate(value, value - width, value + width)
    value = max(value, 0.0)
    return Estimate(value, max(value - width, 0.0), value + width)


def decide(
    cost: Estimate, limit: float | None, confidence: float, why_not: list[tuple[str, str]], horizon: int
) -> tuple[Sentence | None, str, str]:
    """The sentence, its reason, and what would help."""
    if why_not:
        reasons, advice = ("; ".join(parts) for parts in zip(*why_not, strict=True))
        return (None if limit is None else "cannot tell"), reasons, advice
    what = f"the expected discounted cost over {horizon} steps"
    bounds = f"{cost.lower:.4g} to {cost.upper:.4g} (each bound at {percent(confidence)})"
    if limit is None:
        return None, f"{what} is {cost.value:.4g}, {bounds}", ""
    if cost.upper <= limit:
        return "inside", f"{what} is at most {cost.upper:.4g}, the limit is {limit:.4g}", ""
    if cost.lower > limit:
        return (
            "outside",
            f"{what} is at least {cost.lower:.4g}, the limit is {limit:.4g}",
            f"train for a lower limit, or allow at least {cost.upper:.4g}",
        )
    stricter = limit - (cost.upper - cost.value)  # a policy that costs so much has its upper bound at the limit
    train = f"train for a limit of about {stricter:.4g}, " if stricter > 0 else ""
    return (
        "cannot tell",
        f"{what} is {bounds}, and the limit of {limit:.4g} lies in between",
        f"judge from more episodes, {train}or allow at least {cost.upper:.4g}"
        + ("" if train else f": the bound is too wide for any policy to be confirmed at {limit:.4g}"),
    )


def why_rows_cannot_judge(rows_were: RowsWere, episodes: int) -> list[tuple[str, str]]:
    """Why these rows cannot judge a policy whatever it does, if so, each reason with what would help."""
    found = []
    if rows_were == "learned from":
        found.append(
            (
                "the policy learned from these rows, or from some of them, so that they flatter it",
                "judge it by episodes that it did not learn from: name its run's directory, which knows them, "
                "or give another log",
            )
        )
    if episodes < LEAST_JUDGING:
        found.append(
            (
                f"there are {episodes} episodes to judge by; fewer than {LEAST_JUDGING} cannot tell merit from chance",
                "judge by more episodes: set a larger share aside (--holdout), or give a log with more of them",
            )
        )
    return found


def why_not_judgeable(values: Values, support: Support, error: float) -> list[tuple[str, str]]:
    """Why a log cannot judge a policy, if so, each reason with what would help. `error` is that of the cost of the log's own
    behaviours."""
    found = []
    if not values.in_range:
        found.append(
            (
                "the estimate is a value that no sequence of logged steps could have: the critics extrapolate",
                "add rows of controllers that act as the policy does, or train with a stronger anchor to the log",
            )
        )
    if support.foreign_on_path > MOST_FOREIGN:
        found.append(
            (
                f"{support.foreign_on_path:.0%} of the actions on the policy's path are unlike any in the log "
                f"(more than {MOST_FOREIGN:.0%})",
                "train with a stronger anchor to the log, or add rows in which such actions were taken",
            )
        )
    if (support.foreign_modelled or 0.0) > MOST_FOREIGN_MODELLED:
        found.append(
            (
                f"in a model of the plant the policy leaves what the log shows: {support.foreign_modelled:.0%} of its "
                f"steps are unlike any in the log (more than {MOST_FOREIGN_MODELLED:.0%})",
                "train longer or with a stronger anchor to the log, or add rows from where the policy goes",
            )
        )
    if support.effective_episodes < LEAST_EPISODES:
        found.append(
            (
                f"the estimate rests on {support.effective_episodes:.1f} effective episodes",
                "add more episodes, above all of controllers that act as the policy does",
            )
        )
    if error > MOST_ERROR:
        found.append(
            (
                f"the cost of the log's own behaviours is estimated with an error of {error:.0%}",
                "add more episodes, or observations that the cost depends on and the log lacks",
            )
        )
    return found
