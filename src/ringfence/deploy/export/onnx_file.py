"""A policy as an ONNX model.

Inputs: `observation` (batch, obs) in the user's units and, for a policy that takes it, `limit` (1,), which has a default.
Outputs: `action` (batch, act) and, where the artifact has what they need, the scores that a guard compares:
`detector_score` (batch,) and `cost_to_go` (batch,) of each observation and its action, `together` (batch,) of the
observation. Names, units, bounds, thresholds and metadata are the model's metadata.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ringfence.deploy.actors import VERSION_1_LATENT_BOUND
from ringfence.deploy.export.content import Content
from ringfence.deploy.export.onnx_graph import Graph, distance, forward, gaussian, kl_to_standard, value
from ringfence.errors import MissingExtra

OPSET, IR_VERSION = 18, 8  # of 2022: run by every runtime since


class Parts:
    """A graph together with the artifact's networks."""

    def __init__(self, content: Content):
        self.content, self.artifact, self.graph = content, content.artifact, Graph()

    def joined(self, name: str, **inputs: str) -> str:
        """The inputs of a network in its order."""
        wanted = self.artifact.networks[name].inputs
        first = next(iter(inputs.values()))
        parts = [inputs[i] if i in inputs else self.graph.rows_like("scaled_limit", first, 1) for i in wanted]
        return parts[0] if len(parts) == 1 else self.graph.op("Concat", *parts, axis=-1)

    def run(self, head: Callable[..., Any], name: str, **inputs: str) -> Any:
        x = self.joined(name, **inputs)
        return head(self.graph, self.artifact.networks[name], self.artifact.tensors, x)

    def tanh(self, name: str, **inputs: str) -> str:
        return self.graph.op("Tanh", self.run(forward, name, **inputs))


def tanh_gaussian(parts: Parts, state: str) -> str:
    return parts.graph.op("Tanh", parts.run(gaussian, "actor", observation=state)[0])


def clipped_gaussian(parts: Parts, state: str) -> str:
    return parts.graph.clip(parts.tanh("actor", observation=state), -1.0, 1.0)


def mixture(parts: Parts, state: str) -> str:
    return parts.tanh(f"component.{parts.content.chosen}", observation=state)


def bcq(parts: Parts, state: str) -> str:
    graph, tensors = parts.graph, parts.artifact.tensors
    bound = tensors.get("latent_bound", np.float32(VERSION_1_LATENT_BOUND))
    latents = np.clip(tensors["latents"], -bound, bound)
    states = repeated(graph, state, len(latents))
    # (batch, n, latent): the same n latents in every state
    shape = graph.op("Concat", graph.op("Shape", states, start=0, end=-1), graph.whole(latents.shape[1]), axis=0)
    spread = graph.op("Expand", graph.constant(latents, "latents"), shape)
    decoded = parts.tanh("decoder", observation=states, latent=spread)
    move = parts.tanh("perturbation", observation=states, action=decoded)
    moved = graph.op("Add", decoded, graph.op("Mul", move, graph.constant(tensors["phi"], "phi")))
    return best(parts, states, graph.clip(moved, -1.0, 1.0))


def bear(parts: Parts, state: str) -> str:
    graph, draws = parts.graph, parts.artifact.tensors["noise"]
    mean, log_std = (
        graph.op("Unsqueeze", part, graph.whole(1)) for part in parts.run(gaussian, "actor", observation=state)
    )
    moved = graph.op("Mul", graph.op("Exp", log_std), graph.constant(draws, "noise"))
    return best(parts, repeated(graph, state, len(draws)), graph.op("Tanh", graph.op("Add", mean, moved)))


def repeated(graph: Graph, state: str, count: int) -> str:
    """(batch, obs) to (batch, count, obs)."""
    return graph.op("Expand", graph.op("Unsqueeze", state, graph.whole(1)), graph.whole(1, count, 1))


