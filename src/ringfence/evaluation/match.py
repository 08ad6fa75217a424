"""Whether a simulated task means the same by its numbers as the log that a policy was learned from."""

from typing import Any

import numpy as np

from ringfence.deploy import Artifact
from ringfence.evaluation.episodes import Episode

FAR = 0.5  # of a column's range in the log: so far outside it lie no states of the same plant, if they are not rare
USUAL = 0.5  # of the simulated steps
ALIKE = 0.01  # of an action's range: bounds that differ by less are the same
SHOWN = 3  # columns


def doubts(artifact: Artifact, episodes: list[Episode], action_space: Any) -> list[str]:
    """A sentence if most simulated observations lie far outside the log's range, as in other units, and one if the task's
    actions have other bounds than the policy's."""
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
    own, given = (artifact.action_low, artifact.action_high), (action_space.low, action_space.high)
    room = ALIKE * (artifact.action_high - artifact.action_low)
    apart = np.flatnonzero(np.any([np.abs(a - b) > room for a, b in zip(own, given, strict=True)], 0))
    words = ", ".join(
        f"[{own[0][i]:g}, {own[1][i]:g}] and [{given[0][i]:g}, {given[1][i]:g}] of "
        f"{artifact.action_names[i] if artifact.action_names else f'action {i}'}"
        for i in apart[:SHOWN]
    )
    return [f"the policy and the task have other bounds of the actions: {words}"] if words else []
