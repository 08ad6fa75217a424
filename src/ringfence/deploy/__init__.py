"""Policy files: what a trained policy needs to run anywhere, with NumPy and safetensors alone."""

from ringfence.deploy.actors import ACTORS, RowNoise, mlp_forward, mlp_tensors
from ringfence.deploy.mixture import components
from ringfence.deploy.policy import Policy

__all__ = ["ACTORS", "Policy", "RowNoise", "components", "mlp_forward", "mlp_tensors"]
