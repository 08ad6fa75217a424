"""The networks every method is built from.

All of them take whole batches (leading axes are free) and multiply once per layer: one large matrix product is
what the hardware does best. Inside ringfence observations are normalised and actions lie in [-1, 1]; `Policy`
translates from and to the user's own units.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.deploy.network import LAYER_NORM_EPSILON, LOG_STD_RANGES
from ringfence.kernels.linear import linear
from ringfence.kernels.mlp import Layers, accelerated

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)

Tree = TypeVar("Tree")


class Linear(eqx.Module):
    """The parameters of x W + b."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]


def row_mean(x: Float[Array, "*batch features"]) -> Float[Array, "*batch 1"]:
    """The mean over the features, as a matrix product: XLA adds up a row one number after another on a CPU. In full
    precision wherever products have less by default."""
    return _row_product(x, 1.0 / x.shape[-1])


def row_sum(x: Float[Array, "*batch features"]) -> Float[Array, "*batch"]:
    """The sum over the features, as a matrix product for the same reason."""
    return _row_product(x, 1.0)[..., 0]


def _row_product(x: Float[Array, "*batch features"], factor: float) -> Float[Array, "*batch 1"]:
    return jnp.matmul(x, jnp.full((x.shape[-1], 1), factor, x.dtype), precision="highest")


@jax.custom_jvp
def layer_norm(x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
    """Zero mean and unit variance over the features; the layer that follows can rescale, so nothing is learned here."""
    return _normalised_and_scale(x)[0]


def _normalised_and_scale(x: Array) -> tuple[Array, Array]:
    centred = x - row_mean(x)
    scale = jax.lax.rsqrt(row_mean(centred**2) + LAYER_NORM_EPSILON)
    return centred * scale, scale


def _layer_norm_along(constants: tuple[Array, Array], direction: Array) -> Array:
    """The derivative along a direction. It is symmetric: a gradient goes back by the same formula, with half the sums
    over features of what automatic differentiation gives."""
    normalised, scale = constants
    return scale * (direction - row_mean(direction) - normalised * row_mean(direction * normalised))


@layer_norm.defjvp
def _layer_norm_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    constants = _normalised_and_scale(*primals)
    return constants[0], linear(_layer_norm_along, _layer_norm_along, constants, tangents[0])


@accelerated
def mlp(x: Float[Array, "*batch inputs"], layers: Layers, normalise: bool) -> Float[Array, "*batch outputs"]:
    """Linear layers, given by weight and bias, with ReLU between them and, if asked, LayerNorm before each ReLU."""
    (weight, bias), *others = layers
    x = x @ weight + bias
    for weight, bias in others:
        x = jax.nn.relu(layer_norm(x) if normalise else x) @ weight + bias
    return x


class MLP(eqx.Module):
    """Linear layers with ReLU between them, optionally with LayerNorm before each ReLU. Weights and biases start uniform
    in +-1/sqrt(inputs)."""

    layers: tuple[Linear, ...]
    normalise: bool = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, hidden: Sequence[int], *, normalise: bool = False, key: PRNGKeyArray):
        sizes = list(pairwise([inputs, *hidden, outputs]))
        # One draw for all layers: each separate one would cost compile time.
        drawn = jax.random.uniform(key, (sum((m + 1) * n for m, n in sizes),), minval=-1.0, maxval=1.0)
        layers, start = [], 0
        for m, n in sizes:
            block = drawn[start : (start := start + (m + 1) * n)].reshape(m + 1, n) / math.sqrt(m)
            layers.append(Linear(block[:m], block[m]))
        self.layers = tuple(layers)
        self.normalise = normalise

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        return mlp(x, tuple((layer.weight, layer.bias) for layer in self.layers), self.normalise)


def pairs(
    observations: Float[Array, "*batch obs"], actions: Float[Array, "*n_batch act"]
) -> Float[Array, "*n_batch both"]:
    """(s, a) side by side, for one action of each state or for n: then `actions` has an axis more, in front."""
    states = jnp.broadcast_to(observations, (*actions.shape[:-1], observations.shape[-1]))
    return jnp.concatenate([states, actions], -1)


class Critic(eqx.Module):
    """Q(s, a) = scale x network(s, a): one number per pair, for one action of each state or for n. A fresh critic's values
    lie around `start`."""

    mlp: MLP
    scale: float = eqx.field(static=True)

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        *,
        normalise: bool = False,
        scale: float = 1.0,
        start: float = 0.0,
        key: PRNGKeyArray,
    ):
        fresh = MLP(observation_dim + action_dim, 1, hidden, normalise=normalise, key=key)
        self.mlp = eqx.tree_at(lambda mlp: mlp.layers[-1].bias, fresh, replace_fn=lambda bias: bias + start / scale)
        self.scale = scale

    def __call__(
        self, observations: Float[Array, "*batch obs"], actions: Float[Array, "*n_batch act"]
    ) -> Float[Array, "*n_batch"]:
        return self.scale * self.mlp(pairs(observations, actions))[..., 0]


class Gaussian(NamedTuple):
    """A diagonal Gaussian."""

    mean: Float[Array, "*batch dim"]
    log_std: Float[Array, "*batch dim"]

    @property
    def std(self) -> Float[Array, "*batch dim"]:
        return jnp.exp(self.log_std)

    def log_prob(self, x: Float[Array, "*batch dim"]) -> Float[Array, "*batch"]:
        z = (x - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * z**2 - self.log_std - HALF_LOG_TWO_PI, -1)

    def kl_to_standard(self) -> Float[Array, "*batch"]:
        """KL(N(mean, std^2) || N(0, 1)), a sum over dimensions."""
        return 0.5 * row_sum(self.mean**2 + jnp.exp(2.0 * self.log_std) - 1.0 - 2.0 * self.log_std)


