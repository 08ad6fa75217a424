"""BC-Safe: behaviour cloning on the safe part of the log only.

The baseline of the CPQ paper (Section 6, "Baselines"): it shows what copying the safe behaviour achieves, and that
leaving out the rest leaves out its rewards too (Section 3.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool

from ringfence.algorithms.bc import BC
from ringfence.algorithms.checks import one_of
from ringfence.data.dataset import Dataset
from ringfence.data.episodes import EpisodeTable, episode_table
from ringfence.errors import EmptyData, InvalidSetting


@dataclass(frozen=True)
class BCSafe(BC):
    """Behaviour cloning on the safe part of the log.

    Where the log says which behaviour wrote each row (`source`), the safe part is every episode of the safe sources:
    those whose mean discounted cost per episode is within the limit. Otherwise it is the episodes whose own
    discounted cost is. The second rule prefers lucky episodes of an unsafe behaviour; `select` forces either.
    """

    name: ClassVar[str] = "bc-safe"

    select: Literal["auto", "source", "episodes"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "select", ("auto", "source", "episodes"))

    def restrict(self, dataset: Dataset, limits: Sequence[float]) -> Dataset:
        """The safe part of the log. All members of a run share one log, so limits that mean different parts are
        refused."""
        by_source = dataset.source is not None if self.select == "auto" else self.select == "source"
        if by_source and dataset.source is None:
            raise InvalidSetting("select='source' needs a log with a source column; use select='episodes'")
        table = episode_table(dataset, self.discount)
        choose = episodes_of_safe_sources if by_source else episodes_inside
        chosen = [choose(table, limit) for limit in limits]
        for limit, episodes in zip(limits, chosen, strict=True):
            if not episodes.any():
                raise EmptyData(nothing_safe(dataset, table, limit, by_source))
        if any((episodes != chosen[0]).any() for episodes in chosen):
            raise InvalidSetting(
                f"bc-safe learns from the part of the log that is inside the limit, and the limits "
                f"{', '.join(f'{limit:g}' for limit in limits)} mean different parts; train one limit at a time"
            )
        return dataset.select_episodes(chosen[0])


def episodes_inside(table: EpisodeTable, limit: float) -> Bool[np.ndarray, " episodes"]:
    """Episodes whose discounted cost from the first step is at most the limit."""
    inside: np.ndarray = table.discounted_costs <= limit
    return inside


def episodes_of_safe_sources(table: EpisodeTable, limit: float) -> Bool[np.ndarray, " episodes"]:
    """All episodes of those sources whose mean discounted cost per episode is at most the limit."""
    assert table.source is not None
    safe = [code for code, cost in mean_costs(table).items() if cost <= limit]
    return np.isin(table.source, safe)


def mean_costs(table: EpisodeTable) -> dict[int, float]:
    """Each source's mean discounted cost per episode."""
    assert table.source is not None
    return {int(code): float(table.discounted_costs[table.source == code].mean()) for code in np.unique(table.source)}


def nothing_safe(dataset: Dataset, table: EpisodeTable, limit: float, by_source: bool) -> str:
    least = f"the least discounted cost of an episode is {table.discounted_costs.min():.4g}"
    if not by_source:
        return f"no episode is inside the limit of {limit:g}, so there is nothing safe to clone: {least}"
    costs = ", ".join(f"{dataset.source_names[code]} {cost:.4g}" for code, cost in mean_costs(table).items())
    return (
        f"no source is inside the limit of {limit:g}, so there is nothing safe to clone: mean discounted costs are "
        f"{costs}; {least}. select='episodes' clones single episodes inside the limit, whoever wrote them"
    )
