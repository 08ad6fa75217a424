"""What a method is: a frozen dataclass of hyper-parameters with pure functions over a state that is a pytree.

`algorithms` knows nothing of files, environments or progress bars. Observations arrive normalised and actions
scaled to [-1, 1]; the training loop does both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.data.dataset import Dataset

State = Any  # a method's own pytree
Metrics = dict[str, Float[Array, ""]]


class Batch(NamedTuple):
    """Transitions (s, a, r, c, s'), whether the episode goes on after them, and states that episodes start in.

    `continues` is 0 where the episode terminated, which masks every bootstrap. A truncated episode would have gone
    on, so it is 1 there. `starts` are drawn apart from the transitions, for averages over the initial distribution;
    a method that does not use them does not pay for them."""

    observations: Float[Array, "batch obs"]
    actions: Float[Array, "batch act"]
    rewards: Float[Array, " batch"]
    costs: Float[Array, " batch"]
    next_observations: Float[Array, "batch obs"]
    continues: Float[Array, " batch"]
    starts: Float[Array, "starts obs"]


class Sample(NamedTuple):
    """A fixed part of the log for diagnostics, with what really followed each row (discounted, within its episode)."""

    batch: Batch
    cost_to_go: Float[Array, " batch"]
    return_to_go: Float[Array, " batch"]

    @property
    def starts(self) -> Float[Array, "starts obs"]:
        """States that logged episodes start in."""
        return self.batch.starts


@dataclass(frozen=True)
class Spec:
    """What a method may know of the log before it sees a batch."""

    observation_dim: int
    action_dim: int
    least_reward: float = 0.0
    mean_reward: float = 0.0
    mean_reward_size: float = 0.0  # of |r|
    mean_cost: float = 0.0


class Export(NamedTuple):
    """What a method leaves of a trained state; the training loop makes a `ringfence.deploy.Artifact` of it.

    `kind` says how the policy acts, one of `ringfence.deploy.KINDS`. `networks` are modules of `ringfence.networks`, or
    `Described` where the class does not say what the inputs and outputs mean. `tensors` are what else the kind needs and
    what is worth keeping; a single number is an array of one. `limit_range` is given by methods that have the limit as an
    input of a network."""

    kind: str
    networks: Mapping[str, Any]
    tensors: Mapping[str, Any] = {}
    limit_range: tuple[float, float] | None = None


Update = Callable[[State, Batch, PRNGKeyArray], tuple[State, Metrics]]


@dataclass(frozen=True)
class Stage:
    """A part of training: `update` runs `steps` times; then `finish`, if any, runs once on a large batch."""

    name: str
    steps: int
    update: Update
    finish: Update | None = None


class Method(Protocol):
    """What the training loop asks of every method."""

    name: ClassVar[str]

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
        """The stages in order; `steps` is the length of the last one, where the policy is learned."""

    def diagnose(self, state: State, sample: Sample, key: PRNGKeyArray) -> Metrics:
        """What to look at between updates, measured on a fixed part of the log."""

    def export(self, state: State) -> Export:
        """The trained networks and how the policy acts."""

    def warnings(self, stage: str, history: list[Mapping[str, float]]) -> list[str]:
        """What a person should be told about a run, in plain words, given the stage's metrics so far."""


@runtime_checkable
class RestrictsLog(Protocol):
    """What a method has besides if it learns from a part of the log only."""

    def restrict(self, dataset: Dataset, limits: Sequence[float]) -> Dataset:
        """The part of the log that members with these limits learn from; all of them share it."""
