"""The kinds of policy: how each turns observations into actions with the networks of its artifact.

An actor is a function of (model, normalised observations, noise) to actions in [-1, 1]; without noise it gives the
deterministic action. It is written once for NumPy and JAX (`model.xp`). A new kind is a new entry in `KINDS`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ringfence.deploy.network import Network, Tensors, outputs
from ringfence.deploy.noise import Noise
from ringfence.errors import InvalidSetting

VERSION_1_LATENT_BOUND = 0.5  # of version-1 files, which do not say it


class Model(NamedTuple):
    """Networks with their tensors, ready to run. `context` holds inputs that are the same in every row: the limit."""

    networks: Mapping[str, Network]
    tensors: Tensors
    xp: Any = np
    context: Mapping[str, Any] = {}

    def run(self, name: str, **inputs: Any) -> Any:
        """The outputs of a network, from inputs as it saw them in training: `run("cost", observation=s, action=a)`."""
        network = self.networks[name]
        rows = next(iter(inputs.values())).shape[:-1]
        parts = []
        for wanted in network.inputs:
            part = inputs[wanted] if wanted in inputs else self.context.get(wanted)
            if part is None:
                raise InvalidSetting(f"network {name!r} needs the input {wanted!r}")
            parts.append(self.xp.broadcast_to(part, (*rows, part.shape[-1])))
        joined = parts[0] if len(parts) == 1 else self.xp.concatenate(parts, -1)
        return outputs(network, self.tensors, joined, self.xp)

    def normal(self, noise: Noise, shape: tuple[int, ...]) -> Any:
        return noise.standard_normal(shape).astype(np.float32)


Actor = Callable[[Model, Any, Noise | None], Any]


def tanh_gaussian(model: Model, observations: Any, noise: Noise | None) -> Any:
    """a = tanh(mean + std * noise)."""
    mean, log_std = model.run("actor", observation=observations)
    if noise is not None:
        mean = mean + model.xp.exp(log_std) * model.normal(noise, mean.shape)
    return model.xp.tanh(mean)


def clipped_gaussian(model: Model, observations: Any, noise: Noise | None) -> Any:
    """a = clip(mean + std * noise, -1, 1), with one standard deviation per action in every state. PPO and CPO train
    this."""
    mean = model.run("actor", observation=observations)
    if noise is not None:
        mean = mean + model.xp.exp(model.tensors["log_std"]) * model.normal(noise, mean.shape)
    return model.xp.clip(mean, -1.0, 1.0)


def bcq(model: Model, observations: Any, noise: Noise | None) -> Any:
    """The best of n candidates: decoded from latents, each moved by at most `phi`. Without noise the latents are those of
    the artifact, the same in every state; with noise they are drawn anew."""
    xp, tensors, batch = model.xp, model.tensors, len(observations)
    latents = xp.broadcast_to(tensors["latents"], (batch, *tensors["latents"].shape))
    if noise is not None:
        latents = model.normal(noise, latents.shape)
    bound = tensors.get("latent_bound", np.float32(VERSION_1_LATENT_BOUND))
    states = xp.repeat(observations, latents.shape[1], axis=0)
    clipped = xp.clip(latents, -bound, bound).reshape(len(states), -1)
    actions = model.run("decoder", observation=states, latent=clipped)
    move = model.run("perturbation", observation=states, action=actions)
    return best_by_penalised_value(model, states, xp.clip(actions + tensors["phi"] * move, -1.0, 1.0), batch)


def bear(model: Model, observations: Any, noise: Noise | None) -> Any:
    """The best of n actions of a tanh-Gaussian. Without noise the n draws are those of the artifact."""
    xp, batch = model.xp, len(observations)
    mean, log_std = (part[:, None] for part in model.run("actor", observation=observations))
    draws = model.tensors["noise"]
    if noise is not None:
        draws = model.normal(noise, (batch, *draws.shape))
    candidates = xp.tanh(mean + xp.exp(log_std) * draws)
    states = xp.repeat(observations, candidates.shape[1], axis=0)
    return best_by_penalised_value(model, states, candidates.reshape(len(states), -1), batch)


def best_by_penalised_value(model: Model, states: Any, actions: Any, batch: int) -> Any:
    """In each state the candidate with the greatest Qr_1 - lambda Qc; a state's candidates are consecutive rows. NaN where
    a value is not finite: then nothing says which is best."""
    reward = model.run("reward_1", observation=states, action=actions)
    cost = model.run("cost", observation=states, action=actions)
    values = (reward - model.tensors["lambda"] * cost).reshape(batch, -1)
    best = actions.reshape(batch, -1, actions.shape[-1])[model.xp.arange(batch), values.argmax(1)]
    known = model.xp.isfinite(values).all(1, keepdims=True)
    return model.xp.where(known, best, np.float32(np.nan))


def mixture(model: Model, observations: Any, noise: Noise | None) -> Any:
    """One of several deterministic policies. Without noise it is always the `chosen` one. With noise it is drawn anew in
    every step; to draw one for each episode, as a mixture is meant, use `ringfence.deploy.components`."""
    if noise is None:
        return model.run(f"component.{int(model.tensors['chosen'][0])}", observation=observations)
    count = component_count(model.networks)
    drawn = model.xp.floor(noise.random((len(observations),)) * count).astype(np.int32)
    every = model.xp.stack([model.run(f"component.{i}", observation=observations) for i in range(count)])
    return every[drawn, model.xp.arange(len(observations))]


def component_count(networks: Mapping[str, Network]) -> int:
    count = 0
    while f"component.{count}" in networks:
        count += 1
    return count


class Kind(NamedTuple):
    """How a policy acts, and what it needs for it. Sizes of tensors are numbers, "obs", "act", "latent" or "any"."""

    act: Actor | None  # None: values without a policy
    networks: Mapping[str, Network]  # its actors may also take the limit
    tensors: Mapping[str, tuple[int | str, ...]] = {}
    optional: Mapping[str, tuple[int | str, ...]] = {}


def _described(*networks: Network) -> dict[str, Network]:
    return {network.name: network for network in networks}


STATE, PAIR = ("observation",), ("observation", "action")
GAUSSIAN_ACTOR = Network("actor", STATE, "tanh-gaussian")
CHOOSING_CRITICS = (Network("reward_1", PAIR, "value"), Network("cost", PAIR, "value"))

# What an artifact of any kind may have: the detector's threshold, and what a guard knows of the log.
DISTANCE: dict[str, tuple[int | str, ...]] = {  # all of it or nothing
    "guard_centre": ("obs",),
    "guard_whitening": ("obs", "obs"),
    "guard_distance": (1,),
}
OF_ANY_KIND = {"threshold": (1,), **DISTANCE, "guard_stillness": ("obs",)}

KINDS: dict[str, Kind] = {
    "tanh-gaussian": Kind(tanh_gaussian, _described(GAUSSIAN_ACTOR)),
    "clipped-gaussian": Kind(
        clipped_gaussian, _described(Network("actor", STATE, "tanh", activation="tanh")), {"log_std": ("act",)}
    ),
    "bcq": Kind(
        bcq,
        _described(
            Network("decoder", ("observation", "latent"), "tanh"),
            Network("perturbation", PAIR, "tanh"),
            *CHOOSING_CRITICS,
        ),
        {"latents": ("any", "latent"), "phi": (1,), "lambda": (1,)},
        {"latent_bound": (1,)},
    ),
    "bear": Kind(bear, _described(GAUSSIAN_ACTOR, *CHOOSING_CRITICS), {"noise": ("any", "act"), "lambda": (1,)}),
    "mixture": Kind(mixture, _described(Network("component.0", STATE, "tanh")), {"chosen": (1,)}),
    "values": Kind(None, {}),
}
