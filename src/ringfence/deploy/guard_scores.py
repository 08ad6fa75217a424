"""The numbers that a guard's rules compare, for one observation and one action, in few NumPy calls.

They are those of `Artifact.detector_score` and `Artifact.cost_to_go` and the distance of `reference.py`, up to rounding.
What makes them quick:

    one first product   detector, cost critic and whitening read the same inputs: their matrices stand side by side
    bias as a row       of an input that is always 1: no call of its own
    LayerNorm           subtracting the mean is linear: it is done once, in the weights. Dividing by the deviation s > 0
                        commutes with relu and with the next product: it is left to the last layer
    Python numbers      for a handful of actions and latents they are quicker than a NumPy call
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.network import LAYER_NORM_EPSILON, LOG_STD_RANGES, layer_count

ZERO = np.zeros((), np.float32)
Rest = Callable[[np.ndarray], float]  # from what the first product gives to the score


class Scores:
    """`Scores(artifact, ("together", "cost_to_go"))(observation, action)` gives the numbers of these rules, in this order.

    It keeps its buffers between calls: two threads must not share one."""

    def __init__(self, artifact: Artifact, rules: Sequence[str]):
        observations = artifact.observation_dim
        self._inputs = np.zeros(observations + artifact.action_dim + 2, np.float32)  # observation, action, limit, 1
        self._inputs[-1] = 1.0
        self._state, self._action = self._inputs[:observations], self._inputs[observations:-2]
        self._mean, self._std = artifact.observation_mean, artifact.observation_std
        low, high = artifact.action_low.tolist(), artifact.action_high.tolist()
        self._bounds = [(a, (b - a) / 2) for a, b in zip(low, high, strict=True)]
        parts = [SCORES[rule](artifact) for rule in rules]
        widths = [first.shape[1] for first, _ in parts]
        joined = np.concatenate([np.zeros((len(self._inputs), 0)), *(first for first, _ in parts)], 1)
        self._first = np.ascontiguousarray(joined, np.float32)
        self._outputs = np.zeros(sum(widths), np.float32)
        starts = np.cumsum([0, *widths])
        self._rest = [(rest, self._outputs[i : i + n]) for (_, rest), i, n in zip(parts, starts, widths, strict=False)]

    def __call__(
        self, observation: np.ndarray, action: Sequence[float], scaled_limit: float | None = None
    ) -> list[float]:
        """`action` in the user's units; `scaled_limit` for a critic that takes it (`Artifact.scaled_limit`)."""
        np.subtract(observation, self._mean, self._state)
        np.divide(self._state, self._std, self._state)
        scaled = [(a - low) / half - 1.0 for a, (low, half) in zip(action, self._bounds, strict=True)]
        self._action[:] = [-1.0 if a < -1.0 else 1.0 if a > 1.0 else a for a in scaled]  # quicker than min and max
        if scaled_limit is not None:
            self._inputs[-2] = scaled_limit
        self._inputs.dot(self._first, self._outputs)
        return [rest(outputs) for rest, outputs in self._rest]


def _distance(artifact: Artifact) -> tuple[np.ndarray, Rest]:
    """|W' (s - centre)|^2."""
    whitening = artifact.tensors["guard_whitening"].astype(np.float64)
    offset = -artifact.tensors["guard_centre"].astype(np.float64) @ whitening
    return _over_inputs(artifact, ("observation",), whitening, offset), lambda x: float(x.dot(x))


def _detector(artifact: Artifact) -> tuple[np.ndarray, Rest]:
    """KL(N(mean, std^2) || N(0, 1))."""
    first, forward = _network(artifact, "encoder")
    least, most = LOG_STD_RANGES["latent-gaussian"]

    def divergence(x: np.ndarray) -> float:
        outputs, deviation = forward(x)
        raw = outputs.tolist() if deviation == 1.0 else (outputs / deviation).tolist()
        half, total = len(raw) // 2, 0.0
        for mean, log_std in zip(raw[:half], raw[half:], strict=True):
            log_std = least if log_std < least else most if log_std > most else log_std  # NaN stays NaN
            total += mean * mean + math.exp(2.0 * log_std) - 1.0 - 2.0 * log_std
        return 0.5 * total

    return first, divergence


def _cost_to_go(artifact: Artifact) -> tuple[np.ndarray, Rest]:
    first, forward = _network(artifact, "cost")
    scale = artifact.networks["cost"].scale

    def value(x: np.ndarray) -> float:
        outputs, deviation = forward(x)
        return scale * float(outputs[0]) / deviation

    return first, value


SCORES = {"together": _distance, "detector": _detector, "cost_to_go": _cost_to_go}


def _network(artifact: Artifact, name: str) -> tuple[np.ndarray, Callable[[np.ndarray], tuple[np.ndarray, float]]]:
    """The first layer as a matrix over all inputs, and a function from its outputs, which it overwrites, to the last
    layer's and the number by which they must still be divided.

    The outputs x of a hidden layer end with its deviation s, the input of the next layer's bias: x = s (true values, 1)."""
    network, tensors = artifact.networks[name], artifact.tensors
    count = layer_count(tensors, name)
    layers = [[tensors[f"{name}.{i}.{part}"].astype(np.float64) for part in ("weight", "bias")] for i in range(count)]
    normalise, tanh = network.layer_norm, network.activation == "tanh"
    if normalise:
        layers = [[part - part.mean(-1, keepdims=True) for part in layer] for layer in layers[:-1]] + layers[-1:]
    first = _over_inputs(artifact, network.inputs, *layers[0])
    if count > 1:
        first = np.concatenate([first, np.eye(len(first))[:, -1:]], 1)  # a last output of 1
    steps = []
    for i, (weight, bias) in enumerate(layers[1:], 2):
        outputs = np.ones(len(bias) + (i < count), np.float32)
        steps.append((np.concatenate([weight, bias[None]]).astype(np.float32), outputs[: len(bias)], outputs))

    def relu_forward(x: np.ndarray) -> tuple[np.ndarray, float]:
        for matrix, products, outputs in steps:
            np.maximum(x, ZERO, out=x)  # of the 1 at its end too
            x.dot(matrix, products)
            x = outputs
        return x, 1.0

    def forward(x: np.ndarray) -> tuple[np.ndarray, float]:
        deviation = 1.0
        for matrix, products, outputs in steps:
            if normalise:
                hidden = x[:-1]
                deviation = math.sqrt(hidden.dot(hidden) / len(hidden) + LAYER_NORM_EPSILON * deviation * deviation)
                if tanh:
                    np.divide(x, deviation, x)
                    deviation = 1.0
            if tanh:
                np.tanh(x, x)
            else:
                np.maximum(x, ZERO, out=x)
            x[-1] = deviation
            x.dot(matrix, products)
            x = outputs
        return x, deviation

    return first, forward if normalise or tanh else relu_forward


def _over_inputs(artifact: Artifact, inputs: Sequence[str], weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
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
