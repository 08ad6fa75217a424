"""What training leaves, and how to run it anywhere with NumPy and safetensors alone."""

from ringfence.deploy.actors import KINDS, Model
from ringfence.deploy.artifact import Artifact
from ringfence.deploy.mixture import components
from ringfence.deploy.network import Gaussian, Network
from ringfence.deploy.noise import Noise, RowNoise
from ringfence.deploy.policy import Policy

__all__ = ["KINDS", "Artifact", "Gaussian", "Model", "Network", "Noise", "Policy", "RowNoise", "components"]
