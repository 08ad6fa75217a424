"""A mixture policy taken apart."""

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
    count = component_count(policy.tensors)
    parts = []
    for i in range(count):
        prefix = f"component.{i}."
        tensors = {
            f"component.0.{name.removeprefix(prefix)}": tensor
            for name, tensor in policy.tensors.items()
            if name.startswith(prefix)
        }
        parts.append(
            Policy(
                "mixture",
                {"chosen": policy.tensors["chosen"] * 0, **tensors},
                policy.observation_mean,
                policy.observation_std,
                policy.action_low,
                policy.action_high,
                {**policy.metadata, "component": i, "components": count},
            )
        )
    return parts
