"""Whether a policy and a log mean the same by their columns."""

import re
from collections.abc import Sequence

from ringfence.data.dataset import Dataset
from ringfence.deploy import Artifact
from ringfence.errors import WrongShape
from ringfence.evaluation.match import beyond_bounds

GENERIC = re.compile(r"(obs|action)_\d+")  # the names of columns that were given none
SHOWN = 3  # differences


def check_columns(artifact: Artifact, log: Dataset) -> list[str]:
    """A sentence for each kind of column, observations and actions, that the policy knows by other names than the log, and
    one if its actions may lie far outside the log's bounds. An error if they are the same names in another order: then
    every number would be taken for another one."""
    pairs = {
        "observations": (artifact.observation_names, log.observation_names),
        "actions": (artifact.action_names, log.action_names),
    }
    found = []
    for kind, (own, given) in pairs.items():
        if len(own) != len(given) or not (_are_names(own) and _are_names(given)):
            continue  # another number of columns is refused elsewhere
        apart = [f"{a} / {b}" for a, b in zip(own, given, strict=True) if a != b]
        words = ", ".join(apart[:SHOWN]) + (f" and {len(apart) - SHOWN} more" if len(apart) > SHOWN else "")
        if apart and set(own) == set(given):
            raise WrongShape(
                f"{log.name} has the {kind} of the policy in another order (policy / log: {words}); bring its columns into "
                f"the policy's order, for example by --columns {kind}={','.join(own)}"
            )
        if apart:
            found.append(f"the policy knows the {kind} by other names than {log.name} (policy / log: {words})")
    return found + _beyond_bounds(artifact, log)


def _beyond_bounds(artifact: Artifact, log: Dataset) -> list[str]:
    """Judging clips actions to the log's bounds: another action would be judged than the one that the policy takes."""
    if len(artifact.action_low) != len(log.action_low):
        return []
    words = beyond_bounds(artifact, log.action_low, log.action_high, log.action_names)
    what = f"the policy's action bounds reach beyond those of {log.name}, to which its actions are clipped here"
    return [f"{what} (policy / log: {words})"] if words else []


def _are_names(names: Sequence[str]) -> bool:
    return not all(GENERIC.fullmatch(name) for name in names)
