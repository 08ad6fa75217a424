"""What a `Judge` is given: whether it can use it, how much of it, and what is known of where it comes from."""

import math
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from ringfence.data.dataset import Dataset
from ringfence.deploy import Policy
from ringfence.errors import InvalidSetting
from ringfence.evaluation.episodes import Controller
from ringfence.evaluation.ope.clone import sources_of
from ringfence.evaluation.ope.judgement import RowsWere
from ringfence.limits import DISCOUNT
from ringfence.values import is_number

LARGEST_SIGNAL = 1e15  # the square of a thousand such costs is still a float32
NEGLIGIBLE = 1e-8  # of a step's reward and cost: sums end where discounting leaves so little


def check_confidence(confidence: Any) -> None:
    if not is_number(confidence) or not 0.5 <= confidence < 1:
        raise InvalidSetting(f"confidence must lie between 0.5 and 1, not {confidence!r}")


def steps_that_count(discount: float) -> int:
    """After so many a step's reward and cost are discounted to less than NEGLIGIBLE of themselves."""
    return math.ceil(math.log(NEGLIGIBLE) / math.log(discount))


def name_of(policy: Controller) -> str:
    return str(getattr(policy, "__name__", type(policy).__name__))


def why_unchecked(log: Dataset, reference: Dataset, horizon: int) -> str:
    """Why no behaviour of the log can be checked against its reference episodes, and what to do."""
    judging, referring = ([name for name, _ in sources_of(part)] for part in (log, reference))
    if not set(judging) & set(referring):
        return (
            f"the episodes of {log.name} that judge ({', '.join(judging)}) and the reference episodes "
            f"({', '.join(referring)}) have no source in common, so that no behaviour can be checked. Add episodes of "
            "each source, or leave the source column out"
        )
    return (
        f"no reference episode of {log.name} is whole: all were cut off before the horizon of {horizon} steps, the log's "
        "longest episode. Add episodes that are as long as it or that terminate, or leave the longest out of the log"
    )


def whether_learned_from(policy: Controller, logs: Set[str]) -> RowsWere:
    """Whether a policy learned from one of the logs with these fingerprints, as far as its file says so."""
    about = policy.metadata if isinstance(policy, Policy) else {}
    return "learned from" if logs & logs_named(about) else "unknown"


def logs_named(about: Mapping[str, Any]) -> set[Any]:
    """Fingerprints of the log that a policy was trained on, and of the part of it that it learned from."""
    return {about.get("log_fingerprint"), about.get("learned_from")} - {None}


def check_sizes(log: Dataset) -> None:
    """Raise if rewards or costs are so large that the squares of their sums leave float32."""
    for name, column in (("rewards", log.rewards), ("costs", log.costs)):
        greatest = float(np.abs(column).max(initial=0.0))
        if greatest > LARGEST_SIGNAL:
            raise InvalidSetting(
                f"{name} of up to {greatest:.3g} are too large to judge by (at most {LARGEST_SIGNAL:g}): "
                "give them, and the limit, in a larger unit"
            )


def at_most(log: Dataset, rows: int, seed: int) -> Dataset:
    """Whole episodes, drawn by seed, of at most about so many rows."""
    if len(log) <= rows:
        return log
    order = np.random.default_rng(seed).permutation(len(log.episode_starts))
    lengths = (log.episode_ends - log.episode_starts)[order]
    return log.select_episodes(np.sort(order[: max(int(np.searchsorted(np.cumsum(lengths), rows)), 2)]))


def discount_of(policies: Iterable[Controller], given: float | None) -> float:
    """The discount that was given, else the one that the policies were trained at."""
    if given is not None:
        return given
    trained = (policy.artifact.discount for policy in policies if isinstance(policy, Policy))
    own = sorted({discount for discount in trained if discount is not None})
    if len(own) > 1:
        raise InvalidSetting(f"the policies were trained at several discounts ({own}); say which: discount=...")
    return own[0] if own else DISCOUNT
