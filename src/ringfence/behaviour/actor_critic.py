"""What PPO and CPO share: a Gaussian actor, value networks, running moments, advantages."""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ringfence.behaviour.segments import NumpyActor
from ringfence.deploy import Policy
from ringfence.networks import Gaussian, Linear


class TanhMLP(eqx.Module):
    """Linear layers with tanh between them, orthogonal weights: what on-policy methods are usually run with."""

    layers: tuple[Linear, ...]

    def __init__(self, sizes: Sequence[int], *, last_scale: float, key: PRNGKeyArray):
        keys = jax.random.split(key, len(sizes) - 1)
        scales = [math.sqrt(2.0)] * (len(sizes) - 2) + [last_scale]
        self.layers = tuple(
            Linear(jax.nn.initializers.orthogonal(scale)(k, (m, n)), jnp.zeros(n))
            for m, n, scale, k in zip(sizes[:-1], sizes[1:], scales, keys, strict=True)
        )

    def __call__(self, x: Float[Array, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        for layer in self.layers[:-1]:
            x = jnp.tanh(x @ layer.weight + layer.bias)
        return x @ self.layers[-1].weight + self.layers[-1].bias


def actor_network(observation_dim: int, action_dim: int, hidden: Sequence[int], *, key: PRNGKeyArray) -> TanhMLP:
    """The mean of the Gaussian, before its tanh. The standard deviation is not learned: it is a setting, because it
    decides how wide a log is."""
    return TanhMLP([observation_dim, *hidden, action_dim], last_scale=0.01, key=key)


def value_network(observation_dim: int, hidden: Sequence[int], *, key: PRNGKeyArray) -> TanhMLP:
    return TanhMLP([observation_dim, *hidden, 1], last_scale=1.0, key=key)


def mean_actions(actor: TanhMLP, observations: Float[Array, "*batch obs"]) -> Float[Array, "*batch act"]:
    return jnp.tanh(actor(observations))


def gaussian(actor: TanhMLP, std: Float[Array, " act"] | float, observations: Float[Array, "*batch obs"]) -> Gaussian:
    """N(tanh(network), std^2), cut off at the bounds only when it is executed.

    The tanh keeps the mean inside [-1, 1]: a mean far outside would be executed as the bound with all its noise cut
    away, which leaves neither a gradient to come back by nor any variety in the log."""
    mean = mean_actions(actor, observations)
    return Gaussian(mean, jnp.broadcast_to(jnp.log(std), mean.shape))


class Moments(eqx.Module):
    """Running mean and variance (Chan et al., 1983), for normalisation."""

    mean: Float[Array, "*shape"]
    var: Float[Array, "*shape"]
    count: Float[Array, ""]

    @staticmethod
    def start(shape: tuple[int, ...] = ()) -> "Moments":
        return Moments(jnp.zeros(shape), jnp.ones(shape), jnp.array(1e-4))

    def including(self, values: Float[Array, "n *shape"]) -> "Moments":
        n, mean, var = len(values), values.mean(0), values.var(0)
        total = self.count + n
        apart = mean - self.mean
        moved = self.var * self.count + var * n + apart**2 * self.count * n / total
        return Moments(self.mean + apart * n / total, moved / total, total)

    @property
    def std(self) -> Float[Array, "*shape"]:
        return jnp.sqrt(self.var) + 1e-4


@jax.jit
def generalised_advantages(
    deltas: Float[Array, "steps envs"], ended: Bool[Array, "steps envs"], decay: float
) -> Float[Array, "steps envs"]:
    """A_t = delta_t + (discount lambda) A_{t+1}, the sum starting anew in each episode (Schulman et al., 2016,
    Eq. 16)."""

    def back(following: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, end = row
        advantage = delta + decay * jnp.where(end, 0.0, following)
        return advantage, advantage

    return jax.lax.scan(back, jnp.zeros(deltas.shape[1]), (deltas, ended), reverse=True)[1]


def temporal_differences(
    rewards: Float[Array, "steps envs"],
    values: Float[Array, "steps envs"],
    next_values: Float[Array, "steps envs"],
    terminated: Bool[Array, "steps envs"],
    discount: float,
) -> Float[Array, "steps envs"]:
    """delta_t = r_t + discount V(s_{t+1}) - V(s_t). Termination masks the bootstrap, truncation does not."""
    return rewards + discount * jnp.where(terminated, 0.0, next_values) - values


def to_policy(
    actor: TanhMLP, moments: Moments, std: float, bounds: tuple[np.ndarray, np.ndarray], metadata: dict[str, Any]
) -> Policy:
    """A policy file of kind "clipped-gaussian", for actions between the bounds."""
    numpy_actor = NumpyActor.of(actor, moments)
    act = len(actor.layers[-1].bias)
    tensors = numpy_actor.tensors | {"log_std": np.full(act, math.log(std), np.float32)}
    scaling = (numpy_actor.observation_mean, numpy_actor.observation_std)
    return Policy.from_tensors("clipped-gaussian", tensors, *scaling, *bounds, metadata)
