"""Where and how a policy acts unlike those who wrote the log: on a sample of the log's own states."""

from dataclasses import dataclass

import numpy as np

from ringfence.data import Dataset
from ringfence.deploy import Artifact
from ringfence.reports.html.log_numbers import sources
from ringfence.reports.html.plots import thinned

ROWS = 3_000
BINS, FEWEST = 12, 5  # of each observation, by quantiles; rows of a bin
LARGEST, PER_EPISODE = 12, 2  # rows shown
NOTABLE = 0.1  # of an action's range: a change that an operator would notice


@dataclass(frozen=True)
class ActionChange:
    """One action, over the sampled rows, in the user's units."""

    name: str
    unit: str
    logged: float  # mean
    policy: float
    size: float  # mean of |change|
    relative: float  # the same as a share of the action's range
    notable: float  # share of the rows in which it changes by more than NOTABLE of its range


@dataclass(frozen=True)
class Profile:
    """An action against an observation, in bins of equally many rows."""

    observation: int
    action: int
    at: np.ndarray  # median of the observation in each bin
    logged: np.ndarray  # mean logged action
    low: np.ndarray  # its 10 % and 90 % quantiles
    high: np.ndarray
    policy: np.ndarray  # mean action of the policy

    @property
    def telling(self) -> float:
        """How much the change depends on this observation."""
        return float(np.std(self.policy - self.logged))


@dataclass(frozen=True)
class ChangedRow:
    row: int
    episode: int
    step: int
    source: str
    observation: np.ndarray
    logged: np.ndarray
    policy: np.ndarray
    relative: float  # largest change of an action, as a share of its range
    logged_cost: float | None  # what the cost critic expects after each
    policy_cost: float | None


@dataclass(frozen=True)
class Differences:
    rows: int
    actions: tuple[ActionChange, ...]
    profiles: tuple[Profile, ...]
    largest: tuple[ChangedRow, ...]
    foreign: float | None  # share of the policy's actions that its own detector calls foreign
    foreign_logged: float | None  # the same of the logged actions


def differences(log: Dataset, artifact: Artifact) -> Differences:
    rows = thinned(len(log), ROWS)
    observations, logged = log.observations[rows], log.actions[rows]
    policy = artifact.act(observations)
    scale = log.action_high - log.action_low
    relative = np.abs(policy - logged) / scale
    return Differences(
        rows=len(rows),
        actions=tuple(
            ActionChange(
                name,
                log.units.get(name, ""),
                float(logged[:, j].mean()),
                float(policy[:, j].mean()),
                float(np.abs(policy[:, j] - logged[:, j]).mean()),
                float(relative[:, j].mean()),
                float((relative[:, j] > NOTABLE).mean()),
            )
            for j, name in enumerate(log.action_names)
        ),
        profiles=tuple(
            profile(observations[:, i], logged[:, j], policy[:, j], i, j)
            for j in range(logged.shape[1])
            for i in range(observations.shape[1])
        ),
        largest=tuple(largest_changes(log, artifact, rows, policy, relative.max(1))),
        foreign=foreign_share(artifact, observations, policy),
        foreign_logged=foreign_share(artifact, observations, logged),
    )


def profile(values: np.ndarray, logged: np.ndarray, policy: np.ndarray, observation: int, action: int) -> Profile:
    """Bins hold equally many rows; those of a value that repeats fall together."""
    count = int(np.clip(len(values) // FEWEST, 1, BINS))
    edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)[1:-1]))
    member = np.searchsorted(edges, values, side="right")
    bins = [member == b for b in np.unique(member)]
    low, high = zip(*(np.quantile(logged[b], (0.1, 0.9)) for b in bins), strict=True)
    return Profile(
        observation,
        action,
        at=np.array([np.median(values[b]) for b in bins]),
        logged=np.array([logged[b].mean() for b in bins]),
        low=np.array(low),
        high=np.array(high),
        policy=np.array([policy[b].mean() for b in bins]),
    )


def largest_changes(
    log: Dataset, artifact: Artifact, rows: np.ndarray, policy: np.ndarray, relative: np.ndarray
) -> list[ChangedRow]:
    """The rows with the largest change, at most PER_EPISODE of an episode: neighbours in time are nearly the same row."""
    episodes = np.searchsorted(log.episode_ends, rows, side="right")
    chosen: list[int] = []
    taken: dict[int, int] = {}
    for i in np.argsort(-relative, kind="stable"):
        episode = int(episodes[i])
        if taken.get(episode, 0) < PER_EPISODE:
            taken[episode] = taken.get(episode, 0) + 1
            chosen.append(int(i))
        if len(chosen) == LARGEST:
            break
    codes, names = sources(log)
    observations = log.observations[rows[chosen]]
    before, after = (cost_to_go(artifact, observations, a) for a in (log.actions[rows[chosen]], policy[chosen]))
    return [
        ChangedRow(
            row=int(rows[i]),
            episode=int(episodes[i]),
            step=int(rows[i] - log.episode_starts[episodes[i]]),
            source=names[codes[rows[i]]] if log.source is not None else "",
            observation=log.observations[rows[i]],
            logged=log.actions[rows[i]],
            policy=policy[i],
            relative=float(relative[i]),
            logged_cost=None if before is None else float(before[k]),
            policy_cost=None if after is None else float(after[k]),
        )
        for k, i in enumerate(chosen)
    ]


def cost_to_go(artifact: Artifact, observations: np.ndarray, actions: np.ndarray) -> np.ndarray | None:
    """What the cost critic expects; None where there is none of observation and action."""
    critic = artifact.networks.get("cost")
    if critic is None or set(critic.inputs) - {"limit"} != {"observation", "action"}:
        return None
    return artifact.cost_to_go(observations, actions)


def foreign_share(artifact: Artifact, observations: np.ndarray, actions: np.ndarray) -> float | None:
    if artifact.detector_threshold is None or "encoder" not in artifact.networks:
        return None
    return float(np.mean(artifact.detector_score(observations, actions) >= artifact.detector_threshold))
