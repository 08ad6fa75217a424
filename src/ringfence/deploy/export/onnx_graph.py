"""An ONNX graph under construction, and the networks of an artifact in it."""

from typing import Any

import numpy as np

from ringfence.deploy.network import LAYER_NORM_EPSILON, LOG_STD_RANGES, Network, Tensors, layer_count


class Graph:
    """Nodes and constants in the order they were added. Values are known by name; names are made here."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}

    def op(self, kind: str, *inputs: str, out: str | None = None, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        from onnx import helper

        name = out or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: Any, name: str | None = None, dtype: type = np.float32) -> str:
        name = name or f"constant_{len(self.constants)}"
        self.constants.setdefault(name, np.asarray(value, dtype))
        return name

    def whole(self, *numbers: int) -> str:
        return self.constant(numbers, dtype=np.int64)

    def clip(self, x: str, low: Any, high: Any, out: str | None = None) -> str:
        """Bounds may be vectors, which ONNX's Clip does not take."""
        return self.op("Min", self.op("Max", x, self.constant(low)), self.constant(high), out=out)

    def rows_like(self, x: str, other: str, width: int) -> str:
        """x, one row, repeated to (*rows of `other`, width)."""
        rows = self.op("Shape", other, start=0, end=-1)
        return self.op("Expand", x, self.op("Concat", rows, self.whole(width), axis=0))


def forward(graph: Graph, network: Network, tensors: Tensors, x: str) -> str:
    """The last layer's outputs, as `ringfence.deploy.network.forward`."""
    for i in range(layer_count(tensors, network.name)):
        if i > 0:
            x = layer_norm(graph, x) if network.layer_norm else x
            x = graph.op("Tanh" if network.activation == "tanh" else "Relu", x)
        weight, bias = (f"{network.name}.{i}.{part}" for part in ("weight", "bias"))
        product = graph.op("MatMul", x, graph.constant(tensors[weight], weight))
        x = graph.op("Add", product, graph.constant(tensors[bias], bias))
    return x


def layer_norm(graph: Graph, x: str) -> str:
    last = graph.whole(-1)
    centred = graph.op("Sub", x, graph.op("ReduceMean", x, last, keepdims=1))
    variance = graph.op("ReduceMean", graph.op("Mul", centred, centred), last, keepdims=1)
    return graph.op("Div", centred, graph.op("Sqrt", graph.op("Add", variance, graph.constant(LAYER_NORM_EPSILON))))


def value(graph: Graph, network: Network, tensors: Tensors, x: str) -> str:
    raw = graph.op("Squeeze", forward(graph, network, tensors, x), graph.whole(-1))
    return graph.op("Mul", raw, graph.constant(network.scale))


def gaussian(graph: Graph, network: Network, tensors: Tensors, x: str) -> tuple[str, str]:
    """Mean and log std."""
    raw = forward(graph, network, tensors, x)
    width = tensors[f"{network.name}.{layer_count(tensors, network.name) - 1}.bias"].shape[0] // 2
    mean, log_std = (
        graph.op("Slice", raw, graph.whole(start), graph.whole(start + width), graph.whole(-1)) for start in (0, width)
    )
    return mean, graph.clip(log_std, *LOG_STD_RANGES[network.head])


def kl_to_standard(graph: Graph, mean: str, log_std: str, out: str) -> str:
    """KL(N(mean, std^2) || N(0, 1)) of each row: half the sum of mean^2 + std^2 - 1 - 2 log std."""
    twice = graph.op("Mul", log_std, graph.constant(2.0))
    squares = graph.op("Add", graph.op("Mul", mean, mean), graph.op("Exp", twice))
    terms = graph.op("Sub", graph.op("Sub", squares, graph.constant(1.0)), twice)
    return graph.op("Mul", graph.op("ReduceSum", terms, graph.whole(-1), keepdims=0), graph.constant(0.5), out=out)


def distance(graph: Graph, tensors: Tensors, state: str, out: str) -> str:
    """How unlike the log the columns go together, as in `ringfence.deploy.reference`: |W' (s - centre)|^2 of each row."""
    centred = graph.op("Sub", state, graph.constant(tensors["guard_centre"], "guard_centre"))
    white = graph.op("MatMul", centred, graph.constant(tensors["guard_whitening"], "guard_whitening"))
    return graph.op("ReduceSum", graph.op("Mul", white, white), graph.whole(-1), keepdims=0, out=out)
