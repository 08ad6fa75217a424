"""What a method is: a frozen dataclass of hyper-parameters with pure functions over a state that is a pytree.

`algorithms` knows nothing of files, environments, progress bars or policy files. Observations arrive normalised and actions
scaled to [-1, 1]; the training loop does both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.batches import Batch, Sample, Sampler, Transitions
from ringfence.data.dataset import Dataset

State = Any  # a method's own pytree
Metrics = dict[str, Float[Array, ""]]
Update = Callable[[State, Any, PRNGKeyArray], tuple[State, Metrics]]
LAST_STAGES = ("policy", "value")  # a learner's last one: verdicts and reports look for "policy"; "value" has none


@dataclass(frozen=True)
class Spec:
    """What a method may know of the log before it sees a batch."""

    observation_dim: int
    action_dim: int
    mean_reward: float = 0.0
    mean_reward_size: float = 0.0  # of |r|
    mean_cost: float = 0.0
    horizon: int = 0  # steps of the longest episode
    terminated: float = 0.0  # share of the episodes that terminated


@dataclass(frozen=True)
class Stage:
    """A part of training: `update` runs `steps` times; then `finish`, if any, runs once on a large batch.

    `sampler` says what the stage draws: `Transitions` of the method's batch size, unless it is given."""

    name: str
    steps: int
    update: Update
    finish: Update | None = None
    sampler: Sampler | None = None


class Export(NamedTuple):
    """What a method leaves of a trained state; the training loop makes a `ringfence.deploy.Artifact` of it.

    `kind` says how the policy acts, one of `ringfence.deploy.KINDS`; "values" is a learner's that has no policy.
    `networks` are modules of `ringfence.networks`, or `Described` where the class does not say what the inputs and outputs
    mean. `tensors` are what else the kind needs and what is worth keeping; a single number is an array of one.
    `limit_range` is given by methods that have the limit as an input of a network; `facts` are kept with the policy as they
    are, in its metadata."""

    kind: str
    networks: Mapping[str, Any]
    tensors: Mapping[str, Any] = {}
    limit_range: tuple[float, float] | None = None
    facts: Mapping[str, Any] = {}


class Learner(Protocol):
    """What the training loop asks of everything that learns from a log, whether it has a policy or not.

    Three attributes are looked for and need not be there: `default_steps`, the number of steps of a run that gives none
    (else `steps.STEPS`); `depends_on_steps`, true if a run cannot go on for longer because all of its training depends on
    the number of steps; and `limits`, the least and the greatest limit if one policy learns for all of them."""

    name: ClassVar[str]
    shown: ClassVar[tuple[str, ...]]  # the metrics worth showing while it trains, in this order

    def __hash__(self) -> int: ...
    @property
    def limit(self) -> float | None: ...
    @property
    def discount(self) -> float: ...
    @property
    def batch_size(self) -> int: ...

    def init(self, key: PRNGKeyArray, limit: Float[Array, ""], spec: Spec) -> State:
        """The state before training. The limit lives in it, so that a sweep over limits is one program."""

    def stages(self, steps: int) -> tuple[Stage, ...]:
        """The stages in order; `steps` is the length of the last one, which is called "policy", or "value" if the learner
        has no policy."""

    def diagnose(self, state: State, sample: Sample, key: PRNGKeyArray) -> Metrics:
        """What to look at between updates, measured on a fixed part of the log."""

    def warnings(self, stage: str, history: list[Mapping[str, float]]) -> list[str]:
        """What the user should be told about a run, in plain words, given the stage's metrics so far."""


@runtime_checkable
class Exports(Protocol):
    """A learner that leaves trained networks."""

    def export(self, state: State) -> Export:
        """The trained networks, and how the policy acts with them."""


class PolicyLearner(Learner, Exports, Protocol):
    """A method: a learner that leaves a policy."""

    small: ClassVar[Mapping[str, Any]]  # settings with which it learns the contract test's log in seconds


@runtime_checkable
class RestrictsLog(Protocol):
    """A method that learns from a part of the log only."""

    def restrict(self, dataset: Dataset, limits: Sequence[float]) -> Dataset:
        """The part of the log that members with these limits learn from; all of them share it."""


@runtime_checkable
class AddsColumns(Protocol):
    """A learner that needs numbers for each row that the log does not have, such as the actions of a policy."""

    def columns(self, dataset: Dataset) -> Mapping[str, np.ndarray]:
        """Arrays of (rows, columns), found in a batch as `batch.extras`."""


def sampler_of(learner: Learner, stage: Stage) -> Sampler:
    return stage.sampler or Transitions(learner.batch_size)


__all__ = [
    "AddsColumns",
    "Batch",
    "Export",
    "Exports",
    "Learner",
    "Metrics",
    "PolicyLearner",
    "RestrictsLog",
    "Sample",
    "Sampler",
    "Spec",
    "Stage",
    "State",
    "Transitions",
    "Update",
    "sampler_of",
]
