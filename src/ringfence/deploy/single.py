"""One observation at a time, fast: the same numbers as in a batch, bit for bit, without what a batch needs.

A control loop asks for one action every step. `Artifact.act` spends most of such a call on bookkeeping; here the layers are
looked up once. Nothing is kept between calls, so threads may share it.
"""

from collections.abc import Callable

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.network import LAYER_NORM_EPSILON, Network, layer_count

Vector = np.ndarray
ZERO = np.zeros((), np.float32)


def single_actor(artifact: Artifact) -> Callable[[Vector, float | None], Vector] | None:
    """A function from one observation (obs,), float32 and finite, and a limit, where the policy takes one, to the
    deterministic action (act,) in the user's units; None for a kind that needs more than one network."""
    last = int(artifact.tensors["chosen"][0]) if artifact.kind == "mixture" else None
    names = {"tanh-gaussian": "actor", "clipped-gaussian": "actor", "mixture": f"component.{last}"}
    if artifact.kind not in names:
        return None
    network = artifact.networks[names[artifact.kind]]
    forward = single_forward(artifact, network)
    mean, std, low, high = (
        artifact.observation_mean,
        artifact.observation_std,
        artifact.action_low,
        artifact.action_high,
    )
    centre, half_range = (high + low) / 2, (high - low) / 2
    count, clipped, takes_limit = artifact.action_dim, artifact.kind == "clipped-gaussian", artifact.takes_limit

    def act(observation: Vector, limit: float | None = None) -> Vector:
        x = observation - mean
        x /= std
        if takes_limit or limit is not None:
            parts = {"observation": x, "limit": np.full(1, artifact.scaled_limit(limit), np.float32)}
            x = np.concatenate([parts[name] for name in network.inputs])
        action = np.tanh(forward(x)[:count])
        if clipped:
            action = np.minimum(np.maximum(action, -1.0), 1.0)
        action *= half_range
        action += centre
        scaled: Vector = np.minimum(np.maximum(action, low, out=action), high, out=action)
        return scaled

    return act


def single_forward(artifact: Artifact, network: Network) -> Callable[[Vector], Vector]:
    """The last layer's outputs for one row of joined inputs, as `network.forward` gives them for a batch."""
    name, tensors = network.name, artifact.tensors
    (first, offset), *rest = [
        (tensors[f"{name}.{i}.weight"], tensors[f"{name}.{i}.bias"]) for i in range(layer_count(tensors, name))
    ]
    normalise, tanh = network.layer_norm, network.activation == "tanh"

    def forward(x: Vector) -> Vector:
        x = x.dot(first)
        x += offset
        for weight, bias in rest:
            if normalise:
                x -= x.mean(keepdims=True)
                x /= np.sqrt((x**2).mean(keepdims=True) + LAYER_NORM_EPSILON)
            x = (np.tanh(x, out=x) if tanh else np.maximum(x, ZERO, out=x)).dot(weight)
            x += bias
        return x

    return forward
