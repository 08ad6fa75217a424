"""The file of an artifact: safetensors, with a header that describes the networks and a checksum over all of it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ringfence.deploy import validation
from ringfence.deploy.network import Network
from ringfence.deploy.tensorfile import read_tensors, tensor_bytes
from ringfence.errors import ForeignPolicy, InvalidSetting, RingfenceError

if TYPE_CHECKING:
    from ringfence.deploy.artifact import Artifact

FORMAT, FORMAT_VERSION = "ringfence-policy", "2"
SCALING = ("observation_mean", "observation_std", "action_low", "action_high")
RANGES = ("observation_low", "observation_high")


def content_of(artifact: "Artifact") -> bytes:
    """The file's content; equal artifacts give equal bytes."""
    header, tensors = header_of(artifact), tensors_of(artifact)
    return tensor_bytes(tensors, {**header, "sha256": checksum_of(header, tensors)})


def tensors_of(artifact: "Artifact") -> dict[str, np.ndarray]:
    vectors = {name: getattr(artifact, name) for name in (*SCALING, *RANGES)}
    return {**artifact.tensors, **{name: value for name, value in vectors.items() if value is not None}}


def header_of(artifact: "Artifact") -> dict[str, str]:
    kept_as_tensors = ("tensors", *SCALING, *RANGES)
    stated = {f.name: getattr(artifact, f.name) for f in fields(artifact) if f.name not in kept_as_tensors}
    stated["networks"] = {name: asdict(network) for name, network in sorted(artifact.networks.items())}
    stated["tensors"] = {name: list(tensor.shape) for name, tensor in sorted(tensors_of(artifact).items())}
    stated |= {"units": dict(artifact.units), "metadata": dict(artifact.metadata)}
    text = json.dumps(stated, sort_keys=True, allow_nan=False)
    return {"format": FORMAT, "format_version": FORMAT_VERSION, "artifact": text}


def checksum_of(header: Mapping[str, str], tensors: Mapping[str, np.ndarray]) -> str:
    """sha256 of header and tensors."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name}{tensors[name].shape}".encode())
        digest.update(np.ascontiguousarray(tensors[name], "<f4").tobytes())
    return digest.hexdigest()


def read(path: Path) -> "Artifact":
    """The artifact in a file of this version or of version 1; `ForeignPolicy` if it is anything else, or not as it was
    written."""
    from ringfence.deploy.version1 import artifact_of_version_1  # imports this file

    header, tensors = read_tensors(path)
    if header.get("format") != FORMAT:
        raise ForeignPolicy(f"{path} is not a ringfence policy: its header does not say {FORMAT!r}")
    readers = {"1": artifact_of_version_1, FORMAT_VERSION: artifact_of}
    version = header.get("format_version")
    if version not in readers:
        raise ForeignPolicy(
            f"{path} is a policy of format {version}; this ringfence reads formats {' and '.join(readers)}. "
            "Was it written by a newer one?"
        )
    try:
        artifact = readers[version](header, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ForeignPolicy(f"{path} is damaged: {type(error).__name__} {error}") from error
    except RingfenceError as error:
        raise ForeignPolicy(f"{path} is damaged: {error}") from error
    if header.get("sha256") != artifact.checksum:
        raise ForeignPolicy(f"{path} is damaged: its checksum does not match; fetch or make it again")
    return artifact


def artifact_of(header: Mapping[str, str], tensors: dict[str, np.ndarray]) -> "Artifact":
    """The artifact that header and tensors of a version-2 file mean."""
    from ringfence.deploy.artifact import Artifact  # imports this file

    stated = validation.strict_json(header["artifact"])
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if stated.pop("tensors") != shapes:
        raise InvalidSetting("its tensors are not those that its header names")
    networks = {
        name: Network(**{**described, "inputs": tuple(described["inputs"])})
        for name, described in stated.pop("networks").items()
    }
    vectors = {name: tensors.pop(name) for name in (*SCALING, *RANGES) if name in tensors}
    return Artifact(**{**stated, "networks": networks, "tensors": tensors, **vectors})
