"""A mixture policy taken apart."""

from dataclasses import replace

import numpy as np

from ringfence.deploy.actors import component_count
from ringfence.deploy.policy import Policy
from ringfence.errors import InvalidSetting


def components(policy: Policy) -> list[Policy]:
    """The policies that a mixture (CBPL's result) is made of, all equally likely.

    A mixture draws one of them at the start of an episode and stays with it. A policy cannot know where episodes
    start, so whoever runs it draws: `random.choice(components(policy))`. To evaluate the mixture, evaluate each of
    them and average."""
    if policy.kind != "mixture":
        raise InvalidSetting(f"only a policy of kind 'mixture' has components, this one is of kind {policy.kind!r}")
    count = component_count(policy.artifact.networks)
    return [_component(policy, i, count) for i in range(count)]


def _component(policy: Policy, index: int, count: int) -> Policy:
    artifact, prefix = policy.artifact, f"component.{index}."
    layers = {
        f"component.0.{name.removeprefix(prefix)}": tensor
        for name, tensor in artifact.tensors.items()
        if name.startswith(prefix)
    }
    network = replace(artifact.networks[f"component.{index}"], name="component.0")
    return Policy(
        replace(
            artifact,
            networks={"component.0": network},
            tensors={**layers, "chosen": np.zeros(1, np.float32)},
            metadata={**artifact.metadata, "component": index, "components": count},
        )
    )
