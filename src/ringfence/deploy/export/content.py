"""What is exported of an artifact, whatever the format."""

import json
from dataclasses import dataclass
from typing import Any

from ringfence import __version__
from ringfence.deploy.actors import DISTANCE, KINDS
from ringfence.deploy.artifact import Artifact
from ringfence.errors import InvalidSetting

EXPORTED_KINDS = ("tanh-gaussian", "clipped-gaussian", "bcq", "bear", "mixture")
PAIR = {"observation", "action"}


@dataclass(frozen=True)
class Content:
    """An artifact with the choices of an export: which of its networks are needed, which scores it gives."""

    artifact: Artifact
    limit: float | None  # only where a network takes it
    has_detector: bool  # gives the detector's score of (observation, action)
    has_cost: bool  # gives the expected discounted cost after (observation, action)
    has_together: bool  # knows how the log's columns go together

    @property
    def chosen(self) -> int:
        """The component that a mixture without randomness follows."""
        return int(self.artifact.tensors["chosen"][0])

    @property
    def facts(self) -> dict[str, str]:
        """What is known of the policy, as text: lists and objects are JSON."""
        artifact = self.artifact
        known: dict[str, Any] = {
            "ringfence_version": __version__,
            "checksum": artifact.checksum,
            "kind": artifact.kind,
            "observation_names": list(artifact.observation_names),
            "action_names": list(artifact.action_names),
            "units": dict(artifact.units),
            "action_low": artifact.action_low.tolist(),
            "action_high": artifact.action_high.tolist(),
            **{name: value for name, value in artifact.facts.items() if name not in artifact.metadata},
            "metadata": dict(artifact.metadata),
        }
        if artifact.observation_low is not None and artifact.observation_high is not None:
            known["observation_low"] = artifact.observation_low.tolist()
            known["observation_high"] = artifact.observation_high.tolist()
        if self.has_detector:
            known["detector_threshold"] = artifact.detector_threshold
        if self.has_together:
            known["together_threshold"] = float(artifact.tensors["guard_distance"][0])
        if artifact.limit_range is not None:
            known["limit_range"] = list(artifact.limit_range)
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}


def content_of(artifact: Artifact, limit: float | None = None) -> Content:
    """Raise unless the artifact can be exported."""
    if KINDS[artifact.kind].act is None:
        raise InvalidSetting(
            f"this artifact of {artifact.method or 'training'} holds values and no policy, so there is nothing to export; "
            "export the policy that they judge"
        )
    if artifact.kind not in EXPORTED_KINDS:
        raise InvalidSetting(
            f"a policy of kind {artifact.kind!r} cannot be exported; these kinds can: {', '.join(EXPORTED_KINDS)}"
        )
    model = artifact.model(limit=limit)  # refuses a limit that the policy cannot take
    given = (artifact.limit if limit is None else float(limit)) if "limit" in model.context else None
    networks = artifact.networks
    return Content(
        artifact,
        given,
        has_detector="encoder" in networks
        and set(networks["encoder"].inputs) == PAIR
        and artifact.detector_threshold is not None,
        has_cost="cost" in networks and set(networks["cost"].inputs) in (PAIR, {*PAIR, "limit"}),
        has_together=all(name in artifact.tensors for name in DISTANCE),
    )
