"""A policy as C99: one header and one source file, no allocation, no dependency but libm, the weights inside."""

import re
from collections.abc import Callable, Mapping

import numpy as np

from ringfence.deploy.actors import VERSION_1_LATENT_BOUND
from ringfence.deploy.export.c_header import ACT, OBS, cost_takes_limit, header
from ringfence.deploy.export.c_text import FUNCTIONS, array, names, number
from ringfence.deploy.export.content import Content
from ringfence.deploy.network import LAYER_NORM_EPSILON, LOG_STD_RANGES, Network, input_count, layer_count, output_count
from ringfence.errors import InvalidSetting


class Source:
    """C code under construction: constants and one function for each network that was asked for."""

    def __init__(self, content: Content):
        self.content, self.artifact = content, content.artifact
        self.constants: dict[str, str] = {}
        self.functions: dict[str, str] = {}

    def constant(self, name: str, values: np.ndarray) -> str:
        self.constants.setdefault(name, array(name, values))
        return name

    def call(self, name: str, output: str, **inputs: str) -> str:
        """A statement that puts the network's outputs into an array."""
        network = self.artifact.networks[name]
        function = f"network_{identifier(name)}"
        if function not in self.functions:
            self.functions[function] = self._function(function, network)
        given = {"limit": "&limit", **inputs}
        return f"{function}({', '.join(given[i] for i in network.inputs)}, {output});"

    def width(self, name: str) -> int:
        return output_count(self.artifact.networks[name], self.artifact.tensors)

    def _function(self, function: str, network: Network) -> str:
        tensors, name = self.artifact.tensors, network.name
        layers, count = layer_count(tensors, name), input_count(network, tensors)
        known = {"observation": self.artifact.observation_dim, "action": self.artifact.action_dim, "limit": 1}
        rest = count - sum(known.get(i, 0) for i in network.inputs)
        sizes = {i: known.get(i, rest) for i in network.inputs}
        hidden = [tensors[f"{name}.{i}.weight"].shape[1] for i in range(layers - 1)]
        buffers = [f"{letter}[{max(hidden)}]" for letter in "ab"[: len(hidden)]]
        body = [f"float {', '.join([f'x[{count}]', *buffers])};"]
        joins = [f"join({{}}, {i}, {size})" for i, size in sizes.items()]
        nested = "x"
        for join in joins:
            nested = join.format(nested)
        body.append(f"{nested};")
        at, width = "x", count
        for i in range(layers):
            weight, bias = (
                self.constant(f"{identifier(name)}_{i}_{part}", tensors[f"{name}.{i}.{part}"])
                for part in ("weight", "bias")
            )
            to = "output" if i == layers - 1 else "ab"[i % 2]
            made = tensors[f"{name}.{i}.bias"].shape[0]
            body.append(f"linear({at}, {width}, {weight}, {bias}, {made}, {to});")
            at, width = to, made
            if i < layers - 1:
                body += [f"layer_norm({at}, {width});"] * network.layer_norm
                body.append(f"{'squash' if network.activation == 'tanh' else 'relu'}({at}, {width});")
        body += head(network, width)
        arguments = ", ".join(f"const float *{i}" for i in network.inputs)
        lines = "".join(f"    {line}\n" for line in body)
        return f"static void {function}({arguments}, float *output)\n{{\n{lines}}}\n"


def identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def head(network: Network, width: int) -> list[str]:
    if network.head == "value":
        return [f"output[0] *= {number(network.scale)};"]
    if network.head == "tanh":
        return [f"squash(output, {width});"]
    low, high = (number(bound) for bound in LOG_STD_RANGES[network.head])
    loop = f"for (int i = {width // 2}; i < {width}; i++)"
    return [loop, f"    output[i] = clip(output[i], {low}, {high});"]


def tanh_gaussian(source: Source) -> list[str]:
    call = source.call("actor", "output", observation="state")
    return [f"float output[{source.width('actor')}];", call, each("unit[i] = tanhf(output[i]);")]


