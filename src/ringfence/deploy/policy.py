"""`Policy`: observations in, actions out, in the person's own units. NumPy and safetensors only."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from ringfence.deploy.actors import ACTORS, Noise
from ringfence.errors import ForeignPolicy, InvalidSetting, NonFiniteValue, UnknownName, WouldOverwrite, WrongShape
from ringfence.files import atomic_write

FORMAT, FORMAT_VERSION = "ringfence-policy", "1"
SCALING = ("observation_mean", "observation_std", "action_low", "action_high")


class Policy:
    """A policy that needs neither the dataset nor the code that trained it.

    `kind` names the actor (a key of `ACTORS`) that reads `tensors`. Observations are normalised by
    `observation_mean` and `observation_std` before the actor sees them; its actions in [-1, 1] are scaled to
    `action_low` ... `action_high`. `metadata` is any JSON: limit, discount, method, task, seed, version ...

    >>> import numpy as np
    >>> tensors = {"actor.0.weight": np.zeros((2, 2)), "actor.0.bias": np.zeros(2)}
    >>> policy = Policy("tanh-gaussian", tensors, [0, 0], [1, 1], [0], [4], {"limit": 30})
    >>> policy(np.array([0.5, -0.5]))
    array([2.], dtype=float32)
    """

    def __init__(
        self,
        kind: str,
        tensors: Mapping[str, np.ndarray],
        observation_mean: Any,
        observation_std: Any,
        action_low: Any,
        action_high: Any,
        metadata: Mapping[str, Any] | None = None,
    ):
        if kind not in ACTORS:
            raise UnknownName(f"no kind of policy is called {kind!r}; there are {', '.join(ACTORS)}")
        self.kind = kind
        self.tensors = {name: np.asarray(value, np.float32) for name, value in tensors.items()}
        self.observation_mean = _vector("observation_mean", observation_mean)
        self.observation_std = _vector("observation_std", observation_std)
        self.action_low = _vector("action_low", action_low)
        self.action_high = _vector("action_high", action_high)
        self.metadata = dict(metadata or {})
        if self.observation_mean.shape != self.observation_std.shape or not (self.observation_std > 0).all():
            raise InvalidSetting("observation_std must be positive and as long as observation_mean")
        if self.action_low.shape != self.action_high.shape or not (self.action_low < self.action_high).all():
            raise InvalidSetting("action_low must lie below action_high, joint by joint")

    @property
    def observation_dim(self) -> int:
        return len(self.observation_mean)

    @property
    def action_dim(self) -> int:
        return len(self.action_low)

    def __call__(
        self, observations: Any, *, deterministic: bool = True, rng: Noise | None = None
    ) -> Float[np.ndarray, "*batch act"]:
        """The action of one observation `(obs,)`, or the actions of a batch `(batch, obs)`.

        With `deterministic=False` the action is sampled, from `rng` if given."""
        batch = self._checked(observations)
        noise = None if deterministic else (np.random.default_rng() if rng is None else rng)
        normalised = (np.atleast_2d(batch) - self.observation_mean) / self.observation_std
        actions = ACTORS[self.kind](self.tensors, normalised, noise)
        centre, half_range = ((self.action_high + self.action_low) / 2, (self.action_high - self.action_low) / 2)
        scaled: np.ndarray = np.clip(centre + half_range * actions, self.action_low, self.action_high)
        return scaled[0] if batch.ndim == 1 else scaled

    def _checked(self, observations: Any) -> Float[np.ndarray, "*batch obs"]:
        batch = np.asarray(observations, np.float32)
        if batch.ndim not in (1, 2) or batch.shape[-1] != self.observation_dim:
            n = self.observation_dim
            raise WrongShape(f"the policy takes observations of shape ({n},) or (batch, {n}), not {batch.shape}")
        if not np.isfinite(batch).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(batch))[0])
            raise NonFiniteValue(f"observation{list(where)} is {batch[where]}; the policy needs finite numbers")
        return batch

    # The file

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write one safetensors file, all or nothing."""
        path = Path(path)
        if path.exists() and not overwrite:
            raise WouldOverwrite(f"{path} exists already; choose another name or pass overwrite=True")
        content = self.to_bytes()
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        return path

    def to_bytes(self) -> bytes:
        tensors = self.tensors | {name: getattr(self, name) for name in SCALING}
        header = self._header() | {"sha256": self.checksum}
        return bytes(to_safetensors({k: np.ascontiguousarray(v) for k, v in tensors.items()}, metadata=header))

    @property
    def checksum(self) -> str:
        """sha256 of everything in the file: header and tensors, independent of their order."""
        tensors = self.tensors | {name: getattr(self, name) for name in SCALING}
        digest = hashlib.sha256(json.dumps(self._header(), sort_keys=True).encode())
        for name in sorted(tensors):
            digest.update(f"{name}{tensors[name].shape}".encode())
            digest.update(np.ascontiguousarray(tensors[name], "<f4").tobytes())
        return digest.hexdigest()

    def _header(self) -> dict[str, str]:
        try:
            metadata = json.dumps(self.metadata, sort_keys=True)
        except TypeError as error:
            raise InvalidSetting(f"a policy's metadata must be JSON: {error}") from error
        return {"format": FORMAT, "format_version": FORMAT_VERSION, "kind": self.kind, "metadata": metadata}

    @classmethod
    def load(cls, path: str | Path) -> "Policy":
        """Read a file that `save` wrote; `ForeignPolicy` if it is anything else, or not as it was written."""
        path = Path(path)
        header, tensors = _read(path)
        if header.get("format") != FORMAT:
            raise ForeignPolicy(f"{path} is not a ringfence policy: its header does not say {FORMAT!r}")
        if header.get("format_version") != FORMAT_VERSION or header.get("kind") not in ACTORS:
            raise ForeignPolicy(
                f"{path} is a policy of format {header.get('format_version')} and kind {header.get('kind')!r}; this "
                f"ringfence reads format {FORMAT_VERSION} and {', '.join(ACTORS)}. Was it written by a newer one?"
            )
        try:
            mean, std, low, high = (tensors.pop(name) for name in SCALING)
            policy = cls(header["kind"], tensors, mean, std, low, high, json.loads(header["metadata"]))
        except (KeyError, ValueError, InvalidSetting, WrongShape) as error:
            raise ForeignPolicy(f"{path} is damaged: {error}") from error
        if header.get("sha256") != policy.checksum:
            raise ForeignPolicy(f"{path} is damaged: its checksum does not match; fetch or make it again")
        return policy

    def __repr__(self) -> str:
        return f"Policy({self.kind!r}, {self.observation_dim} -> {self.action_dim}, {self.metadata})"


def _vector(name: str, value: Any) -> Float[np.ndarray, " n"]:
    vector = np.asarray(value, np.float32)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise WrongShape(f"{name} must be a vector of finite numbers, not of shape {vector.shape}: {vector}")
    return vector


def _read(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    if not path.is_file():
        raise ForeignPolicy(f"there is no policy file {path}")
    try:
        with safe_open(path, framework="np") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ForeignPolicy(f"{path} is not a ringfence policy, or is truncated: {error}") from error
    if wrong := [name for name, tensor in tensors.items() if tensor.dtype != np.float32]:
        raise ForeignPolicy(f"{path} is not a ringfence policy: tensor {wrong[0]!r} is not float32")
    return header, tensors
