"""One observation at a time, fast: the same numbers as in a batch, bit for bit, without what a batch needs.

A control loop asks for one action every step. `Artifact.act` spends most of such a call on bookkeeping; here the layers are
looked up once. Nothing is kept between calls, so threads may share it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.network import LAYER_NORM_EPSILON, LOG_STD_RANGES, Gaussian, Network, layer_count

Vector = np.ndarray


def single_actor(artifact: Artifact) -> Callable[[Vector], Vector] | None:
    """A function from one observation (obs,), float32 and finite, to the deterministic action (act,) in the user's units;
    None for a kind that needs more than one network, or a limit."""
    last = int(artifact.tensors["chosen"][0]) if artifact.kind == "mixture" else None
    names = {"tanh-gaussian": "actor", "clipped-gaussian": "actor", "mixture": f"component.{last}"}
    if artifact.kind not in names or artifact.networks[names[artifact.kind]].inputs != ("observation",):
        return None
    raw = single_forward(artifact, artifact.networks[names[artifact.kind]])
    mean, std, low, high = (
        artifact.observation_mean,
        artifact.observation_std,
        artifact.action_low,
        artifact.action_high,
    )
    centre, half_range = (high + low) / 2, (high - low) / 2
    count, clipped = artifact.action_dim, artifact.kind == "clipped-gaussian"

    def act(observation: Vector) -> Vector:
        action = np.tanh(raw((observation - mean) / std)[:count])
        if clipped:
            action = np.minimum(np.maximum(action, -1.0), 1.0)
        scaled: Vector = np.minimum(np.maximum(centre + half_range * action, low), high)
        return scaled

    return act


def single_forward(artifact: Artifact, network: Network) -> Callable[[Vector], Vector]:
    """The last layer's outputs for one row of joined inputs, as `network.forward` gives them for a batch."""
    name, tensors = network.name, artifact.tensors
    (first, offset), *rest = [
        (tensors[f"{name}.{i}.weight"], tensors[f"{name}.{i}.bias"]) for i in range(layer_count(tensors, name))
    ]
    normalise = network.layer_norm
    activate: Callable[[Vector], Vector] = np.tanh if network.activation == "tanh" else partial(np.maximum, 0.0)

    def forward(x: Vector) -> Vector:
        x = x @ first
        x += offset
        for weight, bias in rest:
            if normalise:
                x = x - x.mean(keepdims=True)
                x = x / np.sqrt((x**2).mean(keepdims=True) + LAYER_NORM_EPSILON)
            x = activate(x) @ weight
            x += bias
        return x

    return forward


def single_outputs(artifact: Artifact, name: str) -> Callable[[Vector], Any]:
    """What the head of a network gives for one row of joined inputs: a number, a vector or a `Gaussian`."""
    network = artifact.networks[name]
    forward = single_forward(artifact, network)
    return lambda x: _head(network, forward(x))


def _head(network: Network, raw: Vector) -> Any:
    if network.head == "value":
        return network.scale * raw[0]
    if network.head == "tanh":
        return np.tanh(raw)
    half = len(raw) // 2
    low, high = LOG_STD_RANGES[network.head]
    return Gaussian(raw[:half], np.minimum(np.maximum(raw[half:], low), high))
