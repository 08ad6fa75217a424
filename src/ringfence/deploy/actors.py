"""How each kind of policy turns observations into actions, in NumPy.

An actor is a function of (tensors, normalised observations, noise) to actions in [-1, 1]; without noise it gives the
deterministic action. A new kind is a new entry in `ACTORS`.

The action of an observation is the same, bit for bit, whatever batch it arrives in: rows are multiplied one by one
(`mlp_forward`), and noise can come from one generator per row (`RowNoise`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float

# The range of a tanh-Gaussian's log standard deviation, as in `ringfence.networks`, which cannot be imported here:
# it needs JAX. They belong to version 1 of the file format; a test holds the two together.
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0

Tensors = Mapping[str, np.ndarray]


class Noise(Protocol):
    """Where an actor's randomness comes from: a NumPy `Generator`, or a `RowNoise`.

    The first axis of `size` is the batch."""

    def standard_normal(self, size: tuple[int, ...]) -> np.ndarray: ...

    def random(self, size: tuple[int, ...]) -> np.ndarray: ...


Actor = Callable[[Tensors, Float[np.ndarray, "batch obs"], Noise | None], Float[np.ndarray, "batch act"]]


class RowNoise:
    """One generator per row of the batch, so that a row's noise does not depend on its neighbours."""

    def __init__(self, generators: Sequence[np.random.Generator]):
        self.generators = list(generators)

    def standard_normal(self, size: tuple[int, ...]) -> np.ndarray:
        return np.stack([generator.standard_normal(size[1:]) for generator in self._of(size)])

    def random(self, size: tuple[int, ...]) -> np.ndarray:
        return np.stack([generator.random(size[1:]) for generator in self._of(size)])

    def _of(self, size: tuple[int, ...]) -> list[np.random.Generator]:
        if size[0] != len(self.generators):
            raise ValueError(f"noise for {size[0]} rows asked of {len(self.generators)} generators")
        return self.generators


def mlp_tensors(prefix: str, mlp: Any) -> dict[str, np.ndarray]:
    """The parameters of a `ringfence.networks.MLP` (or anything with `layers` of `weight` and `bias`) as
    `prefix.0.weight` (inputs, outputs), `prefix.0.bias`, `prefix.1.weight`, ..."""
    return {
        f"{prefix}.{i}.{part}": np.asarray(getattr(layer, part), np.float32)
        for i, layer in enumerate(mlp.layers)
        for part in ("weight", "bias")
    }


def mlp_forward(
    tensors: Tensors,
    prefix: str,
    x: Float[np.ndarray, "batch inputs"],
    *,
    layer_norm: bool = False,
    activation: Callable[[np.ndarray], np.ndarray] = lambda x: np.maximum(x, 0.0),
) -> Float[np.ndarray, "batch outputs"]:
    """The MLP of `ringfence.networks`: linear layers with ReLU between, LayerNorm before each ReLU if asked."""
    for i in range(layer_count(tensors, prefix)):
        if i > 0:
            x = activation(normalise_features(x) if layer_norm else x)
        # (batch, 1, inputs) @ (inputs, outputs): a product per row, the same for any batch size.
        x = (x[:, None, :] @ tensors[f"{prefix}.{i}.weight"])[:, 0] + tensors[f"{prefix}.{i}.bias"]
    return x


def layer_count(tensors: Tensors, prefix: str) -> int:
    count = 0
    while f"{prefix}.{count}.weight" in tensors:
        count += 1
    return count


def normalise_features(x: Float[np.ndarray, "batch features"]) -> Float[np.ndarray, "batch features"]:
    """`networks.layer_norm` in NumPy."""
    centred = x - x.mean(-1, keepdims=True)
    normalised: np.ndarray = centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + 1e-5)
    return normalised


def tanh_gaussian(
    tensors: Tensors, observations: Float[np.ndarray, "batch obs"], noise: Noise | None
) -> Float[np.ndarray, "batch act"]:
    """a = tanh(mean + std * noise), with [mean, log std] the outputs of the network `actor`."""
    mean, log_std = np.split(mlp_forward(tensors, "actor", observations), 2, axis=-1)
    if noise is not None:
        std = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))
        mean = mean + std * noise.standard_normal(mean.shape).astype(np.float32)
    squashed: np.ndarray = np.tanh(mean)
    return squashed


