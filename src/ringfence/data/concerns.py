"""What a user should think about before learning from a log, in plain words.

Nothing here stops anybody: what makes a log unusable is an error, raised when it is read.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ringfence.data.checks import blocks
from ringfence.data.dataset import Dataset
from ringfence.data.episodes import EpisodeTable
from ringfence.limits import Limit, over_horizon

FEW_EPISODES = 20
FEW_INSIDE = 0.05  # share of episodes
DISCOUNTED_MASS = 0.9  # share of the discounted sum that the longest episode should cover
DUPLICATES = 0.01  # share of rows
BROKEN_CHAIN = 0.01  # share of rows
SATURATED = 0.25  # share of action values
AT_BOUND = 1e-3  # of the action range
RESOLVED = 1e-4  # change over size of an observation: float32 has some thousand steps left
EMPTY_ROWS = 2  # rows at the end that are 0 in every column
# Sizes of values, mean / (1 - discount), that a critic can be trained at: its gradients are about the size's square, Adam
# squares them again in float32 (at most 3e38) and adds 1e-8 to their root.
LEAST_VALUE, GREATEST_VALUE = 1e-3, 1e9
MOSTLY_ENDED = 0.5  # share of episodes
DETERMINISTIC = 0.01  # share of the actions' variance that the state leaves open


class Concern(NamedTuple):
    what: str
    to_do: str


def concerns(dataset: Dataset, table: EpisodeTable, discount: float, limit: Limit | None) -> Iterator[Concern]:
    if limit is not None:
        yield from _limit(table, limit)
    yield from _costs_and_rewards(dataset)
    yield from _sizes(dataset, discount)
    yield from _episodes(dataset, table, discount)
    yield from _behaviour(dataset)
    yield from _rows(dataset)


def _limit(table: EpisodeTable, limit: Limit) -> Iterator[Concern]:
    inside = table.discounted_costs <= limit.discounted
    if not inside.any():
        yield Concern(
            f"no episode stays inside the limit of {limit.discounted:.4g} (discounted): the least discounted cost in "
            f"the log is {table.discounted_costs.min():.4g}. The log does not show how to be that safe; "
            "do not expect it of a policy learned from it",
            "raise the limit to what some episodes keep, or add episodes of a more cautious controller",
        )
    elif inside.all():
        yield Concern(
            f"every episode stays inside the limit of {limit.discounted:.4g} (the greatest discounted cost is "
            f"{table.discounted_costs.max():.4g}): here the limit does nothing",
            "check the limit and its kind (discounted, per episode or per step); lower it if it is meant to bind",
        )
    elif inside.mean() < FEW_INSIDE:
        yield Concern(
            f"only {inside.sum()} of {len(table)} episodes ({inside.mean():.1%}) stay inside the limit of "
            f"{limit.discounted:.4g}: a safe policy has little to learn from",
            "add episodes of a more cautious controller, or raise the limit",
        )


def _costs_and_rewards(dataset: Dataset) -> Iterator[Concern]:
    if not dataset.costs.any():
        yield Concern(
            "every cost is 0: the log says nothing about what is unsafe",
            "check which column holds the cost; if nothing unsafe ever happened, there is nothing to limit",
        )
    negative = int((dataset.rewards < 0).sum())
    if negative:
        yield Concern(
            f"{negative} rewards are negative (the least is {dataset.rewards.min():.4g}): backing up 0 for unsafe "
            "actions, as the CPQ paper does, would make them look good",
            "nothing with the default preset, which backs up what follows; do not use the paper preset on this log",
        )


def _sizes(dataset: Dataset, discount: float) -> Iterator[Concern]:
    for name, values, too in (("reward", dataset.rewards, ""), ("cost", dataset.costs, ", and the limit with them")):
        mean = float(np.abs(values).mean(dtype=np.float64))
        if mean == 0 or LEAST_VALUE <= mean / (1 - discount) <= GREATEST_VALUE:
            continue
        small = mean / (1 - discount) < LEAST_VALUE
        size, effect = ("small", "learns next to nothing") if small else ("large", "overflows")
        change = f"{'multiply' if small else 'divide'} all {name}s by a constant{too}"
        yield Concern(
            f"the {name}s are very {size} (their mean size is {mean:.3g}): a critic of such numbers {effect}; {change}",
            f"{change}, so that their mean size is about 1",
        )


def _episodes(dataset: Dataset, table: EpisodeTable, discount: float) -> Iterator[Concern]:
    if len(table) < FEW_EPISODES:
        yield Concern(
            f"only {len(table)} episodes: whatever is estimated per episode is rough",
            "add episodes, or cut long recordings into more of them",
        )
    if not (table.terminated[-1] or table.truncated[-1]):
        yield Concern(
            f"the last episode ({table.length[-1]} rows) is unfinished; its sums count what was recorded",
            "nothing, if the recording simply stopped; else mark its last row as terminated or truncated",
        )
    longest = int(table.length.max())
    seen = over_horizon(1.0, discount, longest)
    if not table.terminated.any() and seen < DISCOUNTED_MASS:
        yield Concern(
            f"no episode terminates and the longest has {longest} steps: at a discount of {discount:g} that covers "
            f"{seen:.0%} of a discounted sum, so the discounted costs given here are too low",
            "give the limit per episode or per step, use a smaller discount, or record longer episodes",
        )
    ended = float(table.terminated.mean())
    if ended >= MOSTLY_ENDED:
        yield Concern(
            f"{ended:.0%} of the episodes terminate, and the log does not say what that means: CPQ's default takes an end "
            "for neither safe nor unsafe, as if the cost went on at the limit's pace, and holds short episodes to a small "
            "part of the limit",
            "if the end is a part of the task, such as a goal or a finished batch, train with --set episode_end=ends; if it "
            "must not happen, with episode_end=failure",
        )
    share = _broken_chain(dataset)
    if share > BROKEN_CHAIN:
        yield Concern(
            f"in {share:.1%} of the rows the next observation is not the observation of the following row: the rows "
            "may be shuffled or episode ends missing, and sums over episodes would be meaningless",
            "sort the rows by episode and time, and mark the last row of each episode",
        )


def _behaviour(dataset: Dataset) -> Iterator[Concern]:
    alike = "one behaviour shows few alternatives to choose from, and nothing of what the others would have cost"
    more = "add rows of another controller or operator, or of one that was allowed to vary its actions"
    if dataset.source is not None and dataset.source.min() == dataset.source.max():
        yield Concern(f"all rows come from one source ('{dataset.source_names[dataset.source[0]]}'): {alike}", more)
    elif unexplained_action_share(dataset) < DETERMINISTIC:
        yield Concern(
            f"the actions are nearly a function of the observations, as if one policy had chosen them: {alike}", more
        )
    share = _saturated_share(dataset)
    if share > SATURATED:
        yield Concern(
            f"{share:.0%} of the action values lie at their bounds: check the bounds and the scale of the actions",
            "state the actuator's true bounds with --action-low and --action-high",
        )


def _rows(dataset: Dataset) -> Iterator[Concern]:
    constant = np.flatnonzero(dataset.observations.min(axis=0) == dataset.observations.max(axis=0))
    if len(constant):
        yield Concern(
            f"observations that never change: {', '.join(dataset.observation_names[index] for index in constant)}",
            "leave them out, or check that the sensor works",
        )
    for index in _poorly_resolved(dataset):
        values = dataset.observations[:, index]
        yield Concern(
            f"observation {dataset.observation_names[index]} lies between {values.min():.8g} and {values.max():.8g}: of "
            "such numbers float32 keeps about seven digits, so small changes are lost; subtract an offset before logging",
            "subtract a constant, such as the start time, from the column",
        )
    if (empty := _empty_rows_at_the_end(dataset)) >= EMPTY_ROWS:
        yield Concern(
            f"the last {empty} rows are 0 in every column: they may be room that was reserved and never written to",
            "check that the program that wrote the log ran to its end, and cut these rows off; if the plant did stand "
            "still at 0, nothing",
        )
    duplicates = _duplicate_share(dataset)
    if duplicates > DUPLICATES:
        yield Concern(
            f"{duplicates:.1%} of the rows repeat an earlier row exactly: part of the log may have been added twice",
            "look for a file that was read twice, and remove the copies",
        )


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


def _empty_rows_at_the_end(dataset: Dataset) -> int:
    """The number of rows after the last one with an observation, an action, a reward or a cost that is not 0."""
    for block in reversed(list(blocks(len(dataset)))):
        used = dataset.observations[block].any(axis=1) | dataset.actions[block].any(axis=1)
        used |= (dataset.rewards[block] != 0) | (dataset.costs[block] != 0)
        if used.any():
            last = int(block.start) + int(np.flatnonzero(used)[-1])
            return len(dataset) - 1 - last
    return len(dataset)


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
