"""One estimate from two: fitted Q evaluation and roll-outs in a model of the plant.

Each has its own standard deviation, measured on the log's behaviours. They are mixed with weights inverse to their
variances, but backups have no more than a tenth: they are checked with the behaviours' logged actions, roll-outs with clones
that act by themselves, as any policy will. (On development policies backups alone cost up to 60 % too much on Hopper, where
both checks looked well.) Both rest on the same rows, so that mixing them makes nothing surer: the variance is that of the
mixture, which grows with their disagreement,

    w1 s1^2 + w2 s2^2 + w1 w2 (v1 - v2)^2,    w1 + w2 = 1.
"""

from typing import NamedTuple

MOST_OF_BACKUPS = 0.1  # their greatest weight beside roll-outs


class Uncertain(NamedTuple):
    value: float
    spread: float  # standard deviation


def mixed(first: Uncertain, second: Uncertain, most: float = MOST_OF_BACKUPS) -> Uncertain:
    """The mixture of two estimates of one quantity; the first has at most a weight of `most`."""
    one, two = max(first.spread, 1e-12) ** -2, max(second.spread, 1e-12) ** -2
    share = min(one / (one + two), most)
    value = share * first.value + (1 - share) * second.value
    apart = share * (1 - share) * (first.value - second.value) ** 2
    return Uncertain(value, (share * first.spread**2 + (1 - share) * second.spread**2 + apart) ** 0.5)
