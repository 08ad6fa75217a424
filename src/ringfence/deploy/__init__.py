"""What training leaves, and how to run it anywhere with NumPy and safetensors alone."""

from ringfence.deploy.actors import KINDS, Model
from ringfence.deploy.artifact import Artifact
from ringfence.deploy.drift import Drift, drift
from ringfence.deploy.guard import Decision, Guard
from ringfence.deploy.guard_log import read_guard_log
from ringfence.deploy.guard_rules import Reason, Rules
from ringfence.deploy.mixture import components
from ringfence.deploy.network import Gaussian, Network
from ringfence.deploy.noise import Noise, RowNoise
from ringfence.deploy.pacer import Pacer
from ringfence.deploy.policy import Policy
from ringfence.deploy.reference import with_reference
from ringfence.deploy.turns import Turns

__all__ = [
    "KINDS",
    "Artifact",
    "Decision",
    "Drift",
    "Gaussian",
    "Guard",
    "Model",
    "Network",
    "Noise",
    "Pacer",
    "Policy",
    "Reason",
    "RowNoise",
    "Rules",
    "Turns",
    "components",
    "drift",
    "read_guard_log",
    "with_reference",
]
