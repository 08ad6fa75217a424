"""Safetensors files whose bytes depend on their content alone.

The library writes the header in an order that changes from run to run; here it is sorted. Files are read with the library,
which checks that they are whole.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from ringfence.errors import ForeignPolicy


def tensor_bytes(tensors: Mapping[str, np.ndarray], header: Mapping[str, str]) -> bytes:
    """A safetensors file of float32 tensors: the header's length, the header as JSON, the numbers."""
    described: dict[str, object] = {"__metadata__": dict(sorted(header.items()))}
    parts, start = [], 0
    for name in sorted(tensors):
        content = np.ascontiguousarray(tensors[name], "<f4").tobytes()
        end = start + len(content)
        described[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [start, end]}
        parts.append(content)
        start = end
    head = json.dumps(described, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # the numbers start at a multiple of 8
    return struct.pack("<Q", len(head)) + head + b"".join(parts)


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The header and the tensors of a safetensors file that holds float32 alone."""
    if not path.is_file():
        raise ForeignPolicy(f"there is no policy file {path}")
    try:
        with safe_open(path, framework="np") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ForeignPolicy(f"{path} is not a ringfence policy, or is truncated: {error}") from error
    if wrong := [name for name, tensor in tensors.items() if tensor.dtype != np.float32]:
        raise ForeignPolicy(f"{path} is not a ringfence policy: tensor {wrong[0]!r} is not float32")
    return header, tensors
