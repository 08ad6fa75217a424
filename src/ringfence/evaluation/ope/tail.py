"""Not only means: the share of episodes over the limit, and the mean cost of the worst tenth (CVaR).

Fitted Q evaluation backs up the first two moments of an episode's cost. The shape of its distribution is that of the
logged episodes, standardised within their source: costs are assumed to scatter as they do in the log, more or less widely.
Where there is a model of the plant its episodes are looked at too, and what is worse counts (`Tail.or_worse`). The bounds
are the same with the upper bound of the expected cost in place of the estimate; they hold no uncertainty of the spread or
of the shape."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORST = 0.1  # CVaR is the mean cost of this share of episodes


@dataclass(frozen=True)
class Tail:
    share_over_limit: float | None  # of episodes; None without a limit
    share_at_most: float | None
    worst_tenth: float
    worst_tenth_at_most: float

    def or_worse(self, other: "Tail") -> "Tail":
        """Each number the greater of both. Both are with a limit, or both without."""

        def worse(a: float | None, b: float | None) -> float | None:
            return None if a is None or b is None else max(a, b)

        return Tail(
            worse(self.share_over_limit, other.share_over_limit),
            worse(self.share_at_most, other.share_at_most),
            max(self.worst_tenth, other.worst_tenth),
            max(self.worst_tenth_at_most, other.worst_tenth_at_most),
        )


def tail_of(
    cost: float, upper: float, spread: float, shape: NDArray[np.float64], limit: float | None, worst: float = WORST
) -> Tail:
    """Of episodes with this expected cost, its upper bound, and a standard deviation of `spread` between episodes."""
    likely, at_most = (np.maximum(mean + spread * shape, 0.0) for mean in (cost, upper))
    return Tail(
        None if limit is None else float(np.mean(likely > limit)),
        None if limit is None else float(np.mean(at_most > limit)),
        worst_mean(likely, worst),
        worst_mean(at_most, worst),
    )


def worst_mean(costs: NDArray[np.float64], share: float = WORST) -> float:
    """The mean of the greatest costs that make up this share: CVaR at 1 - share. An episode at the edge counts in part."""
    greatest = np.sort(costs)[::-1]
    count = share * len(greatest)
    whole = int(count)
    rest = (count - whole) * greatest[whole] if whole < len(greatest) else 0.0
    return float((greatest[:whole].sum() + rest) / count)
