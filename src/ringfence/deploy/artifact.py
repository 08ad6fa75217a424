"""`Artifact`: what training leaves. NumPy and safetensors only."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ringfence.deploy import artifact_file, validation
from ringfence.deploy.actors import KINDS, Model
from ringfence.deploy.artifact_file import RANGES, SCALING
from ringfence.deploy.network import Gaussian, Network, kl_to_standard
from ringfence.deploy.noise import Noise
from ringfence.errors import InvalidSetting, UnknownName, WouldOverwrite
from ringfence.files import atomic_write
from ringfence.limits import scaled_to_range

FACTS = ("limit", "discount", "horizon", "steps_done", "steps_planned", "method", "seed")


@dataclass(frozen=True, eq=False, repr=False)
class Artifact:
    """The named networks that training leaves, with all that is needed to run them in the user's own units.

    `kind` says how the policy acts (a key of `ringfence.deploy.KINDS`); `networks` describes each network and `tensors`
    holds their layers (`NAME.i.weight`, `NAME.i.bias`) and what else the kind needs. Observations are normalised by
    `observation_mean` and `observation_std`; actions in [-1, 1] are scaled to `action_low` ... `action_high`.
    Everything is checked when an artifact is made or loaded. Its fields, arrays and mappings are read-only.
    """

    kind: str
    networks: Mapping[str, Network]
    tensors: Mapping[str, np.ndarray]
    observation_mean: np.ndarray
    observation_std: np.ndarray
    action_low: np.ndarray
    action_high: np.ndarray
    observation_names: tuple[str, ...] = ()  # obs_0, obs_1, ... if not given
    action_names: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)  # of a named column, of "rewards" or of "costs"
    observation_low: np.ndarray | None = None  # the range of each column in the log
    observation_high: np.ndarray | None = None
    limit: float | None = None  # bound on the expected discounted cost
    limit_range: tuple[float, float] | None = None  # of a limit-conditioned policy: the limits it was trained for
    discount: float | None = None
    horizon: int | None = None  # steps of the log's longest episode
    steps_done: int | None = None  # of the policy stage
    steps_planned: int | None = None
    method: str | None = None
    seed: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)  # a JSON object: log, fingerprint, version, task, ...

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("networks", MappingProxyType(dict(self.networks)))
        put("tensors", MappingProxyType({name: _read_only(value) for name, value in self.tensors.items()}))
        for name in SCALING:
            put(name, validation.vector(name, getattr(self, name)))
        for name in RANGES:
            if getattr(self, name) is not None:
                put(name, validation.vector(name, getattr(self, name)))
        put("observation_names", self.observation_names or tuple(f"obs_{i}" for i in range(self.observation_dim)))
        put("action_names", self.action_names or tuple(f"action_{i}" for i in range(self.action_dim)))
        for name in ("observation_names", "action_names"):
            put(name, tuple(getattr(self, name)))
        put("units", MappingProxyType(dict(self.units)))
        if self.limit_range is not None:
            put("limit_range", tuple(self.limit_range))
        put("metadata", MappingProxyType(validation.json_object(self.metadata)))
        validation.check(self)

    @property
    def observation_dim(self) -> int:
        return len(self.observation_mean)

    @property
    def action_dim(self) -> int:
        return len(self.action_low)

    @property
    def finished(self) -> bool | None:
        """Whether training made all the steps that were planned; None if the file does not say."""
        if self.steps_done is None or self.steps_planned is None:
            return None
        return self.steps_done >= self.steps_planned

    @property
    def has_policy(self) -> bool:
        return KINDS[self.kind].act is not None

    @cached_property
    def takes_limit(self) -> bool:
        """Whether a network has the limit as an input, so that it can be given at run time."""
        return any("limit" in network.inputs for network in self.networks.values())

    @property
    def facts(self) -> dict[str, Any]:
        """What is known of the training, with the metadata, in one dictionary."""
        known = {name: getattr(self, name) for name in FACTS if getattr(self, name) is not None}
        return {**known, **self.metadata}

    # Running it

    def act(self, observations: Any, noise: Noise | None = None, limit: float | None = None) -> np.ndarray:
        """Actions in the user's units (batch, act) of observations (batch, obs): the policy's, without its checks."""
        actor = KINDS[self.kind].act
        if actor is None:
            raise InvalidSetting(f"this artifact of {self.method or 'training'} holds values and no policy")
        actions = actor(self.model(limit=limit), self.normalise(observations), noise)
        in_units: np.ndarray = self.unscale_actions(actions)
        return in_units

    def evaluate(
        self,
        name: str,
        observations: Any,
        actions: Any = None,
        *,
        latents: Any = None,
        limit: Any = None,
        time: Any = None,
    ) -> Any:
        """The outputs of one network for inputs in the user's units: values of shape (batch,), numbers in [-1, 1], or a
        `Gaussian` of (mean, log_std). One row of an input goes with every row of the others; where the observation and all
        other inputs are a single row, so is what is returned."""
        if name not in self.networks:
            raise UnknownName(f"the artifact has no network {name!r}; it has {', '.join(self.networks) or 'none'}")
        given = {"observation": observations, "action": actions, "latent": latents, "time": time}
        rows = {}
        for wanted in self.networks[name].inputs:
            if wanted == "limit":
                continue
            if given[wanted] is None:
                raise InvalidSetting(
                    f"network {name!r} takes {', '.join(self.networks[name].inputs)}; {wanted} is missing"
                )
            rows[wanted] = self._input(wanted, given[wanted])
        count = validation.common_count(rows)
        rows = {key: np.broadcast_to(part, (count, part.shape[-1])) for key, part in rows.items()}
        blind = limit is None and "limit" not in self.networks[name].inputs  # no network takes the limit
        model = Model(self.networks, self.tensors) if blind else self.model(limit=limit)
        found = model.run(name, **rows)
        if count > 1 or np.ndim(observations) > 1:
            return found
        return Gaussian(*(part[0] for part in found)) if isinstance(found, Gaussian) else found[0]

    def cost_to_go(self, observations: Any, actions: Any = None, **inputs: Any) -> np.ndarray:
        """The cost critic's expected discounted cost from each state, for these actions or else the policy's own."""
        actions = self._own(observations, inputs.get("limit")) if actions is None else actions
        found: np.ndarray = self.evaluate("cost", observations, actions, **inputs)
        return found

    def return_to_go(self, observations: Any, actions: Any = None, **inputs: Any) -> np.ndarray:
        """The expected discounted return, by the smallest of the reward critics."""
        actions = self._own(observations, inputs.get("limit")) if actions is None else actions
        critics = [name for name in self.networks if name in ("reward", "reward_1", "reward_2")]
        if not critics:
            raise UnknownName(f"the artifact has no reward critic; it has {', '.join(self.networks) or 'none'}")
        values: np.ndarray = np.min([self.evaluate(name, observations, actions, **inputs) for name in critics], axis=0)
        return values

    def detector_score(self, observations: Any, actions: Any) -> np.ndarray:
        """KL(q(z | s, a) || N(0, 1)) of the detector: large where the log has little like (s, a)."""
        found: np.ndarray = kl_to_standard(self.evaluate("encoder", observations, actions))
        return found

    @property
    def detector_threshold(self) -> float | None:
        """d: pairs whose score reaches it are out of the log's distribution; None without a detector."""
        return float(self.tensors["threshold"][0]) if "threshold" in self.tensors else None

    def model(self, xp: Any = np, limit: Any = None) -> Model:
        """The networks, ready to run in NumPy or, with `xp=jax.numpy`, inside a JAX program."""
        scaled = self.scaled_limit(limit)
        context = {} if scaled is None else {"limit": np.full(1, scaled, np.float32)}
        return Model(self.networks, self.tensors, xp, context)

    def scaled_limit(self, limit: Any = None) -> float | None:
        """A limit, or else the artifact's own, as its networks take it: from -1 to 1 over the range of the training. None
        if no network takes one."""
        if not self.takes_limit:
            if limit is None:
                return None
            raise InvalidSetting(
                f"this policy cannot be given a limit at run time: it was trained for {self.limit}; train one for each limit"
            )
        limit = self.limit if limit is None else limit
        least, greatest = self.limit_range or (0.0, 0.0)
        if limit is None:
            raise InvalidSetting(
                f"this policy was trained for every limit from {least:g} to {greatest:g}: say which with limit=... (--limit)"
            )
        if not least <= float(limit) <= greatest:
            raise InvalidSetting(
                f"the limit must lie between {least:g} and {greatest:g}, where it was trained, not {limit}"
            )
        scaled: float = scaled_to_range(float(limit), (least, greatest))
        return scaled

    def at_limit(self, limit: float | None) -> "Artifact":
        """The same networks with this limit wherever none is given: then a policy for a range of limits can be used like one
        that was trained for a single limit. An artifact that takes no limit is returned as it is."""
        if not self.takes_limit:
            return self
        self.scaled_limit(limit)  # refuses one that it was not trained for
        return self if limit is None else replace(self, limit=float(limit))

    def normalise(self, observations: Any) -> Any:
        return (observations - self.observation_mean) / self.observation_std

    def scale_actions(self, actions: Any) -> Any:
        """Actions in the user's units to [-1, 1]."""
        return np.clip(2.0 * (actions - self.action_low) / (self.action_high - self.action_low) - 1.0, -1.0, 1.0)

    def unscale_actions(self, actions: Any, xp: Any = np) -> Any:
        """Actions in [-1, 1] to the user's units, by NumPy or `xp=jax.numpy`; rounding moves none out of the bounds."""
        return xp.clip(self.action_centre + self.action_half_range * actions, self.action_low, self.action_high)

    @cached_property
    def action_centre(self) -> np.ndarray:
        return _read_only((self.action_high + self.action_low) / 2)

    @cached_property
    def action_half_range(self) -> np.ndarray:
        return _read_only((self.action_high - self.action_low) / 2)

    def _input(self, name: str, value: Any) -> np.ndarray:
        width = {"observation": self.observation_dim, "action": self.action_dim, "time": 1}.get(name)
        rows = np.asarray(value, np.float32)
        rows = np.reshape(rows, (-1, 1)) if name == "time" else np.atleast_2d(rows)
        validation.rows(name, rows, width)
        if name == "observation":
            rows = self.normalise(rows)
        if name == "action":
            rows = self.scale_actions(rows)
        return rows / np.float32(self.horizon or 1) if name == "time" else rows

    def _own(self, observations: Any, limit: float | None) -> np.ndarray:
        rows = np.atleast_2d(np.asarray(observations, np.float32))
        return self.act(rows, limit=limit if self.takes_limit else None)

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
        """The file's content; equal artifacts give equal bytes."""
        return artifact_file.content_of(self)

    @cached_property
    def checksum(self) -> str:
        """sha256 of everything in the file: header and tensors."""
        return artifact_file.checksum_of(artifact_file.header_of(self), artifact_file.tensors_of(self))

    @classmethod
    def load(cls, path: str | Path) -> "Artifact":
        """Read a file that `save` wrote, of this version or of version 1; `ForeignPolicy` if it is anything else, or not
        as it was written."""
        return artifact_file.read(Path(path))

    def __repr__(self) -> str:
        return f"Artifact({self.kind!r}, {self.observation_dim} -> {self.action_dim}, {_progress(self)}{self.facts})"


def _read_only(value: Any) -> np.ndarray:
    array = np.array(value, np.float32)
    array.flags.writeable = False
    return array


def _progress(artifact: Artifact) -> str:
    if artifact.finished is None or artifact.finished:
        return ""
    return f"unfinished: {artifact.steps_done} of {artifact.steps_planned} steps, "