def clipped_gaussian(source: Source) -> list[str]:
    return [source.call("actor", "unit", observation="state"), each("unit[i] = clip(unit[i], -1.0f, 1.0f);")]


def mixture(source: Source) -> list[str]:
    return [source.call(f"component.{source.content.chosen}", "unit", observation="state")]


def bcq(source: Source) -> list[str]:
    tensors = source.artifact.tensors
    bound = tensors.get("latent_bound", np.float32(VERSION_1_LATENT_BOUND))
    latents = np.clip(tensors["latents"], -bound, bound)
    latent = f"{source.constant('latents', latents)} + n * {latents.shape[1]}"
    moved = f"candidate[i] = clip(candidate[i] + {number(tensors['phi'][0])} * move[i], -1.0f, 1.0f);"
    candidate = [
        source.call("decoder", "candidate", observation="state", latent=latent),
        source.call("perturbation", "move", observation="state", action="candidate"),
        each(moved),
    ]
    return [f"float move[{ACT}];", *best(source, len(latents), candidate)]


def bear(source: Source) -> list[str]:
    draws = source.artifact.tensors["noise"]
    noise = source.constant("noise", draws)
    drawn = f"candidate[i] = tanhf(output[i] + expf(output[{ACT} + i]) * {noise}[n * {ACT} + i]);"
    call = source.call("actor", "output", observation="state")
    return [f"float output[{source.width('actor')}];", *best(source, len(draws), [each(drawn)], before=[call])]


def best(source: Source, count: int, candidate: list[str], before: list[str] | None = None) -> list[str]:
    """The candidate with the greatest Qr_1 - lambda Qc, the first of equals; none if one of them is not finite."""
    penalty = number(source.artifact.tensors["lambda"][0])
    loop = [
        *candidate,
        source.call("reward_1", "&reward", observation="state", action="candidate"),
        source.call("cost", "&cost", observation="state", action="candidate"),
        f"reward -= {penalty} * cost;",
        "if (!isfinite(reward))",
        "    return middle(action);",
        "if (n == 0 || reward > best) {",
        "    best = reward;",
        f"    join(unit, candidate, {ACT});",
        "}",
    ]
    return [
        f"float candidate[{ACT}], reward, cost, best = 0.0f;",
        *(before or []),
        f"for (int n = 0; n < {count}; n++) {{",
        *(f"    {line}" for line in loop),
        "}",
    ]


def each(statement: str) -> str:
    return f"for (int i = 0; i < {ACT}; i++) {statement}"


ACTORS: Mapping[str, Callable[[Source], list[str]]] = {
    "tanh-gaussian": tanh_gaussian,
    "clipped-gaussian": clipped_gaussian,
    "bcq": bcq,
    "bear": bear,
    "mixture": mixture,
}


def act_function(source: Source) -> str:
    takes_limit = source.content.limit is not None
    body = [f"float state[{OBS}], unit[{ACT}];", *ACTORS[source.artifact.kind](source)]
    at = next(i for i, line in enumerate(body) if not line.startswith("float "))
    refuse = ["if (!normalise(observation, state))", "    return middle(action);"]
    scaled = [
        each("if (!isfinite(unit[i])) return middle(action);"),
        each(f"action[i] = clip({MIDDLE} + {HALF} * unit[i], action_low[i], action_high[i]);"),
    ]
    begin = ["limit = scaled_limit(limit);"] if takes_limit else []
    lines = "".join(f"    {line}\n" for line in [*body[:at], *begin, *refuse, *body[at:], *scaled, "return 0;"])
    if not takes_limit:
        return f"int ringfence_act(const float *observation, float *action)\n{{\n{lines}}}\n"
    return (
        f"int ringfence_act_limit(const float *observation, float limit, float *action)\n{{\n{lines}}}\n\n"
        "int ringfence_act(const float *observation, float *action)\n"
        "{\n    return ringfence_act_limit(observation, RINGFENCE_LIMIT, action);\n}\n"
    )


