"""One network described as data, and what the description means.

The description of a network and its tensors are all that is saved of it. `outputs` says what they compute, once, for
NumPy and for JAX (`xp`); exporters to other languages read the same description.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ringfence.errors import InvalidSetting, WrongShape

Tensors = Mapping[str, np.ndarray]

INPUTS = ("observation", "action", "latent", "limit", "time")
ACTIVATIONS = ("relu", "tanh")
LAYER_NORM_EPSILON = 1e-5

# Outputs of a Gaussian head are [mean, log std]; log std is clipped to this range.
LOG_STD_RANGES = {"tanh-gaussian": (-5.0, 2.0), "latent-gaussian": (-8.0, 4.0)}
HEADS = ("value", "tanh", *LOG_STD_RANGES)


@dataclass(frozen=True)
class Network:
    """Linear layers `NAME.i.weight` (inputs, outputs) and `NAME.i.bias` with an activation between them.

    The inputs are joined in the order given, as the network saw them in training:

        observation   normalised              latent   of a conditional VAE
        action        scaled to [-1, 1]       limit    scaled to [-1, 1] over the artifact's range of limits
        time          steps since the episode began, over the horizon

    The head says what the outputs mean:

        value             one number, times `scale`
        tanh              tanh of the outputs
        tanh-gaussian     [mean, log std] of u; the action is tanh(u)
        latent-gaussian   [mean, log std] of a latent
    """

    name: str
    inputs: tuple[str, ...]
    head: str
    activation: str = "relu"
    layer_norm: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        if unknown := [name for name in self.inputs if name not in INPUTS]:
            raise InvalidSetting(
                f"network {self.name!r} has no known input {unknown[0]!r}; there are {', '.join(INPUTS)}"
            )
        if not self.inputs or len(set(self.inputs)) < len(self.inputs):
            raise InvalidSetting(f"network {self.name!r} needs inputs, each of them once, not {self.inputs}")
        for field, allowed in (("head", HEADS), ("activation", ACTIVATIONS)):
            if getattr(self, field) not in allowed:
                raise InvalidSetting(f"{field} of network {self.name!r} must be one of {', '.join(allowed)}")
        if not isinstance(self.layer_norm, bool) or not (0.0 < self.scale < float("inf")):
            raise InvalidSetting(f"network {self.name!r} needs a true or false layer_norm and a positive scale")


class Gaussian(NamedTuple):
    """A diagonal Gaussian: arrays of shape (batch, dimensions)."""

    mean: Any
    log_std: Any


def outputs(network: Network, tensors: Tensors, x: Any, xp: Any = np) -> Any:
    """What the network's head gives for the joined inputs `x` (batch, inputs): values (batch,), numbers in [-1, 1]
    (batch, outputs) or a `Gaussian`. `xp` is numpy or jax.numpy."""
    raw = forward(network, tensors, x, xp)
    if network.head == "value":
        return network.scale * raw[..., 0]
    if network.head == "tanh":
        return xp.tanh(raw)
    mean, log_std = xp.split(raw, 2, axis=-1)
    return Gaussian(mean, xp.clip(log_std, *LOG_STD_RANGES[network.head]))


def forward(network: Network, tensors: Tensors, x: Any, xp: Any = np) -> Any:
    """The last layer's outputs."""
    for i in range(layer_count(tensors, network.name)):
        if i > 0:
            x = _layer_norm(x, xp) if network.layer_norm else x
            x = xp.tanh(x) if network.activation == "tanh" else xp.maximum(x, 0.0)
        x = _product(x, tensors[f"{network.name}.{i}.weight"], xp) + tensors[f"{network.name}.{i}.bias"]
    return x


def _product(x: Any, weight: Any, xp: Any) -> Any:
    """x W. In NumPy one product per row, (1, inputs) @ (inputs, outputs): the product of a whole matrix rounds
    differently with its number of rows, and an observation should have the same action in any batch."""
    return (x[..., None, :] @ weight)[..., 0, :] if xp is np else x @ weight


def _layer_norm(x: Any, xp: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / xp.sqrt((centred**2).mean(-1, keepdims=True) + LAYER_NORM_EPSILON)


def kl_to_standard(gaussian: Gaussian, xp: Any = np) -> Any:
    """KL(N(mean, std^2) || N(0, 1)) of each row, a sum over dimensions."""
    mean, log_std = gaussian
    return 0.5 * (mean**2 + xp.exp(2.0 * log_std) - 1.0 - 2.0 * log_std).sum(-1)


def layer_count(tensors: Tensors, name: str) -> int:
    count = 0
    while f"{name}.{count}.weight" in tensors:
        count += 1
    return count


def layer_names(tensors: Tensors, name: str) -> list[str]:
    return [f"{name}.{i}.{part}" for i in range(layer_count(tensors, name)) for part in ("weight", "bias")]


def output_count(network: Network, tensors: Tensors) -> int:
    return int(tensors[f"{network.name}.{layer_count(tensors, network.name) - 1}.bias"].shape[0])


def input_count(network: Network, tensors: Tensors) -> int:
    return int(tensors[f"{network.name}.0.weight"].shape[0])


def check_layers(network: Network, tensors: Tensors) -> None:
    """Raise unless the layers are there and fit each other."""
    name = network.name
    if f"{name}.0.weight" not in tensors:
        raise WrongShape(f"network {name!r} has no tensor '{name}.0.weight'")
    incoming = None
    for i in range(layer_count(tensors, name)):
        weight, bias = tensors[f"{name}.{i}.weight"], tensors.get(f"{name}.{i}.bias")
        if weight.ndim != 2 or 0 in weight.shape or bias is None or bias.shape != weight.shape[1:]:
            shape = None if bias is None else bias.shape
            raise WrongShape(
                f"layer {i} of network {name!r} has a weight of shape {weight.shape}, a bias of shape {shape}"
            )
        if incoming is not None and weight.shape[0] != incoming:
            raise WrongShape(f"layer {i} of network {name!r} takes {weight.shape[0]} numbers and is given {incoming}")
        incoming = weight.shape[1]
