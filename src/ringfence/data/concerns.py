"""What a user should think about before learning from a log, in plain words.

Nothing here stops anybody: what makes a log unusable is an error, raised when it is read.
"""

from collections.abc import Iterator

import numpy as np

from ringfence.data.checks import blocks
from ringfence.data.dataset import Dataset
from ringfence.data.episodes import EpisodeTable
from ringfence.limits import Limit

FEW_EPISODES = 20
FEW_INSIDE = 0.05  # share of episodes
DISCOUNTED_MASS = 0.9  # share of the discounted sum that the longest episode should cover
DUPLICATES = 0.01  # share of rows
BROKEN_CHAIN = 0.01  # share of rows
SATURATED = 0.25  # share of action values
AT_BOUND = 1e-3  # of the action range
RESOLVED = 1e-4  # change over size of an observation: float32 has some thousand steps left
DETERMINISTIC = 0.01  # share of the actions' variance that the state leaves open


def concerns(dataset: Dataset, table: EpisodeTable, discount: float, limit: Limit | None) -> Iterator[str]:
    if limit is not None:
        yield from _limit(table, limit)
    yield from _costs_and_rewards(dataset)
    yield from _episodes(dataset, table, discount)
    yield from _behaviour(dataset)
    yield from _rows(dataset)


def _limit(table: EpisodeTable, limit: Limit) -> Iterator[str]:
    inside = table.discounted_costs <= limit.discounted
    if not inside.any():
        yield (
            f"no episode stays inside the limit of {limit.discounted:.4g} (discounted): the least discounted cost in "
            f"the log is {table.discounted_costs.min():.4g}. The log does not show how to be that safe; "
            "do not expect it of a policy learned from it"
        )
    elif inside.all():
        yield (
            f"every episode stays inside the limit of {limit.discounted:.4g} (the greatest discounted cost is "
            f"{table.discounted_costs.max():.4g}): here the limit does nothing"
        )
    elif inside.mean() < FEW_INSIDE:
        yield (
            f"only {inside.sum()} of {len(table)} episodes ({inside.mean():.1%}) stay inside the limit of "
            f"{limit.discounted:.4g}: a safe policy has little to learn from"
        )


def _costs_and_rewards(dataset: Dataset) -> Iterator[str]:
    if not dataset.costs.any():
        yield "every cost is 0: the log says nothing about what is unsafe"
    negative = int((dataset.rewards < 0).sum())
    if negative:
        yield (
            f"{negative} rewards are negative (the least is {dataset.rewards.min():.4g}): backing up 0 for unsafe "
            "actions, as the CPQ paper does, could make them look good; use a floor below the values in the log"
        )


def _episodes(dataset: Dataset, table: EpisodeTable, discount: float) -> Iterator[str]:
    if len(table) < FEW_EPISODES:
        yield f"only {len(table)} episodes: whatever is estimated per episode is rough"
    if not (table.terminated[-1] or table.truncated[-1]):
        yield f"the last episode ({table.length[-1]} rows) is unfinished; its sums count what was recorded"
    longest = int(table.length.max())
    seen = 1 - discount**longest
    if not table.terminated.any() and seen < DISCOUNTED_MASS:
        yield (
            f"no episode terminates and the longest has {longest} steps: at a discount of {discount:g} that covers "
            f"{seen:.0%} of a discounted sum, so the discounted costs given here are too low"
        )
    share = _broken_chain(dataset)
    if share > BROKEN_CHAIN:
        yield (
            f"in {share:.1%} of the rows the next observation is not the observation of the following row: the rows "
            "may be shuffled or episode ends missing, and sums over episodes would be meaningless"
        )


def _behaviour(dataset: Dataset) -> Iterator[str]:
    alike = "one behaviour shows few alternatives to choose from, and nothing of what the others would have cost"
    if dataset.source is not None and dataset.source.min() == dataset.source.max():
        yield f"all rows come from one source ('{dataset.source_names[dataset.source[0]]}'): {alike}"
    elif unexplained_action_share(dataset) < DETERMINISTIC:
        yield f"the actions are nearly a function of the observations, as if one policy had chosen them: {alike}"
    share = _saturated_share(dataset)
    if share > SATURATED:
        yield f"{share:.0%} of the action values lie at their bounds: check the bounds and the scale of the actions"


