"""Which episodes are chosen, and which are held out to judge by. Always whole episodes: rows of one are alike."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfence.errors import EmptyData, InvalidSetting


def chosen_episodes(chosen: ArrayLike, episodes: int) -> NDArray[np.bool_]:
    """A mask over episodes from a mask or from indices (0 is the first episode)."""
    index = np.asarray(chosen)
    index = index if index.size else index.astype(np.intp)  # an empty list would count as one of floats
    mask = np.zeros(episodes, np.bool_)
    if index.dtype == np.bool_ and index.shape != mask.shape:
        raise InvalidSetting(f"the mask has shape {index.shape}; the log has {episodes} episodes")
    if index.dtype != np.bool_:
        if index.dtype.kind not in "iu":
            raise InvalidSetting(f"episodes are chosen by a mask or by whole numbers, not by {index.dtype} values")
        outside = index[(index < 0) | (index >= episodes)]
        if outside.size:
            raise InvalidSetting(f"there is no episode {outside.flat[0]}; the log has episodes 0 to {episodes - 1}")
    mask[index] = True
    if not mask.any():
        raise EmptyData(f"none of the {episodes} episodes is selected")
    return mask


def held_out_episodes(
    episodes: int, share: float, seed: int, *, source: NDArray[np.int32] | None, last_is_finished: bool
) -> NDArray[np.bool_]:
    """A mask of about `share` of the episodes, at least one, drawn from each source in proportion.

    Each source keeps at least one episode to learn from; where that leaves too few to hold out, sources do not matter.
    What proportion leaves as a fraction goes to the sources with the largest remainders (the first of equals).
    """
    if not 0 < share < 1:
        raise InvalidSetting(f"the share to hold out must lie strictly between 0 and 1, not {share}")
    strata = np.zeros(episodes, np.int32) if source is None else source
    eligible = np.arange(episodes) < (episodes if last_is_finished else episodes - 1)
    groups = [np.flatnonzero((strata == code) & eligible) for code in np.unique(strata)]
    sizes = np.array([len(group) for group in groups])
    totals = np.unique(strata, return_counts=True)[1]
    most = np.minimum(sizes, totals - 1)
    wanted = max(round(share * episodes), 1)
    if most.sum() < wanted and source is not None:
        return held_out_episodes(episodes, share, seed, source=None, last_is_finished=last_is_finished)
    if most.sum() < 1:
        raise EmptyData(
            "holding out needs two episodes, of which one at least is finished: there is nothing to judge by"
        )
    wanted = min(wanted, int(most.sum()))
    exact = share * sizes
    counts = np.minimum(np.floor(exact).astype(int), most)
    while counts.sum() < wanted:
        room = np.where(counts < most, exact - counts, -np.inf)
        counts[int(np.argmax(room))] += 1
    rng = np.random.default_rng(seed)
    mask = np.zeros(episodes, np.bool_)
    for group, count in zip(groups, counts, strict=True):
        mask[rng.permutation(group)[:count]] = True
    return mask