MIDDLE, HALF = "(action_high[i] + action_low[i]) / 2.0f", "(action_high[i] - action_low[i]) / 2.0f"
SENT = "unit[i] = clip(2.0f * (action[i] - action_low[i]) / (action_high[i] - action_low[i]) - 1.0f, -1.0f, 1.0f);"


def scores_function(source: Source) -> str:
    """The detector's score and the cost-to-go, for an artifact that has both; at any limit where the critic takes one."""
    width, takes_limit = source.width("encoder"), cost_takes_limit(source.content)
    limit = ["limit = scaled_limit(limit);"] if takes_limit else []
    lines = [
        f"float state[{OBS}], unit[{ACT}], latent[{width}], divergence = 0.0f, cost;",
        *limit,
        each("if (!isfinite(action[i])) return 1;"),
        "if (!normalise(observation, state))",
        "    return 1;",
        each(SENT),
        source.call("encoder", "latent", observation="state", action="unit"),
        f"for (int i = 0; i < {width // 2}; i++) {{",
        f"    const float log_std = latent[{width // 2} + i];",
        "    divergence += 0.5f * (latent[i] * latent[i] + expf(2.0f * log_std) - 1.0f - 2.0f * log_std);",
        "}",
        source.call("cost", "&cost", observation="state", action="unit"),
        "if (!isfinite(divergence) || !isfinite(cost))",
        "    return 1;",
        "scores[0] = divergence;",
        "scores[1] = cost;",
        "return 0;",
    ]
    body = "".join(f"    {line}\n" for line in lines)
    plain = "int ringfence_scores(const float *observation, const float *action, float *scores)"
    if not takes_limit:
        return f"{plain}\n{{\n{body}}}\n"
    return (
        "int ringfence_scores_limit(const float *observation, const float *action, float limit, float *scores)\n"
        f"{{\n{body}}}\n\n"
        f"{plain}\n{{\n    return ringfence_scores_limit(observation, action, RINGFENCE_LIMIT, scores);\n}}\n"
    )


NORMALISE = f"""static int normalise(const float *observation, float *state)
{{
    for (int i = 0; i < {OBS}; i++) {{
        state[i] = (observation[i] - observation_mean[i]) / observation_std[i];
        if (!isfinite(state[i]))
            return 0;
    }}
    return 1;
}}
"""


REFUSE = f"""static int middle(float *action)
{{
    for (int i = 0; i < {ACT}; i++)
        action[i] = {MIDDLE};
    return 1;
}}
"""


def c_files(content: Content, stem: str) -> dict[str, bytes]:
    if '"' in stem or "\n" in stem:
        raise InvalidSetting(f"a header named {f'{stem}.h'!r} cannot be included in C; choose another name with --out")
    source, artifact = Source(content), content.artifact
    for name in ("observation_mean", "observation_std", "action_low", "action_high"):
        source.constant(name, getattr(artifact, name))
    entry = [act_function(source)]
    if content.has_detector and content.has_cost:
        entry.append(scores_function(source))
    own = [*source.functions.values(), NORMALISE, REFUSE, *entry]
    if content.limit is not None:
        own.insert(0, limit_function(content))
    helpers = [text.strip() + "\n" for name, text in FUNCTIONS.items() if any(f"{name}(" in part for part in own)]
    helpers = [text.replace("EPSILON", number(LAYER_NORM_EPSILON)) for text in helpers]
    public = [
        names("ringfence_observation_names", artifact.observation_names),
        names("ringfence_action_names", artifact.action_names),
    ]
    include = f'#include "{stem}.h"\n\n#include <math.h>\n'
    text = "\n".join([include, *public, *source.constants.values(), *helpers, *own])
    return {".h": header(content).encode(), ".c": text.encode()}


def limit_function(content: Content) -> str:
    least, greatest = content.artifact.limit_range or (0.0, 1.0)
    low, high = number(least), number(greatest)
    return (
        "static float scaled_limit(float limit)\n"
        f"{{\n    return 2.0f * (clip(limit, {low}, {high}) - {low}) / ({high} - {low}) - 1.0f;\n}}\n"
    )