def clipped_gaussian(
    tensors: Tensors, observations: Float[np.ndarray, "batch obs"], noise: Noise | None
) -> Float[np.ndarray, "batch act"]:
    """a = clip(tanh(f) + std * noise, -1, 1): f from the network `actor` (tanh units), the standard deviation one
    number per joint, the same in every state (`log_std`). This is what PPO and CPO train."""
    mean = np.tanh(mlp_forward(tensors, "actor", observations, activation=np.tanh))
    if noise is not None:
        mean = mean + np.exp(tensors["log_std"]) * noise.standard_normal(mean.shape).astype(np.float32)
    clipped: np.ndarray = np.clip(mean, -1.0, 1.0)
    return clipped


LATENT_BOUND = 0.5  # as in `ringfence.algorithms.candidates`


def bcq(
    tensors: Tensors, observations: Float[np.ndarray, "batch obs"], noise: Noise | None
) -> Float[np.ndarray, "batch act"]:
    """The best of n candidates: decoded from latents z, moved by at most `phi`. Without noise the latents are those in
    the file, the same in every state; with it they are drawn anew."""
    latents = np.broadcast_to(tensors["latents"], (len(observations), *tensors["latents"].shape))
    if noise is not None:
        latents = noise.standard_normal(latents.shape).astype(np.float32)
    states = np.repeat(observations, latents.shape[1], axis=0)
    clipped = np.clip(latents, -LATENT_BOUND, LATENT_BOUND).reshape(len(states), -1)
    actions = np.tanh(mlp_forward(tensors, "decoder", np.concatenate([states, clipped], -1)))
    move = np.tanh(mlp_forward(tensors, "perturbation", np.concatenate([states, actions], -1)))
    return best_by_penalised_value(
        tensors, states, np.clip(actions + tensors["phi"] * move, -1.0, 1.0), len(observations)
    )


def bear(
    tensors: Tensors, observations: Float[np.ndarray, "batch obs"], noise: Noise | None
) -> Float[np.ndarray, "batch act"]:
    """The best of n actions of a tanh-Gaussian. Without noise the n draws are those in the file."""
    mean, log_std = np.split(mlp_forward(tensors, "actor", observations)[:, None], 2, axis=-1)
    std = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))
    draws = tensors["noise"]
    if noise is not None:
        draws = noise.standard_normal((len(observations), *draws.shape)).astype(np.float32)
    candidates = np.tanh(mean + std * draws)
    states = np.repeat(observations, candidates.shape[1], axis=0)
    return best_by_penalised_value(tensors, states, candidates.reshape(len(states), -1), len(observations))


def best_by_penalised_value(
    tensors: Tensors, states: Float[np.ndarray, "rows obs"], actions: Float[np.ndarray, "rows act"], batch: int
) -> Float[np.ndarray, "batch act"]:
    """In each state the candidate with the greatest Qr - lambda Qc; a state's candidates stand one after another."""
    pairs = np.concatenate([states, actions], -1)
    value = mlp_forward(tensors, "reward", pairs) - tensors["lambda"] * mlp_forward(tensors, "cost", pairs)
    best = value.reshape(batch, -1).argmax(1)
    chosen: np.ndarray = actions.reshape(batch, -1, actions.shape[-1])[np.arange(batch), best]
    return chosen


def mixture(
    tensors: Tensors, observations: Float[np.ndarray, "batch obs"], noise: Noise | None
) -> Float[np.ndarray, "batch act"]:
    """One of several deterministic policies, a = tanh(f(s)). Without noise it is the `chosen` one, always. With noise
    it is drawn anew in every step, since a policy does not know where episodes begin; to draw one for each episode,
    as a mixture is meant, use `ringfence.deploy.components`."""
    count = component_count(tensors)
    drawn = np.full(len(observations), tensors["chosen"][0])
    if noise is not None:
        drawn = np.floor(noise.random((len(observations),)) * count)
    parts = [np.tanh(mlp_forward(tensors, f"component.{i}", observations[drawn == i])) for i in range(count)]
    actions = np.empty((len(observations), parts[0].shape[-1]), np.float32)
    for i, part in enumerate(parts):
        actions[drawn == i] = part
    return actions


def component_count(tensors: Tensors) -> int:
    count = 0
    while f"component.{count}.0.weight" in tensors:
        count += 1
    return count


ACTORS: dict[str, Actor] = {
    "tanh-gaussian": tanh_gaussian,
    "clipped-gaussian": clipped_gaussian,
    "bcq": bcq,
    "bear": bear,
    "mixture": mixture,
}
