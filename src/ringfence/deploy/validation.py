"""What an artifact must be for its numbers to mean anything, checked when it is made and when it is loaded."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ringfence.deploy.actors import DISTANCE, KINDS, OF_ANY_KIND, component_count
from ringfence.deploy.network import Network, check_layers, input_count, layer_names, output_count
from ringfence.errors import InvalidSetting, NonFiniteValue, UnknownName, WrongShape
from ringfence.values import LARGEST_LOGGED, is_number, is_whole

if TYPE_CHECKING:
    from ringfence.deploy.artifact import Artifact


def check(artifact: "Artifact") -> None:
    """Raise unless everything in the artifact fits together."""
    if artifact.kind not in KINDS:
        raise UnknownName(f"no kind of policy is called {artifact.kind!r}; there are {', '.join(KINDS)}")
    _check_scaling(artifact)
    _check_facts(artifact)
    for name, tensor in artifact.tensors.items():
        if not np.isfinite(tensor).all():
            raise NonFiniteValue(f"tensor {name!r} holds NaN or infinity")
    for name, network in artifact.networks.items():
        if name != network.name:
            raise InvalidSetting(f"network {network.name!r} is filed under {name!r}")
        check_layers(network, artifact.tensors)
    latent = _check_sizes(artifact)
    _check_kind(artifact, latent)


def _check_scaling(artifact: "Artifact") -> None:
    mean, std, low, high = (
        artifact.observation_mean,
        artifact.observation_std,
        artifact.action_low,
        artifact.action_high,
    )
    if mean.shape != std.shape or not (std > 0).all():
        raise InvalidSetting("observation_std must be positive and as long as observation_mean")
    if low.shape != high.shape or not (low < high).all():
        raise InvalidSetting("action_low must lie below action_high, action by action")
    if not len(mean) or not len(low):
        raise WrongShape("a policy needs at least one observation and one action")
    if (artifact.observation_low is None) != (artifact.observation_high is None):
        raise InvalidSetting("give both observation_low and observation_high, or neither")
    if artifact.observation_low is not None and artifact.observation_high is not None:
        least, greatest = artifact.observation_low, artifact.observation_high
        if least.shape != mean.shape or greatest.shape != mean.shape or not (least <= greatest).all():
            raise InvalidSetting(
                "observation_low must not lie above observation_high, both as long as observation_mean"
            )
    for names, count in (("observation_names", len(mean)), ("action_names", len(low))):
        value = getattr(artifact, names)
        if len(value) != count or not all(isinstance(name, str) and name for name in value) or len(set(value)) < count:
            raise InvalidSetting(f"{names} must be {count} different strings, not {value}")
    if not all(isinstance(word, str) for pair in artifact.units.items() for word in pair):
        raise InvalidSetting(f"units must be strings by the name of a column, not {artifact.units}")


def _check_facts(artifact: "Artifact") -> None:
    for name in ("limit", "discount"):
        value = getattr(artifact, name)
        if value is not None and not (is_number(value) and value >= 0):
            raise InvalidSetting(f"{name} must be a number of at least 0, not {value!r}")
    for name in ("horizon", "steps_done", "steps_planned", "seed"):
        value = getattr(artifact, name)
        if value is not None and not (is_whole(value) and 0 <= value < 2**63):
            raise InvalidSetting(f"{name} must be a whole number from 0 to 2^63 - 1, not {value!r}")
    if artifact.discount is not None and artifact.discount > 1:
        raise InvalidSetting(f"discount must be at most 1, not {artifact.discount!r}")
    if artifact.horizon == 0:
        raise InvalidSetting("horizon must be at least 1 step")
    done, planned = artifact.steps_done, artifact.steps_planned
    if done is not None and planned is not None and done > planned:
        raise InvalidSetting(f"{done} steps were done, more than the {planned} planned")
    if artifact.method is not None and not isinstance(artifact.method, str):
        raise InvalidSetting(f"method must be a string, not {artifact.method!r}")
    given = artifact.limit_range
    if artifact.takes_limit and given is None:
        raise InvalidSetting("a network takes the limit as an input, so limit_range must be given")
    if given is not None and not (len(given) == 2 and all(map(is_number, given)) and 0 <= given[0] < given[1]):
        raise InvalidSetting(f"limit_range must be two numbers, the smaller first, not {given!r}")


def _check_sizes(artifact: "Artifact") -> int | None:
    """Inputs and outputs of every network against the sizes of what they stand for; returns the latent's size."""
    known = {"observation": artifact.observation_dim, "action": artifact.action_dim, "limit": 1, "time": 1}
    latents = {}
    for name, network in artifact.networks.items():
        given, made = input_count(network, artifact.tensors), output_count(network, artifact.tensors)
        others = sum(known[i] for i in network.inputs if i != "latent")
        if "latent" in network.inputs:
            latents[name] = given - others
        elif given != others:
            raise WrongShape(f"network {name!r} takes {given} numbers; its {', '.join(network.inputs)} have {others}")
        wanted = {"value": 1, "tanh": artifact.action_dim, "tanh-gaussian": 2 * artifact.action_dim}.get(network.head)
        if wanted is None:
            latents[name] = made // 2 if made % 2 == 0 else -1
        elif made != wanted:
            raise WrongShape(f"network {name!r} gives {made} numbers; its head {network.head!r} needs {wanted}")
    if latents and (min(latents.values()) < 1 or len(set(latents.values())) > 1):
        raise WrongShape(f"the networks {', '.join(latents)} do not agree on the size of the latent")
    return next(iter(latents.values()), None)


