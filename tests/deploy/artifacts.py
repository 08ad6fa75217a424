"""Artifacts of every kind with random networks, made without training."""

from itertools import pairwise

import numpy as np

from ringfence.deploy import Artifact, Network

OBS, ACT, LATENT = 4, 2, 3
LOW, HIGH = np.array([-1.0, 10.0]), np.array([3.0, 12.0])  # neither symmetric nor of unit size
MEAN, STD = np.array([1.0, -2.0, 300.0, 0.0]), np.array([0.5, 2.0, 25.0, 1.0])
SIZES = {"observation": OBS, "action": ACT, "latent": LATENT, "limit": 1}
OUTPUTS = {"value": 1, "tanh": ACT, "tanh-gaussian": 2 * ACT, "latent-gaussian": 2 * LATENT}
S, SA = ("observation",), ("observation", "action")
ACTOR = Network("actor", S, "tanh-gaussian")
COST = Network("cost", SA, "value", scale=3.0)
SCORES = (Network("encoder", SA, "latent-gaussian"), COST)
CRITICS = (Network("reward_1", SA, "value", layer_norm=True, scale=2.0), COST)

NETWORKS = {
    "tanh-gaussian": (ACTOR,),
    "clipped-gaussian": (Network("actor", S, "tanh", activation="tanh"),),
    "bcq": (
        Network("decoder", ("observation", "latent"), "tanh"),
        Network("perturbation", ("action", "observation"), "tanh"),
        *CRITICS,
    ),
    "bear": (ACTOR, *CRITICS),
    "mixture": tuple(Network(f"component.{i}", S, "tanh") for i in range(3)),
}


def layers(network, hidden, rng):
    widths = [sum(SIZES[i] for i in network.inputs), *hidden, OUTPUTS[network.head]]
    tensors = {}
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        tensors[f"{network.name}.{i}.weight"] = rng.normal(size=(inputs, outputs)) / np.sqrt(inputs)
        tensors[f"{network.name}.{i}.bias"] = 0.1 * rng.normal(size=outputs)
    return tensors


def random_artifact(kind, networks=(), *, hidden=(16, 16), seed=0, tensors=None, **facts):
    """An artifact of this kind; `networks` are added to those it needs, or replace them by name."""
    rng = np.random.default_rng(seed)
    every = {network.name: network for network in (*NETWORKS[kind], *networks)}
    values = {name: value for network in every.values() for name, value in layers(network, hidden, rng).items()}
    values |= {
        "clipped-gaussian": {"log_std": np.zeros(ACT)},
        "bcq": {"latents": rng.normal(size=(5, LATENT)), "phi": [0.3], "lambda": [0.7], "latent_bound": [0.8]},
        "bear": {"noise": rng.normal(size=(5, ACT)), "lambda": [0.7]},
        "mixture": {"chosen": [1]},
    }.get(kind, {})
    if "encoder" in every:
        values["threshold"] = [2.5]
    return Artifact(kind, every, {**values, **(tensors or {})}, MEAN, STD, LOW, HIGH, **facts)


def random_observations(count, seed=1):
    return (MEAN + 1.5 * STD * np.random.default_rng(seed).normal(size=(count, OBS))).astype(np.float32)