def tanh_log_det(u: Float[Array, "*batch dim"]) -> Float[Array, "*batch"]:
    """log |d tanh(u) / du|, summed over dimensions, in the form that does not lose precision for large |u|."""
    return jnp.sum(2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u)), -1)


class TanhGaussianActor(eqx.Module):
    """A stochastic policy: a = tanh(u), u ~ N(mean(s), std(s)^2). The executed action is a, never u."""

    mlp: MLP

    def __init__(self, observation_dim: int, action_dim: int, hidden: Sequence[int], *, key: PRNGKeyArray):
        self.mlp = MLP(observation_dim, 2 * action_dim, hidden, key=key)

    def __call__(self, observations: Float[Array, "*batch obs"]) -> Gaussian:
        """The Gaussian before the squash."""
        mean, log_std = jnp.split(self.mlp(observations), 2, -1)
        return Gaussian(mean, jnp.clip(log_std, *LOG_STD_RANGES["tanh-gaussian"]))

    def mode(self, observations: Float[Array, "*batch obs"]) -> Float[Array, "*batch act"]:
        """The deterministic action, tanh(mean)."""
        return jnp.tanh(self(observations).mean)


def sample_tanh(
    gaussian: Gaussian, key: PRNGKeyArray, count: tuple[int, ...] = ()
) -> tuple[Float[Array, "*count batch act"], Float[Array, "*count batch"]]:
    """Draw actions by reparametrisation, with their log-probabilities under the squashed distribution."""
    shape = gaussian.mean.shape
    # One long row per draw: XLA vectorises over the last axis, and an action has only a few numbers. The draws are the same.
    noise = jax.random.normal(key, (*count, gaussian.mean.size))
    u = gaussian.mean.ravel() + gaussian.std.ravel() * noise
    noise, u, actions = (x.reshape(*count, *shape) for x in (noise, u, jnp.tanh(u)))
    log_prob = jnp.sum(-0.5 * noise**2 - gaussian.log_std - HALF_LOG_TWO_PI, -1) - tanh_log_det(u)
    return actions, log_prob


def tanh_log_prob(gaussian: Gaussian, actions: Float[Array, "*batch act"]) -> Float[Array, "*batch"]:
    """log pi(a | s) of given actions; those at the very edge of [-1, 1] are moved in by 1e-6 to stay finite."""
    inside = jnp.clip(actions, -1.0 + 1e-6, 1.0 - 1e-6)
    u = jnp.arctanh(inside)
    return gaussian.log_prob(u) - tanh_log_det(u)


class CVAE(eqx.Module):
    """A conditional variational autoencoder of the logged actions: z ~ q(z | s, a), a ~ p(a | s, z), z ~ N(0, 1)."""

    encoder: MLP
    decoder: MLP

    def __init__(
        self, observation_dim: int, action_dim: int, latent_dim: int, hidden: Sequence[int], *, key: PRNGKeyArray
    ):
        encoder_key, decoder_key = jax.random.split(key)
        self.encoder = MLP(observation_dim + action_dim, 2 * latent_dim, hidden, key=encoder_key)
        self.decoder = MLP(observation_dim + latent_dim, action_dim, hidden, key=decoder_key)

    def encode(self, observations: Float[Array, "batch obs"], actions: Float[Array, "*n batch act"]) -> Gaussian:
        """q(z | s, a), for one action of each state or for n."""
        output = self.encoder(pairs(observations, actions))
        mean, log_std = jnp.split(output, 2, -1)
        return Gaussian(mean, jnp.clip(log_std, *LOG_STD_RANGES["latent-gaussian"]))

    def decode(
        self, observations: Float[Array, "*batch obs"], latents: Float[Array, "*batch latent"]
    ) -> Float[Array, "*batch act"]:
        """The mean of p(a | s, z), in [-1, 1]."""
        return jnp.tanh(self.decoder(jnp.concatenate([observations, latents], -1)))


def polyak(target: Tree, online: Tree, tau: float | Float[Array, ""]) -> Tree:
    """target <- tau online + (1 - tau) target, for every parameter."""
    moved: Tree = jax.tree.map(lambda t, o: tau * o + (1.0 - tau) * t, target, online)
    return moved


class Described(NamedTuple):
    """A network with what its inputs and outputs mean, in the words of `ringfence.deploy.Network`."""

    mlp: MLP
    inputs: tuple[str, ...]
    head: str
    scale: float = 1.0


def describe(network: "Critic | TanhGaussianActor | Described") -> Described:
    """What the class of a network says of its inputs and outputs."""
    if isinstance(network, Critic):
        return Described(network.mlp, ("observation", "action"), "value", network.scale)
    if isinstance(network, TanhGaussianActor):
        return Described(network.mlp, ("observation",), "tanh-gaussian")
    return network


def describe_cvae(cvae: CVAE) -> dict[str, Described]:
    return {
        "encoder": Described(cvae.encoder, ("observation", "action"), "latent-gaussian"),
        "decoder": Described(cvae.decoder, ("observation", "latent"), "tanh"),
    }
