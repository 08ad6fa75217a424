"""What `Pacer` and `Turns` share: policies that are told what their steps cost, and act with a network of the file."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.policy import Policy
from ringfence.errors import InvalidSetting, NonFiniteValue, WrongShape
from ringfence.values import is_number


def opened(policy: Policy | Artifact | str | Path) -> Policy:
    """A policy, or that of an artifact or a file."""
    if isinstance(policy, str | Path):
        return Policy.load(policy)
    return policy if isinstance(policy, Policy) else Policy(policy)


class Terms(NamedTuple):
    """What costs are counted against."""

    limit: float  # on the discounted cost
    horizon: float  # steps of an episode
    discount: float

    @property
    def pace(self) -> float:
        """A cost per step that stays at it adds up to the limit."""
        return self.limit * (1.0 - self.discount)

    @classmethod
    def of(cls, artifact: Artifact, limit: float | None, horizon: int | None) -> "Terms":
        """The file's, or `limit` and `horizon` where they are given."""
        return cls(
            require_positive("limit", artifact.limit if limit is None else limit),
            require_positive("horizon", artifact.horizon if horizon is None else horizon),
            require_positive("discount", artifact.discount),
        )


def numbers_of(given: Any, names: Sequence[str]) -> list[float] | None:
    """The numbers of these names in an entry of a policy's metadata; None if it is something else."""
    if not isinstance(given, Mapping) or not all(is_number(given.get(name)) for name in names):
        return None
    return [float(given[name]) for name in names]


def checked_observation(policy: Policy, observation: Any) -> np.ndarray:
    """One observation of the policy's size, of finite numbers."""
    seen = np.asarray(observation, np.float32)
    size = policy.observation_dim
    if seen.shape != (size,):
        raise WrongShape(
            f"a policy that is told its costs takes one observation of shape ({size},) at a time, not {seen.shape}"
        )
    if not np.isfinite(seen).all():
        raise NonFiniteValue(
            f"the observation is {np.array2string(seen, threshold=8)}; the policy needs finite numbers"
        )
    return seen


def checked_cost(cost: float | None) -> float:
    """What the step before cost."""
    known = isinstance(cost, int | float | np.number) and not isinstance(cost, bool)
    if not known or not 0.0 <= float(cost) < math.inf:  # type: ignore[arg-type]
        raise NonFiniteValue(
            f"the cost of the step before must be a number of at least 0, not {cost!r}: without it nothing can be counted"
        )
    return float(cost)  # type: ignore[arg-type]


def action_of(artifact: Artifact, network: str, seen: np.ndarray, gain: float = 1.0) -> np.ndarray:
    """tanh(gain x mean) of one of the file's actors, in the units of the plant."""
    with np.errstate(over="ignore", invalid="ignore"):  # the result is checked below
        squashed = np.tanh(gain * artifact.evaluate(network, seen).mean)
    if not np.isfinite(squashed).all():
        raise NonFiniteValue(f"the policy gives no action for the observation {np.array2string(seen, threshold=8)}")
    actions: np.ndarray = artifact.unscale_actions(squashed).astype(np.float32)
    return actions


def require_positive(name: str, value: float | None) -> float:
    if value is None or not is_number(value) or value <= 0:
        raise InvalidSetting(f"a {name} greater than 0 is needed, in the policy's file or given; not {value!r}")
    return float(value)
