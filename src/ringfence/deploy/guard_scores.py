"""The numbers that a guard's rules compare, for one observation and one action, in few NumPy calls. Where the compiled
library was built, `guard_compiled.py` gives them in one call.

They are those of `Artifact.detector_score` and `Artifact.cost_to_go` and the distance of `reference.py`, up to rounding.
What makes them quick:

    one first product   detector, cost critic and whitening read the same inputs: their matrices stand side by side
    layer by layer      detector and cost critic go forward together: their hidden units stand side by side too
    bias as a row       of an input that is always 1: no call of its own
    LayerNorm           subtracting the mean is linear: it is done once, in the weights. Dividing by the deviation s > 0
                        commutes with relu and with the next product: it is left to the last layer
    Python numbers      for a handful of actions and latents they are quicker than a NumPy call
"""

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from math import exp, sqrt
from typing import NamedTuple

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.network import LAYER_NORM_EPSILON, LOG_STD_RANGES, layer_count

ZERO = np.zeros((), np.float32)


class Inputs:
    """What the networks of one step read: observation, action and limit, scaled as in training, and a 1."""

    def __init__(self, artifact: Artifact):
        observations = artifact.observation_dim
        self.joined = np.zeros(observations + artifact.action_dim + 2, np.float32)
        self.joined[-1] = 1.0
        self.observation, self.action = self.joined[:observations], self.joined[observations:-2]
        self._mean, self._std = artifact.observation_mean, artifact.observation_std
        low, high = artifact.action_low.tolist(), artifact.action_high.tolist()
        self._bounds = [(a, (b - a) / 2) for a, b in zip(low, high, strict=True)]

    def set_observation(self, observation: np.ndarray) -> None:
        np.subtract(observation, self._mean, self.observation)
        np.divide(self.observation, self._std, self.observation)

    def set_action(self, action: Sequence[float]) -> None:
        scaled = [(a - low) / half - 1.0 for a, (low, half) in zip(action, self._bounds, strict=True)]
        self.action[:] = [-1.0 if a < -1.0 else 1.0 if a > 1.0 else a for a in scaled]  # quicker than min and max

    def set_limit(self, scaled_limit: float) -> None:
        self.joined[-2] = scaled_limit


class Scores:
    """`Scores(artifact, ("together", "cost_to_go"))()` gives the numbers of these rules for what was put into `inputs`.
    Rules are given in the order "together", "detector", "cost_to_go".

    It keeps its buffers between calls: two threads must not share one."""

    def __init__(self, artifact: Artifact, rules: Sequence[str]):
        self.inputs = Inputs(artifact)
        networks = [NETWORKS[rule](artifact) for rule in rules if rule in NETWORKS]
        whitening = [whitening_layer(artifact)] if "together" in rules else []
        parts = [np.zeros((len(self.inputs.joined), 0)), *(network.first for network in networks), *whitening]
        self._first = np.ascontiguousarray(np.concatenate(parts, 1), np.float32)
        self._outputs = np.zeros(self._first.shape[1], np.float32)
        self._forward, start = [], 0
        for _, alike in groupby(networks, lambda network: (len(network.layers), network.tanh)):
            group = list(alike)
            end = start + sum(network.first.shape[1] for network in group)
            self._forward.append(_forward(group, self._outputs[start:end]))
            start = end
        self._white = self._outputs[start:] if whitening else None

    def __call__(self) -> list[float]:
        self.inputs.joined.dot(self._first, self._outputs)
        scores = [] if self._white is None else [float(self._white.dot(self._white))]
        for forward in self._forward:
            scores += forward()
        return scores


class NetworkOfAScore(NamedTuple):
    """A network whose first layer is a matrix over `Inputs.joined`, and whose other layers have their bias as a last row.

    A layer's outputs x that another layer reads end with a number s: x = s (true outputs, 1). With LayerNorm that is the
    deviation, else 1. `score` is given the last outputs and their s, by which they must still be divided."""

    first: np.ndarray
    layers: list[np.ndarray]
    normalise: bool
    tanh: bool
    score: Callable[[list[float], float], float]


