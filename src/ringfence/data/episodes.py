"""Where episodes begin and end, and what is summed over them: the one definition of each.

An episode ends in a row that is terminated (the world stopped: nothing follows) or truncated (the record
stopped: something follows that we did not see). Rows after the last end form an unfinished episode.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ringfence.data.dataset import Dataset


@dataclass(frozen=True, eq=False)
class EpisodeTable:
    """One entry per episode; sums in float64. `source` is that of the episode's first row."""

    start: NDArray[np.int64]
    length: NDArray[np.int64]
    returns: NDArray[np.float64]
    discounted_returns: NDArray[np.float64]
    costs: NDArray[np.float64]
    discounted_costs: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    source: NDArray[np.int32] | None

    def __len__(self) -> int:
        return len(self.start)


def episode_table(dataset: "Dataset", discount: float) -> EpisodeTable:
    """What each episode earned and cost, as plain sums and discounted from its first step."""
    starts, ends = dataset.episode_starts, dataset.episode_ends
    return EpisodeTable(
        start=starts,
        length=ends - starts,
        returns=np.add.reduceat(dataset.rewards, starts, dtype=np.float64),
        discounted_returns=dataset.return_to_go(discount)[starts],
        costs=np.add.reduceat(dataset.costs, starts, dtype=np.float64),
        discounted_costs=dataset.cost_to_go(discount)[starts],
        terminated=dataset.terminations[ends - 1],
        truncated=dataset.truncations[ends - 1],
        source=None if dataset.source is None else dataset.source[starts],
    )


def episode_bounds(is_end: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First row of each episode, and the row after its last."""
    ends = np.flatnonzero(is_end) + 1
    if len(ends) == 0 or ends[-1] != len(is_end):
        ends = np.append(ends, len(is_end))
    starts = np.concatenate([[0], ends[:-1]])
    return starts.astype(np.int64), ends.astype(np.int64)


def discounted_sum(values: NDArray[np.floating[Any]], discount: float) -> float:
    """sum_t discount^t values[t], of one episode."""
    return float(discounted_sum_to_go(values, np.array([len(values)]), discount)[0])


def discounted_sum_to_go(
    values: NDArray[np.floating[Any]], ends: NDArray[np.int64], discount: float
) -> NDArray[np.float64]:
    """For each row t of an episode with last row T: the sum over k = t..T of discount^(k-t) values[k].

    Sums over windows of 1, 2, 4, ... rows: a window of 2n is a window of n plus discount^n times the window
    that follows it. That is log2(longest episode) passes of NumPy, whether there is one episode or a million.
    """
    lengths = np.diff(ends, prepend=0)
    rows_left = np.repeat(ends, lengths) - np.arange(len(values))
    sums = values.astype(np.float64)
    window = 1
    while window < lengths.max():
        following = np.where(rows_left[:-window] > window, sums[window:], 0.0)
        following *= discount**window
        sums[:-window] += following
        window *= 2
    return sums


def truncations_from_episode_column(
    episode: NDArray[Any], terminations: NDArray[np.bool_], truncations: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """An episode ends where its id changes; an end that is not terminated is truncated."""
    is_last = np.append(episode[1:] != episode[:-1], True)
    return truncations | (is_last & ~terminations)


def row_of_interleaved_episode(episode: NDArray[Any], is_end: NDArray[np.bool_]) -> int | None:
    """The first row in which an id comes back though its episode was left without an end: rows of several episodes
    are mixed. An id that is used again after its episode ended is a new episode."""
    firsts = np.flatnonzero(np.append(True, episode[1:] != episode[:-1]))
    lasts = np.append(firsts[1:], len(episode)) - 1
    # Stretches of one id side by side, in the order of the log.
    codes = np.unique(episode[firsts], return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    comes_back = codes[order][1:] == codes[order][:-1]
    mixed = firsts[order[1:][comes_back & ~is_end[lasts[order[:-1]]]]]
    return int(mixed.min()) if len(mixed) else None


def rows_with_known_successor(
    terminations: NDArray[np.bool_], truncations: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """For a log without next observations: which rows to keep, the row whose observation follows each of them, and
    which of them are truncated.

    The next observation is that of the following row of the episode. After a termination nothing follows: the
    row's own observation stands in and is never used. After a truncation something follows that was not
    recorded: that row must go, and the row before it, whose successor it was, becomes the truncated one.
    """
    is_end = terminations | truncations
    is_end[-1] = True
    dropped = is_end & ~terminations
    leads_to_dropped = np.append(dropped[1:] & ~is_end[:-1], False)
    kept = np.flatnonzero(~dropped)
    successor = np.where(terminations[kept], kept, kept + 1)
    return kept, successor, (leads_to_dropped | (truncations & terminations))[kept]
