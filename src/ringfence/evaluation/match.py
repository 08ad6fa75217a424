"""Whether a simulated task means the same by its numbers as the log that a policy was learned from."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ringfence.deploy import Artifact
from ringfence.evaluation.episodes import Episode

FAR = 0.5  # of a column's range in the log: so far outside it lie no states of the same plant, if they are not rare
USUAL = 0.5  # of the simulated steps
BEYOND = 0.05  # of the range of an action; bounds that are taken from logs of the same plant differ a little
SHOWN = 3  # columns


def doubts(artifact: Artifact, episodes: list[Episode], action_space: Any) -> list[str]:
    """A sentence if most simulated observations lie far outside the log's range, as in other units, and one if the
    policy's action bounds reach beyond the task's."""
    return _other_observations(artifact, episodes) + _other_bounds(artifact, action_space)


def _other_observations(artifact: Artifact, episodes: list[Episode]) -> list[str]:
    low, high = artifact.observation_low, artifact.observation_high
    if low is None or high is None:
        return []
    seen = np.concatenate([episode.observations for episode in episodes])
    rounding = 1e-6 * np.maximum(np.abs(low), np.abs(high))  # of a column that never changes in the log
    beyond = np.maximum(seen - high, low - seen) > FAR * (high - low) + rounding
    columns = np.flatnonzero(beyond.mean(0) > USUAL)
    if not len(columns):
        return []
    named = artifact.observation_names
    words = ", ".join(
        f"{named[i] if named else f'column {i}'}: {np.median(seen[:, i]):.4g} in the median, {low[i]:.4g} to {high[i]:.4g} "
        "in the log"
        for i in columns[:SHOWN]
    )
    more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
    return [
        f"simulated observations are far outside the log's ({words}{more}): the policy has left the states of its log, or "
        "the task is another plant or has other units"
    ]


def _other_bounds(artifact: Artifact, action_space: Any) -> list[str]:
    names = artifact.action_names or [f"action {i}" for i in range(artifact.action_dim)]
    beyond = beyond_bounds(artifact, action_space.low, action_space.high, names)
    return (
        [f"the policy's action bounds reach beyond the task's, to which its actions are clipped: {beyond}"]
        if beyond
        else []
    )


def beyond_bounds(artifact: Artifact, low: np.ndarray, high: np.ndarray, names: Sequence[str]) -> str:
    """Which actions of a policy may lie far outside these bounds, by name, with both ranges; empty if none may."""
    slack = BEYOND * (artifact.action_high - artifact.action_low)
    beyond = (artifact.action_low < low - slack) | (artifact.action_high > high + slack)
    return ", ".join(
        f"{names[i]} [{artifact.action_low[i]:g}, {artifact.action_high[i]:g}] / [{low[i]:g}, {high[i]:g}]"
        for i in np.flatnonzero(beyond)[:SHOWN]
    )