def _forward(networks: Sequence[NetworkOfAScore], joint: np.ndarray) -> Callable[[], list[float]]:
    """A function from the first layers' outputs, side by side in `joint`, to the scores. It overwrites `joint`. The
    networks have the same number of layers and the same activation."""
    tanh, depth, steps = networks[0].tanh, len(networks[0].layers), []
    inputs = _cut(joint, [network.first.shape[1] for network in networks])
    for i in range(depth):
        widths = [network.layers[i].shape[1] for network in networks]
        following = np.ones(sum(widths) + (i < depth - 1) * len(widths), np.float32)
        outputs = _cut(following, [width + (i < depth - 1) for width in widths])
        matrices = [network.layers[i].astype(np.float32) for network in networks]
        products = [(x, w, y[:n]) for x, w, y, n in zip(inputs, matrices, outputs, widths, strict=True)]
        normalised = [(k, inputs[k], inputs[k][:-1]) for k, network in enumerate(networks) if network.normalise]
        steps.append((joint, normalised, products))
        joint, inputs = following, outputs
    ends = np.cumsum([0, *(len(x) for x in inputs)]).tolist()
    scores = [(network.score, *span) for network, span in zip(networks, pairwise(ends), strict=True)]
    last, ones = joint, [1.0] * len(networks)

    def forward() -> list[float]:
        deviations = ones.copy()
        for joint, normalised, products in steps:
            for k, x, hidden in normalised:
                variance = float(hidden.dot(hidden)) / len(hidden)
                x[-1] = deviations[k] = sqrt(variance + LAYER_NORM_EPSILON * deviations[k] ** 2)
            if tanh:
                for k, _, hidden in normalised:
                    np.divide(hidden, deviations[k], hidden)
                    deviations[k] = 1.0
                np.tanh(joint, joint)
                for x, _, _ in products:
                    x[-1] = 1.0
            else:
                np.maximum(joint, ZERO, out=joint)  # of the positive numbers at the ends too
            for x, matrix, y in products:
                x.dot(matrix, y)
        numbers = last.tolist()
        return [score(numbers[a:b], s) for (score, a, b), s in zip(scores, deviations, strict=True)]

    return forward


def _cut(vector: np.ndarray, widths: Sequence[int]) -> list[np.ndarray]:
    return np.split(vector, np.cumsum(widths)[:-1])


def whitening_layer(artifact: Artifact) -> np.ndarray:
    """W' (s - centre), whose square is the distance."""
    whitening = artifact.tensors["guard_whitening"].astype(np.float64)
    offset = -artifact.tensors["guard_centre"].astype(np.float64) @ whitening
    return over_inputs(artifact, ("observation",), whitening, offset)


def _detector(artifact: Artifact) -> NetworkOfAScore:
    """KL(N(mean, std^2) || N(0, 1))."""
    least, most = LOG_STD_RANGES["latent-gaussian"]

    def divergence(raw: list[float], deviation: float) -> float:
        if deviation != 1.0:
            raw = [number / deviation for number in raw]
        half, total = len(raw) // 2, 0.0
        for mean, log_std in zip(raw[:half], raw[half:], strict=True):
            if not least <= log_std <= most:
                log_std = least if log_std < least else most if log_std > most else log_std  # NaN stays NaN
            total += mean * mean + exp(log_std + log_std) - log_std - log_std
        return 0.5 * (total - half)

    return _network(artifact, "encoder", divergence)


def _cost_to_go(artifact: Artifact) -> NetworkOfAScore:
    scale = artifact.networks["cost"].scale
    return _network(artifact, "cost", lambda raw, deviation: scale * raw[0] / deviation)


NETWORKS = {"detector": _detector, "cost_to_go": _cost_to_go}


def _network(artifact: Artifact, name: str, score: Callable[[list[float], float], float]) -> NetworkOfAScore:
    network, tensors = artifact.networks[name], artifact.tensors
    count = layer_count(tensors, name)
    layers = [[tensors[f"{name}.{i}.{part}"].astype(np.float64) for part in ("weight", "bias")] for i in range(count)]
    if network.layer_norm:
        layers = [[part - part.mean(-1, keepdims=True) for part in layer] for layer in layers[:-1]] + layers[-1:]
    first = over_inputs(artifact, network.inputs, *layers[0])
    if count > 1:
        first = np.concatenate([first, np.eye(len(first))[:, -1:]], 1)  # a last output of 1
    rest = [np.concatenate([weight, bias[None]]) for weight, bias in layers[1:]]
    return NetworkOfAScore(first, rest, network.layer_norm, network.activation == "tanh", score)


def over_inputs(artifact: Artifact, inputs: Sequence[str], weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """A layer as a matrix over (observation, action, limit, 1), 0 for what it does not take."""
    sizes = {"observation": artifact.observation_dim, "action": artifact.action_dim, "limit": 1}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    matrix = np.zeros((sum(sizes.values()) + 1, weight.shape[1]))
    row = 0
    for name in inputs:
        matrix[starts[name] : starts[name] + sizes[name]] = weight[row : row + sizes[name]]
        row += sizes[name]
    matrix[-1] = bias
    return matrix
