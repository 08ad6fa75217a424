"""One estimate from two: fitted Q evaluation and roll-outs in a model of the plant.

Each has its own standard deviation, measured on the log's behaviours. They are mixed with weights inverse to their
variances. Both rest on the same rows, so that mixing them makes nothing surer: the variance is that of the mixture, which
grows with their disagreement,

    w1 s1^2 + w2 s2^2 + w1 w2 (v1 - v2)^2,    w1 + w2 = 1.
"""

from typing import NamedTuple


class Uncertain(NamedTuple):
    value: float
    spread: float  # standard deviation


def mixed(first: Uncertain, second: Uncertain) -> Uncertain:
    """The mixture of two estimates of one quantity."""
    one, two = max(first.spread, 1e-12) ** -2, max(second.spread, 1e-12) ** -2
    share = one / (one + two)
    value = share * first.value + (1 - share) * second.value
    apart = share * (1 - share) * (first.value - second.value) ** 2
    return Uncertain(value, (share * first.spread**2 + (1 - share) * second.spread**2 + apart) ** 0.5)
