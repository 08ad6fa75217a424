"""`Policy`: observations in, actions out, in the user's own units. NumPy and safetensors only."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.noise import Noise
from ringfence.deploy.single import single_actor
from ringfence.deploy.version1 import bare_artifact
from ringfence.errors import InvalidSetting, NonFiniteValue, WrongShape


class Policy:
    """The policy of an artifact. It needs neither the dataset nor the code that trained it.

    >>> import numpy as np
    >>> tensors = {"actor.0.weight": np.zeros((2, 2)), "actor.0.bias": np.zeros(2)}
    >>> policy = Policy.from_tensors("tanh-gaussian", tensors, [0, 0], [1, 1], [0], [4], {"limit": 30})
    >>> policy(np.array([0.5, -0.5]))
    array([2.], dtype=float32)
    """

    def __init__(self, artifact: Artifact):
        if not artifact.has_policy:
            raise InvalidSetting(f"this artifact of {artifact.method or 'training'} holds values and no policy")
        self.artifact = artifact
        self._single = single_actor(artifact)

    @classmethod
    def from_tensors(
        cls,
        kind: str,
        tensors: Mapping[str, Any],
        observation_mean: Any,
        observation_std: Any,
        action_low: Any,
        action_high: Any,
        metadata: Mapping[str, Any] | None = None,
    ) -> "Policy":
        """A policy of the networks that its kind needs and nothing else."""
        scaling = (observation_mean, observation_std, action_low, action_high)
        return cls(bare_artifact(kind, tensors, *scaling, metadata))

    def __call__(
        self, observations: Any, *, limit: float | None = None, deterministic: bool = True, rng: Noise | None = None
    ) -> np.ndarray:
        """The action of one observation `(obs,)`, or the actions of a batch `(batch, obs)`.

        `limit` is for policies that were trained for a range of limits. With `deterministic=False` the action is
        sampled, from `rng` if given."""
        batch = self._checked(observations)
        with np.errstate(over="ignore", invalid="ignore"):  # the result is checked below
            if batch.ndim == 1 and deterministic:
                actions = self.act_unchecked(batch, limit=limit)
            else:
                noise = None if deterministic else (np.random.default_rng() if rng is None else rng)
                actions = self.artifact.act(np.atleast_2d(batch), noise, limit)
                actions = actions[0] if batch.ndim == 1 else actions
        finite = math.isfinite(sum(actions.tolist())) if batch.ndim == 1 else bool(np.isfinite(actions).all())
        if not finite:  # of few numbers, Python's sum is the quicker check
            raise _overflow(batch, actions)
        return actions

    def act_unchecked(self, observation: np.ndarray, *, limit: float | None = None) -> np.ndarray:
        """The deterministic action of one observation that is known to be a finite float32 vector of the right size."""
        if self._single is not None:
            return self._single(observation, limit)
        action: np.ndarray = self.artifact.act(observation[None], None, limit)[0]
        return action

    def at_limit(self, limit: float | None) -> "Policy":
        """This policy with a limit that need not be given again, see `Artifact.at_limit`."""
        own = self.artifact.at_limit(limit)
        return self if own is self.artifact else type(self)(own)

    def reset(self) -> None:
        """Say that an episode begins. Policies without memory, which all are today, do nothing."""

    def _checked(self, observations: Any) -> np.ndarray:
        batch = np.asarray(observations, np.float32)
        n = self.observation_dim
        if batch.ndim not in (1, 2) or batch.shape[-1] != n:
            raise WrongShape(f"the policy takes observations of shape ({n},) or (batch, {n}), not {batch.shape}")
        if not np.isfinite(batch).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(batch))[0])
            raise NonFiniteValue(f"observation{list(where)} is {batch[where]}; the policy needs finite numbers")
        return batch

    # What the artifact says

    @property
    def kind(self) -> str:
        return self.artifact.kind

    @property
    def tensors(self) -> Mapping[str, np.ndarray]:
        return self.artifact.tensors

    @property
    def metadata(self) -> dict[str, Any]:
        """What is known of its training: limit, discount, method, seed, steps done and planned, log, version, ..."""
        return self.artifact.facts

    @property
    def observation_dim(self) -> int:
        return self.artifact.observation_dim

    @property
    def action_dim(self) -> int:
        return self.artifact.action_dim

    @property
    def checksum(self) -> str:
        return self.artifact.checksum

    def to_bytes(self) -> bytes:
        return self.artifact.to_bytes()

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write the whole artifact as one safetensors file, all or nothing."""
        return self.artifact.save(path, overwrite)

    @classmethod
    def load(cls, path: str | Path) -> "Policy":
        """Read a file that `save` wrote; `ForeignPolicy` if it is anything else, or not as it was written."""
        return cls(Artifact.load(path))

    def __repr__(self) -> str:
        return repr(self.artifact).replace("Artifact", "Policy", 1)


def _overflow(observations: np.ndarray, actions: np.ndarray) -> NonFiniteValue:
    rows = observations if observations.ndim == 2 else observations[None]
    row = int(np.flatnonzero(~np.isfinite(np.atleast_2d(actions)).all(1))[0])
    which = f" [{row}]" if observations.ndim == 2 else ""
    return NonFiniteValue(
        f"the policy's numbers leave float32 for observation{which}, {np.array2string(rows[row], threshold=8)}: its action "
        "would not be a number. Check the observation's units, or whether this is the policy that was trained"
    )
