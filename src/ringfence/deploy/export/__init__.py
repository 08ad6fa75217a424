"""A policy for other runtimes: ONNX, and C99 without dependencies.

    from ringfence.deploy.export import export

    export("policy.safetensors", "onnx")   # policy.onnx
    export("policy.safetensors", "c")      # policy.h and policy.c

What is exported is the deterministic policy in the user's units, scaling and clipping included, with the scores that a
guard needs where the artifact has the networks for them.
"""

from ringfence.deploy.export.files import FORMATS, export

__all__ = ["FORMATS", "export"]
