"""The calls into `kernels.cc`. Networks give what `ringfence.networks.MLP.plain` gives, up to the order in which floats are
added; the optimiser what optax gives; random words are the very same."""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, UInt32

from ringfence.files import processor_flags
from ringfence.kernels.build import build

NAMES = ("forward", "backward", "adam", "threefry")
Tree = TypeVar("Tree")
Layers = tuple[tuple[Array, Array], ...]  # weight and bias of each


@cache
def library_name() -> str | None:
    """The prefix of the calls' names in XLA once they are there, or None if they cannot be had."""
    path = build()
    if path is None:
        return None
    ffi: Any = jax.ffi
    try:
        library = ctypes.CDLL(str(path))
        functions = {name: getattr(library, f"ringfence_{name}") for name in NAMES}
    except (OSError, AttributeError):
        return None  # not a library, or not this one
    for name, function in functions.items():
        ffi.register_ffi_target(f"{path.stem}.{name}", ffi.pycapsule(function), platform="cpu")
    return path.stem


def available() -> bool:
    """Whether there is anything to call: only on the CPU, and on one device."""
    return jax.default_backend() == "cpu" and jax.device_count() == 1 and library_name() is not None


def computation() -> str:
    """See `ringfence.kernels.computation`."""
    if not available():
        return "xla"
    return "kernels/avx512" if "avx512f" in processor_flags() else "kernels/avx2"


def usable(*arrays: Array) -> bool:
    """Whether the calls can take these: float32, none empty, some matrix among them."""
    matrix = any(array.ndim > 1 for array in arrays)
    return matrix and all(array.dtype == jnp.float32 and array.size > 0 for array in arrays) and available()


def call(
    name: str,
    shapes: Sequence[tuple[int, ...]],
    *arguments: Array,
    in_place: Mapping[int, int] | None = None,
    **attributes: Any,
) -> list[Array]:
    """Call a function of `kernels.cc`, whose results are of its first argument's kind; `in_place` says which argument's
    memory a result takes over."""
    struct: Any = jax.ShapeDtypeStruct
    results = [struct(shape, arguments[0].dtype) for shape in shapes]
    function = jax.ffi.ffi_call(
        f"{library_name()}.{name}", results, vmap_method="broadcast_all", input_output_aliases=dict(in_place or {})
    )
    found: list[Array] = list(function(*arguments, **attributes))
    return found


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def mlp(x: Float[Array, "rows inputs"], layers: Layers, normalise: bool, keep: bool) -> Float[Array, "rows outputs"]:
    """The network's outputs. With `keep` hidden layers are kept even where no gradient follows: XLA then merges the call
    with that of a gradient at the same inputs."""
    if keep:
        return keeping(x, layers, normalise)[0]
    shape = (x.shape[0], layers[-1][0].shape[1])
    return call("forward", [shape], x, *flat(layers), normalise=normalise)[0]


def keeping(x: Array, layers: Layers, normalise: bool) -> tuple[Array, list[list[Array]]]:
    """The outputs, and what the gradient needs of each hidden layer: its output or, with LayerNorm, the normalised values,
    whose positive ones are the output, and their scales."""
    rows = x.shape[0]
    shapes: list[tuple[int, ...]] = [(rows, layers[-1][0].shape[1])]
    for weight, _ in layers[:-1]:
        width = weight.shape[1]
        shapes += [(rows, width), (rows,)] if normalise else [(rows, width)]
    output, *kept = call("forward", shapes, x, *flat(layers), normalise=normalise)
    each = 2 if normalise else 1
    return output, [kept[i : i + each] for i in range(0, len(kept), each)]


def forward(x: Any, layers: Any, normalise: bool, keep: bool) -> tuple[Array, Any]:
    """The outputs, and what `backward` asks for. Each array comes with word of whether its gradient is wanted."""
    values = jax.tree.map(lambda array: array.value, layers)
    output, hidden = keeping(x.value, values, normalise)
    # A tree that is empty either way: what is kept may only be arrays.
    groups: list[list[Any]] = [[x], flat(layers)]
    wanted = [() if any(leaf.perturbed for leaf in leaves) else None for leaves in groups]
    return output, (x.value, values, hidden, *wanted)


def backward(normalise: bool, keep: bool, kept: Any, gradient: Any) -> tuple[Array | None, Layers | None]:
    x, layers, hidden, *wanted = kept
    wants_input, wants_weights = (mark is not None for mark in wanted)
    inputs = [[x], *hidden]
    arguments = [jnp.zeros(gradient.shape) if isinstance(gradient, SymbolicZero) else gradient]
    for (weight, _), values in zip(reversed(layers), reversed(inputs), strict=True):
        arguments += [weight, *values]
    shapes = [x.shape] if wants_input else []
    if wants_weights:
        shapes += [array.shape for layer in reversed(layers) for array in layer]
    wants: dict[str, Any] = {"wants_input": wants_input, "wants_weights": wants_weights}
    results = iter(call("backward", shapes, *arguments, normalise=normalise, **wants))
    x_gradient = next(results) if wants_input else None
    gradients = tuple((next(results), next(results)) for _ in layers)[::-1] if wants_weights else None
    return x_gradient, gradients


mlp.defvjp(forward, backward, symbolic_zeros=True)


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


def flat(layers: Layers) -> list[Array]:
    return [array for layer in layers for array in layer]
