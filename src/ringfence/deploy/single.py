"""One observation at a time, fast: the same numbers as in a batch, bit for bit, without what a batch needs.

A control loop asks for one action every step. `Artifact.act` spends most of such a call on bookkeeping; here the layers are
looked up once. Nothing is kept between calls, so threads may share it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ringfence.deploy.actors import KINDS
from ringfence.deploy.artifact import Artifact
from ringfence.deploy.network import LAYER_NORM_EPSILON, Network, layer_count

Vector = np.ndarray
ZERO = np.zeros((), np.float32)


class SingleActor(NamedTuple):
    """A policy of one network in the three steps of its call."""

    # An observation (obs,), float32 and finite, as the network saw it in training
    normalised: Callable[[Vector], Vector]
    # Of that and the limit, if any, the action in [-1, 1]; into the third argument, if given
    scaled: Callable[[Vector, float | None, Vector | None], Vector]
    # That action in the user's units, a new array
    in_units: Callable[[Vector], Vector]

    def __call__(self, observation: Vector, limit: float | None = None) -> Vector:
        return self.in_units(self.scaled(self.normalised(observation), limit, None))


def single_actor(artifact: Artifact) -> SingleActor | None:
    """The deterministic policy of an artifact; None for a kind that needs more than one network."""
    needed = list(KINDS[artifact.kind].networks)
    if len(needed) != 1:
        return None
    name = f"component.{int(artifact.tensors['chosen'][0])}" if artifact.kind == "mixture" else needed[0]
    network = artifact.networks[name]
    forward = single_forward(artifact, network)
    mean, std = artifact.observation_mean, artifact.observation_std
    low, high = artifact.action_low, artifact.action_high
    centre, half_range = artifact.action_centre, artifact.action_half_range
    count, clipped, takes_limit = artifact.action_dim, artifact.kind == "clipped-gaussian", artifact.takes_limit
    # Rounding keeps order: if -1 and 1 are scaled to inside the bounds, so is every number between them.
    rounds_inside = bool((centre - half_range >= low).all() and (centre + half_range <= high).all())

    def normalised(observation: Vector) -> Vector:
        x: Vector = observation - mean
        x /= std
        return x

    def scaled(x: Vector, limit: float | None, out: Vector | None) -> Vector:
        if takes_limit or limit is not None:
            parts = {"observation": x, "limit": np.full(1, artifact.scaled_limit(limit), np.float32)}
            x = np.concatenate([parts[name] for name in network.inputs])
        action: Vector = np.tanh(forward(x)[:count], out)
        if clipped:
            np.clip(action, -1.0, 1.0, out=action)
        return action

    def in_units(action: Vector) -> Vector:
        """`Artifact.unscale_actions`, in place and with no clip where none is needed."""
        action = action * half_range
        action += centre
        return action if rounds_inside else np.minimum(np.maximum(action, low, out=action), high, out=action)

    return SingleActor(normalised, scaled, in_units)


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
