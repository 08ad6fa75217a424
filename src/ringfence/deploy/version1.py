"""Policy files of version 1: an actor's kind and tensors, without a description of its networks."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ringfence.deploy.actors import KINDS
from ringfence.deploy.artifact import Artifact
from ringfence.deploy.artifact_file import SCALING, checksum_of
from ringfence.deploy.network import layer_count
from ringfence.deploy.validation import strict_json
from ringfence.errors import InvalidSetting, UnknownName
from ringfence.values import is_number

# What version 1 kept in the metadata and has a field of its own now
LIFTED: dict[str, Any] = {"limit": is_number, "discount": is_number, "method": lambda v: isinstance(v, str)}


def bare_artifact(
    kind: str,
    tensors: Mapping[str, Any],
    observation_mean: Any,
    observation_std: Any,
    action_low: Any,
    action_high: Any,
    metadata: Mapping[str, Any] | None = None,
) -> Artifact:
    """An artifact of the networks that a policy of this kind needs, with ReLU (tanh for "clipped-gaussian") and no
    LayerNorm: what version 1 of the file format meant."""
    if kind not in KINDS:
        raise UnknownName(f"no kind of policy is called {kind!r}; there are {', '.join(KINDS)}")
    renamed = {_renamed(name): np.asarray(value, np.float32) for name, value in tensors.items()}
    networks = dict(KINDS[kind].networks)
    if kind == "mixture":
        count = 0
        while layer_count(renamed, f"component.{count}"):
            name = f"component.{count}"
            networks[name] = replace(networks["component.0"], name=name)
            count += 1
    rest = dict(metadata or {})
    facts = {name: rest.pop(name) for name, fits in LIFTED.items() if name in rest and fits(rest[name])}
    if isinstance(rest.get("seed"), int) and rest["seed"] >= 0:
        facts["seed"] = rest.pop("seed")
    scaling = (observation_mean, observation_std, action_low, action_high)
    return Artifact(kind, networks, renamed, *scaling, **facts, metadata=rest)


def artifact_of_version_1(header: Mapping[str, str], tensors: dict[str, np.ndarray]) -> Artifact:
    """The artifact that a version-1 file means. Its checksum stays that of the file."""
    metadata = strict_json(header["metadata"])
    checksum = version_1_checksum(header, tensors)
    mean, std, low, high = (tensors[name] for name in SCALING)
    rest = {name: tensor for name, tensor in tensors.items() if name not in SCALING}
    artifact = bare_artifact(header["kind"], rest, mean, std, low, high, metadata)
    if not all(name in artifact.tensors for name in map(_renamed, rest)):
        raise InvalidSetting("it holds tensors that its kind does not have")
    artifact.__dict__["checksum"] = checksum
    return artifact


def version_1_checksum(header: Mapping[str, str], tensors: Mapping[str, np.ndarray]) -> str:
    stated = {name: header[name] for name in ("format", "format_version", "kind")}
    stated["metadata"] = json.dumps(json.loads(header["metadata"]), sort_keys=True)
    return checksum_of(stated, tensors)


def _renamed(name: str) -> str:
    """Version 1 had one reward critic."""
    return f"reward_1.{name.removeprefix('reward.')}" if name.startswith("reward.") else name
