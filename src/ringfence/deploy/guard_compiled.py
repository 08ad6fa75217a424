"""The numbers of `guard_scores.py` in one call of the compiled library (`kernels/scores.h`), where it was built.

It reads the networks as they are described, without what `guard_scores.py` does to save NumPy calls; the two agree up to
rounding. `RINGFENCE_KERNELS=xla` goes without it.
"""

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ringfence.deploy.artifact import Artifact
from ringfence.deploy.guard_scores import Inputs, over_inputs, whitening_layer
from ringfence.deploy.network import LOG_STD_RANGES, layer_count
from ringfence.kernels.library import chosen

NETWORKS = {"detector": "encoder", "cost_to_go": "cost"}  # rule: name of its network
SQUARE, DIVERGENCE, VALUE = range(3)
Weights = tuple[np.ndarray, np.ndarray]  # (inputs, outputs) and (outputs,)


class Layer(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
    )


class Score(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(Layer)),
        ("depth", ctypes.c_int64),
        ("normalise", ctypes.c_int64),
        ("tanh", ctypes.c_int64),
        ("meaning", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("least_log_std", ctypes.c_double),
        ("most_log_std", ctypes.c_double),
    )


class CompiledScores:
    """As `guard_scores.Scores`. Two threads must not share one."""

    def __init__(self, artifact: Artifact, rules: Sequence[str], function: Any):
        self.inputs = Inputs(artifact)
        self._weights = {rule: _layers(artifact, rule) for rule in rules}  # the library keeps addresses only
        self._layers = {rule: _addresses(layers) for rule, layers in self._weights.items()}
        scores = [_described(artifact, rule, layers) for rule, layers in self._layers.items()]
        widest = max((len(bias) for layers in self._weights.values() for _, bias in layers), default=0)
        self._memory, self._values = np.zeros(2 * widest, np.float32), np.zeros(len(rules))
        self._compute = partial(
            function,
            (Score * len(rules))(*scores),
            ctypes.c_int64(len(rules)),
            _address(self.inputs.joined),
            _address(self._memory),
            ctypes.c_int64(widest),
            _address(self._values),
        )

    def __call__(self) -> list[float]:
        self._compute()
        numbers: list[float] = self._values.tolist()
        return numbers


def compiled_scores(artifact: Artifact, rules: Sequence[str]) -> CompiledScores | None:
    """The scores of these rules; None where the library is not there."""
    path = chosen().path
    try:  # PyDLL: the call is too short for other threads to run meanwhile
        function = None if path is None else ctypes.PyDLL(str(path)).ringfence_scores
    except (OSError, AttributeError):  # built for another system, or by an older version
        return None
    if function is None:
        return None
    function.restype = None
    return CompiledScores(artifact, rules, function)


def _layers(artifact: Artifact, rule: str) -> list[Weights]:
    """Contiguous float32 arrays; the first layer is one over `Inputs.joined` but its last."""
    if rule == "together":
        return [_over_joined(whitening_layer(artifact))]
    name, tensors = NETWORKS[rule], artifact.tensors
    layers = [(tensors[f"{name}.{i}.weight"], tensors[f"{name}.{i}.bias"]) for i in range(layer_count(tensors, name))]
    first = over_inputs(artifact, artifact.networks[name].inputs, *layers[0])
    return [_over_joined(first), *((_float32(weight), _float32(bias)) for weight, bias in layers[1:])]


def _over_joined(matrix: np.ndarray) -> Weights:
    return _float32(matrix[:-1]), _float32(matrix[-1])


def _addresses(layers: Sequence[Weights]) -> "ctypes.Array[Layer]":
    every = [Layer(_address(weight), _address(bias), *weight.shape) for weight, bias in layers]
    return (Layer * len(every))(*every)


def _described(artifact: Artifact, rule: str, layers: "ctypes.Array[Layer]") -> Score:
    if rule == "together":
        return Score(layers=layers, depth=len(layers), meaning=SQUARE)
    network = artifact.networks[NETWORKS[rule]]
    least, most = LOG_STD_RANGES["latent-gaussian"]
    return Score(
        layers=layers,
        depth=len(layers),
        normalise=network.layer_norm,
        tanh=network.activation == "tanh",
        meaning=DIVERGENCE if rule == "detector" else VALUE,
        scale=network.scale,
        least_log_std=least,
        most_log_std=most,
    )


def _float32(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32)


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
