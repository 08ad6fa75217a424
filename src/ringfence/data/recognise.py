"""Recognising episodes again: in a log that has grown, or in any other that holds some of the same episodes."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringfence.data.dataset import Dataset

LENGTH = 16  # hexadecimal digits kept of each digest


@dataclass(frozen=True)
class KnownEpisodes:
    """Digests of whole episodes: of observations, actions, rewards and costs, bit for bit.

    An episode that was cut off may go on in a later log. So an episode is known as well if it begins with one that was cut
    off; `cut_off` are their numbers of steps."""

    digests: frozenset[str]
    cut_off: tuple[int, ...]

    @classmethod
    def of(cls, log: Dataset) -> "KnownEpisodes":
        rows, lengths = _rows(log), log.episode_ends - log.episode_starts
        digests = [_digests(rows[episode], [len(rows[episode])])[0] for episode in log.episode_slices]
        cut_off = lengths[~log.terminations[log.episode_ends - 1]]
        return cls(frozenset(digests), tuple(np.unique(cut_off).tolist()))

    def among(self, log: Dataset) -> NDArray[np.bool_]:
        """(episodes,): which episodes of this log are known."""
        rows = _rows(log)
        return np.array([self._has(rows[episode]) for episode in log.episode_slices], np.bool_)

    def _has(self, episode: NDArray[np.float32]) -> bool:
        steps = sorted({n for n in self.cut_off if n < len(episode)} | {len(episode)})
        return not self.digests.isdisjoint(_digests(episode, steps))

    def to_json(self) -> dict[str, Any]:
        return {"digests": sorted(self.digests), "cut_off": list(self.cut_off)}

    @classmethod
    def from_json(cls, content: Any) -> "KnownEpisodes":
        """`ValueError` if it is not what `to_json` makes."""
        try:
            digests, cut_off = content["digests"], content["cut_off"]
        except (TypeError, KeyError):
            raise ValueError("digests and cut_off are needed") from None
        texts = isinstance(digests, list) and all(isinstance(text, str) for text in digests)
        if not texts or not isinstance(cut_off, list) or not all(type(steps) is int for steps in cut_off):
            raise ValueError("digests are texts, cut_off are whole numbers")
        return cls(frozenset(digests), tuple(cut_off))


def _rows(log: Dataset) -> NDArray[np.float32]:
    """What an episode is recognised by, a row per step. Adding 0 makes no difference between 0 and -0."""
    columns = (log.observations, log.actions, log.rewards[:, None], log.costs[:, None])
    return np.ascontiguousarray(np.concatenate(columns, 1) + 0, "<f4")


def _digests(episode: NDArray[np.float32], steps: Iterable[int]) -> list[str]:
    """The digest of the first n rows, for each n in `steps`, which rise."""
    whole, done, found = hashlib.sha256(str(episode.shape[1]).encode()), 0, []
    for n in steps:
        whole.update(episode[done:n].data)
        done = n
        found.append(whole.copy().hexdigest()[:LENGTH])
    return found
