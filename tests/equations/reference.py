"""The equations again, in NumPy and float64, with a loop per sample: slow, plain and independent of `ringfence`."""

from types import SimpleNamespace

import numpy as np


def mlp(network, x):
    """One sample through a network's layers; returns a vector."""
    x = np.asarray(x, np.float64)
    for i, layer in enumerate(network.layers):
        if i > 0:
            if network.normalise:
                x = (x - x.mean()) / np.sqrt(np.mean((x - x.mean()) ** 2) + 1e-5)
            x = np.where(x > 0, x, 0.0)
        x = x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)
    return x


def float64_copy(network):
    """A network's layers as float64 arrays that can be changed in place."""
    layers = [
        SimpleNamespace(weight=np.array(layer.weight, np.float64), bias=np.array(layer.bias, np.float64))
        for layer in network.layers
    ]
    return SimpleNamespace(layers=layers, normalise=network.normalise)


def q(critic, observation, action):
    return critic.scale * mlp(critic.mlp, np.concatenate([observation, action]))[0]


def q_each(critic, observations, actions):
    return np.array([q(critic, s, a) for s, a in zip(np.asarray(observations), np.asarray(actions), strict=True)])


def standard_normal_kl(mean, log_std):
    """KL(N(mean, std^2) || N(0, 1)) of one diagonal Gaussian: the sum over its dimensions."""
    total = 0.0
    for m, ls in zip(mean, log_std, strict=True):
        total += 0.5 * (m**2 + np.exp(2 * ls) - 1) - ls
    return total


def latent(cvae, observation, action):
    """Mean and log std of q(z | s, a)."""
    out = mlp(cvae.encoder, np.concatenate([observation, action]))
    half = len(out) // 2
    return out[:half], np.clip(out[half:], -8, 4)


def numerical_gradient(function, array, index, step=1e-4):
    """d function / d array[index] by central differences; `array` is float64 and changed in place, then restored."""
    kept = array[index]
    array[index] = kept + step
    up = function()
    array[index] = kept - step
    down = function()
    array[index] = kept
    return (up - down) / (2 * step)
