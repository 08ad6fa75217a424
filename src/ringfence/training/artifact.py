"""What a method exports becomes an artifact: the networks in the description that NumPy reads, and what the log says."""

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ringfence import __version__
from ringfence.algorithms.interface import Export
from ringfence.data.dataset import Dataset
from ringfence.deploy import Artifact, Network
from ringfence.deploy.reference import guard_tensors
from ringfence.files import digest
from ringfence.networks import describe
from ringfence.training.configuration import Configuration, Member

_OF_A_LOG: WeakKeyDictionary[Dataset, dict[str, np.ndarray]] = WeakKeyDictionary()  # the same for every member


def member_artifact(
    export: Export,
    configuration: Configuration,
    member: Member,
    log: Dataset,
    learned_from: Dataset,
    *,
    steps_done: int,
    metadata: Mapping[str, Any],
) -> Artifact:
    """What one member of a run has learned. `log` names it; `learned_from`, a part of the log or all of it, gives the
    normaliser and the ranges."""
    about = {"log": log.name, "log_fingerprint": configuration.log.fingerprint, "ringfence": __version__}
    about |= {**metadata, **export.facts, "run": digest(configuration.identity())}
    if log.fingerprint != configuration.log.fingerprint:  # episodes were set aside
        about["learned_from"] = log.fingerprint
    return scaled_artifact(
        export._replace(tensors={**export.tensors, **_known_to_a_guard(learned_from)}),
        learned_from.normaliser.mean,
        learned_from.normaliser.std,
        learned_from.action_low,
        learned_from.action_high,
        observation_names=log.observation_names,
        action_names=log.action_names,
        units=log.units,
        observation_low=learned_from.observations.min(0),
        observation_high=learned_from.observations.max(0),
        horizon=learned_from.horizon,
        method=configuration.method,
        limit=member.limit if export.limit_range is None else None,  # else it is given at run time
        discount=configuration.discount,
        seed=member.seed,
        steps_done=steps_done,
        steps_planned=configuration.schedule.steps,
        metadata=about,
    )


def _known_to_a_guard(log: Dataset) -> dict[str, np.ndarray]:
    if log not in _OF_A_LOG:
        normalised = (log.observations - log.normaliser.mean) / log.normaliser.std
        _OF_A_LOG[log] = guard_tensors(normalised, log.terminations | log.truncations)
    return _OF_A_LOG[log]


def scaled_artifact(
    export: Export, observation_mean: Any, observation_std: Any, action_low: Any, action_high: Any, **facts: Any
) -> Artifact:
    """The artifact of what a method exports, for observations and actions of this scale."""
    networks, tensors = described_networks(export.networks)
    tensors |= {name: np.asarray(value, np.float32) for name, value in export.tensors.items()}
    scaling = (observation_mean, observation_std, action_low, action_high)
    return Artifact(export.kind, networks, tensors, *scaling, limit_range=export.limit_range, **facts)


def described_networks(modules: Mapping[str, Any]) -> tuple[dict[str, Network], dict[str, np.ndarray]]:
    """Each module as its description, and the tensors of all."""
    networks: dict[str, Network] = {}
    tensors: dict[str, np.ndarray] = {}
    for name, module in modules.items():
        mlp, inputs, head, scale = describe(module)
        networks[name] = Network(name, inputs, head, layer_norm=mlp.normalise, scale=scale)
        tensors |= layer_tensors(name, mlp)
    return networks, tensors


def layer_tensors(name: str, mlp: Any) -> dict[str, np.ndarray]:
    """The parameters of anything with `layers` of `weight` and `bias`, as NAME.0.weight (inputs, outputs), ..."""
    return {
        f"{name}.{i}.{part}": np.asarray(getattr(layer, part), np.float32)
        for i, layer in enumerate(mlp.layers)
        for part in ("weight", "bias")
    }
