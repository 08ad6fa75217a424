"""The calls into the compiled library, through JAX's foreign function interface.

The optimiser gives what optax gives, random words are those of JAX. Networks are in `ringfence.kernels.mlp`.
"""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from ringfence.kernels.library import Library, build_record, chosen

NAMES = ("forward", "backward", "adam", "threefry")
Tree = TypeVar("Tree")


def active() -> Library:
    """The library whose functions XLA can call by now."""
    return registered(chosen())


@cache
def registered(library: Library) -> Library:
    """Make the library's functions known to XLA; if that fails, no library and the reason."""
    if library.path is None:
        return library
    ffi: Any = jax.ffi
    try:
        functions = ctypes.CDLL(str(library.path))
        for name in NAMES:
            capsule = ffi.pycapsule(getattr(functions, f"ringfence_{name}"))
            ffi.register_ffi_target(f"ringfence.{library.name}.{name}", capsule, platform="cpu")
    except (OSError, AttributeError, RuntimeError, ValueError) as error:
        there, here = build_record().get("jaxlib"), version("jaxlib")
        return Library(
            "xla", reason=f"{library.name}: built with jaxlib {there}, not usable with jaxlib {here}: {error}"
        )
    return library


def library_name() -> str:
    return active().name


def obstacle() -> str:
    """Why the kernels cannot be called in this process; empty if they can."""
    if jax.default_backend() != "cpu":
        return f"JAX computes on {jax.default_backend()}, the kernels are for CPUs"
    if jax.device_count() > 1:
        return f"JAX computes on {jax.device_count()} devices, the kernels on one"
    return active().reason


def available() -> bool:
    return not obstacle()


def float32(*arrays: Array) -> bool:
    """Whether all arrays are of float32 and none is empty: the kernels know no others."""
    return all(array.dtype == jnp.float32 and array.size > 0 for array in arrays)


def call(
    name: str,
    shapes: Sequence[tuple[int, ...]],
    *arguments: Array,
    in_place: Mapping[int, int] | None = None,
    **attributes: Any,
) -> list[Array]:
    """Call a function of the library, whose results have the dtype of its first argument; `in_place` maps an argument to
    the result that takes over its memory."""
    struct: Any = jax.ShapeDtypeStruct
    results = [struct(shape, arguments[0].dtype) for shape in shapes]
    function = jax.ffi.ffi_call(
        f"ringfence.{library_name()}.{name}",
        results,
        vmap_method="broadcast_all",
        input_output_aliases=dict(in_place or {}),
    )
    return list(function(*arguments, **attributes))


def can_step(*trees: Any) -> bool:
    """Whether `adam` can take these: trees of the same float32 arrays, a matrix among them (for a few numbers XLA is
    quicker)."""
    leaves = [jax.tree.leaves(tree) for tree in trees]
    same = len({tuple(leaf.shape for leaf in group) for group in leaves}) == 1
    matrix = any(leaf.ndim > 1 for leaf in leaves[0])
    return same and matrix and float32(*(leaf for group in leaves for leaf in group)) and available()


def adam(
    gradient: Tree, params: Tree, mean: Tree, square: Tree, corrections: Float[Array, "2"], **settings: np.float32
) -> tuple[Tree, Tree, Tree]:
    """Parameters and averages after a step of Adam, in one pass over memory and in place."""
    leaves = [jax.tree.leaves(tree) for tree in (gradient, params, mean, square)]
    count = len(leaves[0])
    arguments = [array for group in zip(*leaves, strict=True) for array in group]
    shapes = [array.shape for i, array in enumerate(arguments) if i % 4]
    in_place = {1 + 4 * i + j: 3 * i + j - 1 for i in range(count) for j in (1, 2, 3)}
    results = call("adam", shapes, corrections, *arguments, in_place=in_place, **settings)
    structure = jax.tree.structure(params)
    moved, mean, square = (jax.tree.unflatten(structure, results[j::3]) for j in range(3))
    return moved, mean, square


def threefry(
    key: UInt32[Array, "2"], high: UInt32[Array, "*shape"], low: UInt32[Array, "*shape"]
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """Two random words for each counter of two words."""
    first, second = call("threefry", [high.shape, low.shape], key, high, low)
    return first, second