def _rows(dataset: Dataset) -> Iterator[str]:
    constant = np.flatnonzero(dataset.observations.min(axis=0) == dataset.observations.max(axis=0))
    if len(constant):
        yield f"observations that never change: {', '.join(dataset.observation_names[index] for index in constant)}"
    for index in _poorly_resolved(dataset):
        values = dataset.observations[:, index]
        yield (
            f"observation {dataset.observation_names[index]} lies between {values.min():.8g} and {values.max():.8g}: of "
            "such numbers float32 keeps about seven digits, so small changes are lost; subtract an offset before logging"
        )
    duplicates = _duplicate_share(dataset)
    if duplicates > DUPLICATES:
        yield f"{duplicates:.1%} of the rows repeat an earlier row exactly: part of the log may have been added twice"


def _poorly_resolved(dataset: Dataset) -> list[int]:
    """Observations that change by less than a ten-thousandth of their size."""
    least, most = dataset.observations.min(axis=0), dataset.observations.max(axis=0)
    size = np.maximum(np.abs(least), np.abs(most))
    changes = most - least
    return np.flatnonzero((changes > 0) & (changes < RESOLVED * size)).tolist()


def _broken_chain(dataset: Dataset) -> float:
    """Share of rows inside an episode that do not lead to the row after them."""
    inner = ~(dataset.terminations | dataset.truncations)[:-1]
    broken = 0
    for block in blocks(len(inner)):
        following = dataset.observations[block.start + 1 : block.stop + 1]
        close = np.abs(dataset.next_observations[block] - following) <= 1e-4 * (1 + np.abs(following))
        broken += int((inner[block] & ~close.all(axis=1)).sum())
    return broken / max(int(inner.sum()), 1)


def _saturated_share(dataset: Dataset) -> float:
    margin = AT_BOUND * (dataset.action_high - dataset.action_low)
    near = (dataset.actions <= dataset.action_low + margin) | (dataset.actions >= dataset.action_high - margin)
    return float(near.mean())


def _duplicate_share(dataset: Dataset) -> float:
    """Rows with the same hash of observation, action and reward; whole-number arithmetic, so equal rows collide."""
    rng = np.random.default_rng(0)
    hashes = np.zeros(len(dataset), np.uint64)
    for array in (dataset.observations, dataset.actions, dataset.rewards[:, None]):
        factors = rng.integers(2**63, size=array.shape[1], dtype=np.uint64) | np.uint64(1)
        for block in blocks(len(dataset)):
            hashes[block] += (array[block].view(np.uint32) * factors).sum(axis=1, dtype=np.uint64)
    return 1 - len(np.unique(hashes)) / len(dataset)


def unexplained_action_share(dataset: Dataset, rows: int = 6_000, features: int = 256) -> float:
    """The share of the actions' variance that a regression on the observations leaves open, on held-out rows.

    Ridge regression on random rectified features of a sample: rough, but a fraction of a second, and a log
    written by one deterministic controller comes out near 0. Too few rows to tell: 1.
    """
    rng = np.random.default_rng(0)
    if len(dataset) < rows:
        return 1.0
    sample = np.sort(rng.choice(len(dataset), rows, replace=False))
    inputs = dataset.normaliser(dataset.observations[sample]).astype(np.float64)
    actions = dataset.actions[sample].astype(np.float64)
    weights = rng.standard_normal((inputs.shape[1], features)) / np.sqrt(inputs.shape[1])
    hidden = np.maximum(inputs @ weights + rng.standard_normal(features), 0)
    design = np.column_stack([np.ones(rows), inputs, hidden])
    test = rng.permutation(rows) < rows // 4  # a random split: neighbours in time are nearly the same row
    gram = design[~test].T @ design[~test] + 1e-3 * np.eye(design.shape[1])
    fit = np.linalg.solve(gram, design[~test].T @ actions[~test])
    residual = actions[test] - design[test] @ fit
    return _ratio(np.square(residual).mean(), actions[test].var(axis=0).mean())


def _ratio(part: np.floating, whole: np.floating) -> float:
    return float(part / whole) if whole > 0 else 0.0