def best(parts: Parts, states: str, actions: str) -> str:
    """The candidate with the greatest Qr_1 - lambda Qc: (batch, n, act) to (batch, act)."""
    graph = parts.graph
    reward = parts.run(value, "reward_1", observation=states, action=actions)
    cost = parts.run(value, "cost", observation=states, action=actions)
    penalty = graph.op("Mul", cost, graph.constant(parts.artifact.tensors["lambda"], "lambda"))
    chosen = graph.op("ArgMax", graph.op("Sub", reward, penalty), axis=1, keepdims=1)
    return graph.op("GatherND", actions, chosen, batch_dims=1)


ACTORS: Mapping[str, Callable[[Parts, str], str]] = {
    "tanh-gaussian": tanh_gaussian,
    "clipped-gaussian": clipped_gaussian,
    "bcq": bcq,
    "bear": bear,
    "mixture": mixture,
}


def build(content: Content) -> tuple[Graph, list[str]]:
    """The graph and the names of its outputs."""
    parts, artifact = Parts(content), content.artifact
    graph = parts.graph
    if content.limit is not None:
        least, greatest = artifact.limit_range or (0.0, 1.0)
        share = graph.op("Sub", graph.clip("limit", least, greatest), graph.constant(least))
        graph.op(
            "Sub",
            graph.op("Mul", share, graph.constant(2.0 / (greatest - least))),
            graph.constant(1.0),
            out="scaled_limit",
        )
    centred = graph.op("Sub", "observation", graph.constant(artifact.observation_mean, "observation_mean"))
    state = graph.op("Div", centred, graph.constant(artifact.observation_std, "observation_std"))
    low, high = artifact.action_low, artifact.action_high
    unit = ACTORS[artifact.kind](parts, state)
    scaled = graph.op("Add", graph.op("Mul", unit, graph.constant((high - low) / 2)), graph.constant((high + low) / 2))
    outputs = [graph.clip(scaled, low, high, out="action")]
    # The scores are those of the action that is sent, as an artifact gives them.
    share = graph.op("Div", graph.op("Sub", "action", graph.constant(low)), graph.constant((high - low) / 2))
    sent = graph.clip(graph.op("Sub", share, graph.constant(1.0)), -1.0, 1.0)
    if content.has_detector:
        mean, log_std = parts.run(gaussian, "encoder", observation=state, action=sent)
        outputs.append(kl_to_standard(graph, mean, log_std, out="detector_score"))
    if content.has_cost:
        cost = parts.run(value, "cost", observation=state, action=sent)
        outputs.append(graph.op("Identity", cost, out="cost_to_go"))
    if content.has_together:
        outputs.append(distance(graph, artifact.tensors, state, out="together"))
    return graph, outputs


def needed(nodes: list[Any], outputs: list[str]) -> list[Any]:
    """The nodes that the outputs depend on, in their order."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if node.output[0] in wanted:
            wanted |= set(node.input)
            kept.append(node)
    return kept[::-1]


def onnx_files(content: Content, stem: str) -> dict[str, bytes]:
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError as error:
        raise MissingExtra("the export to ONNX needs the onnx package: pip install 'ringfence[export]'") from error
    graph, names = build(content)
    artifact = content.artifact

    def described(name: str, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    inputs = [described("observation", "batch", artifact.observation_dim)]
    if content.limit is not None:  # an input that is also a constant has that constant as its default
        inputs.append(described("limit", 1))
        graph.constant([content.limit], "limit")
    shapes = {"action": ("batch", artifact.action_dim)}
    nodes = needed(graph.nodes, names)
    used = {name for node in nodes for name in node.input}
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "ringfence policy",
            inputs,
            [described(name, *shapes.get(name, ("batch",))) for name in names],
            [numpy_helper.from_array(array, name) for name, array in graph.constants.items() if name in used],
            doc_string=__doc__,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="ringfence",
        producer_version=content.facts["ringfence_version"],
    )
    helper.set_model_props(model, content.facts)
    checker.check_model(model, full_check=True)
    return {".onnx": model.SerializeToString(deterministic=True)}