def _check_kind(artifact: "Artifact", latent: int | None) -> None:
    kind = KINDS[artifact.kind]
    for name, needed in kind.networks.items():
        _check_network(artifact, name, needed)
    if artifact.kind == "mixture":
        for i in range(component_count(artifact.networks)):
            _check_network(artifact, f"component.{i}", kind.networks["component.0"])
    if 0 < len(absent := [name for name in DISTANCE if name not in artifact.tensors]) < len(DISTANCE):
        raise WrongShape(f"{', '.join(DISTANCE)} belong together; {absent[0]} is missing")
    sizes = {"obs": artifact.observation_dim, "act": artifact.action_dim, "latent": latent}
    for name, shape in {**kind.tensors, **kind.optional, **OF_ANY_KIND}.items():
        if name not in artifact.tensors:
            if name not in kind.tensors:
                continue
            raise WrongShape(f"a policy of kind {artifact.kind!r} needs the tensor {name!r}")
        found = artifact.tensors[name].shape
        wanted = [sizes.get(size, size) if isinstance(size, str) else size for size in shape]
        fits = len(found) == len(wanted) and all(w in ("any", n) and n > 0 for w, n in zip(wanted, found, strict=True))
        if not fits:
            raise WrongShape(f"tensor {name!r} has shape {found}; kind {artifact.kind!r} needs {tuple(wanted)}")
    _check_values(artifact)
    layers = {name for network in artifact.networks for name in layer_names(artifact.tensors, network)}
    networks_of = {name.rsplit(".", 2)[0] for name in artifact.tensors if name.endswith((".weight", ".bias"))}
    if stray := [n for n in artifact.tensors if n.endswith((".weight", ".bias")) and n not in layers]:
        raise WrongShape(f"tensor {stray[0]!r} belongs to no network; there are {', '.join(sorted(networks_of))}")


def _check_network(artifact: "Artifact", name: str, needed: Network) -> None:
    if name not in artifact.networks:
        raise WrongShape(f"a policy of kind {artifact.kind!r} needs the network {name!r}")
    found = artifact.networks[name]
    allowed = (set(needed.inputs), {*needed.inputs, "limit"})
    if found.head != needed.head or set(found.inputs) not in allowed:
        raise InvalidSetting(
            f"network {name!r} of a policy of kind {artifact.kind!r} must take {', '.join(needed.inputs)} and have the head "
            f"{needed.head!r}, not {', '.join(found.inputs)} and {found.head!r}"
        )


def _check_values(artifact: "Artifact") -> None:
    tensors = artifact.tensors
    if artifact.kind == "mixture":
        chosen, count = float(tensors["chosen"][0]), component_count(artifact.networks)
        if chosen != int(chosen) or not 0 <= chosen < count:
            raise InvalidSetting(f"chosen must be one of the {count} components, counted from 0, not {chosen:g}")
    for name in ("phi", "lambda", "latent_bound"):
        if name in tensors and not (tensors[name] >= 0).all():
            raise InvalidSetting(f"{name} must not be negative, it is {tensors[name]}")


def vector(name: str, value: Any) -> np.ndarray:
    found = np.array(value, np.float32)
    if found.ndim != 1 or not np.isfinite(found).all():
        raise WrongShape(f"{name} must be a vector of finite numbers, not of shape {found.shape}: {found}")
    if not (np.abs(found) <= np.float32(LARGEST_LOGGED)).all():
        raise InvalidSetting(
            f"{name} holds {found[np.abs(found).argmax()]:g}; no log has numbers beyond {LARGEST_LOGGED:g}"
        )
    found.flags.writeable = False
    return found


def rows(name: str, value: np.ndarray, width: int | None) -> None:
    """Raise unless `value` is (batch, width) and finite."""
    if value.ndim != 2 or (width is not None and value.shape[1] != width):
        raise WrongShape(f"{name}s must have the shape ({width},) or (batch, {width}), not {value.shape}")
    if not np.isfinite(value).all():
        where = [int(i) for i in np.argwhere(~np.isfinite(value))[0]]
        raise NonFiniteValue(f"{name}{where} is {value[tuple(where)]}; networks need finite numbers")


def common_count(inputs: Mapping[str, np.ndarray]) -> int:
    """How many rows inputs of a network have, where a single row goes with any number of rows."""
    counts = {name: len(rows) for name, rows in inputs.items() if len(rows) != 1}
    if len(set(counts.values())) > 1:
        raise WrongShape(f"inputs must have one row each or equally many, not {counts}")
    return next(iter(counts.values()), 1)


def json_object(value: Any) -> dict[str, Any]:
    """A copy of `value` as JSON has it; an error unless it is an object of JSON values."""
    try:
        plain = json.loads(json.dumps(value if not isinstance(value, Mapping) else dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSetting(f"a policy's metadata must be JSON: {error}") from error
    if not isinstance(plain, dict):
        raise InvalidSetting(f"a policy's metadata must be a JSON object, not {type(value).__name__}")
    return plain


def strict_json(text: str) -> dict[str, Any]:
    """A JSON object without NaN or infinity."""

    def refuse(constant: str) -> None:
        raise InvalidSetting(f"its header holds {constant}")

    found = json.loads(text, parse_constant=refuse)
    if not isinstance(found, dict):
        raise InvalidSetting("its header is not a JSON object")
    return found
