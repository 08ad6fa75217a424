"""Choosing among policies without a simulator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringfence.data.dataset import Dataset
from ringfence.evaluation.episodes import Controller
from ringfence.evaluation.ope.judge import Judge
from ringfence.evaluation.ope.judge_inputs import discount_of, whether_learned_from
from ringfence.evaluation.ope.judgement import Judgement, RowsWere, percent
from ringfence.limits import check_limit
from ringfence.training import defaults

CHOOSING_SHARE = 0.5  # of the judging episodes; the rest judge the winner again


@dataclass(frozen=True)
class Choice:
    """The table that was decided from, and the winner judged again on episodes that did not choose it; None if no policy
    is inside the limit."""

    candidates: tuple[Judgement, ...]  # best first
    chosen: str | None
    confirmed: Judgement | None
    reason: str
    second_looks: tuple[Judgement, ...] = ()  # of those judged again, in that order; the last is the winner if any is

    def to_dict(self) -> dict[str, Any]:
        return {
            "chosen": self.chosen,
            "reason": self.reason,
            "confirmed": self.confirmed.to_dict() if self.confirmed else None,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "second_looks": [again.to_dict() for again in self.second_looks],
        }


def choose(
    policies: Mapping[str, Controller],
    log: Dataset,
    limit: float,
    *,
    reference: Dataset | None = None,
    discount: float | None = None,
    horizon: int | None = None,
    confidence: float = defaults.CONFIDENCE,
    seed: int = 0,
    rows_were: RowsWere | None = None,
) -> Choice:
    """The policy with the greatest lower bound of return among those whose upper bound of cost is inside the limit; of
    equal ones the better supported. Those whose return has no bound come after those whose has.

    The best of many estimates is too good to be true. Half of the judging episodes choose, the other half judge the winner
    again; if it is not inside there, the next one is tried, at most as many times as there are candidates, with the
    confidence raised accordingly (Bonferroni). The discount is the policies' own if none is given. `rows_were` is what the
    caller knows of the log's rows: whether the policies learned from them. If it is not given, only what each policy's file
    says of its log is known.
    """
    check_limit(limit)
    discount = discount_of(policies.values(), discount)
    choosing, confirming = log.hold_out(1 - CHOOSING_SHARE, seed)
    first = Judge(choosing, reference, discount=discount, horizon=horizon, seed=seed)
    logs = {part.fingerprint for part in (log, choosing, confirming)}
    judged = [
        first(
            policy, limit, confidence=confidence, name=name, rows_were=rows_were or whether_learned_from(policy, logs)
        )
        for name, policy in policies.items()
    ]
    judged.sort(key=_merit, reverse=True)
    inside = [judgement for judgement in judged if judgement.inside]
    if not inside:
        unsure = sum(judgement.verdict == "cannot tell" for judgement in judged)
        return Choice(
            tuple(judged),
            None,
            None,
            f"none of {len(judged)} policies is inside the limit of {limit:.4g} at {percent(confidence)}"
            f" ({unsure} the log cannot tell); see what each one's verdict advises",
        )
    second = Judge(confirming, reference, discount=discount, horizon=horizon, seed=seed + 1)
    raised = 1 - (1 - confidence) / len(inside)
    looks: list[Judgement] = []
    for candidate in inside:
        again = second(
            policies[candidate.name], limit, confidence=raised, name=candidate.name, rows_were=candidate.rows_were
        )
        looks.append(again)
        if again.inside:
            return Choice(
                tuple(judged),
                candidate.name,
                again,
                f"{candidate.name}: {again.return_note}; cost at most {again.cost.upper:.4g} on "
                f"episodes that did not choose it (at {percent(raised)}, candidates inside: {len(inside)})",
                tuple(looks),
            )
    return Choice(
        tuple(judged),
        None,
        None,
        f"{len(inside)} policies looked inside the limit of {limit:.4g}, but none was on episodes that did not choose it "
        f"(at {percent(raised)}); see why in the second table",
        tuple(looks),
    )


def _merit(judgement: Judgement) -> tuple[bool, bool, float, float]:
    bounded, lower = judgement.return_is_bounded, judgement.returned.lower
    return judgement.inside, bounded, lower, -judgement.support.foreign_on_path
