"""Networks through the kernels: the outputs and the first derivative in reverse mode, which is what training needs.

Everything else, forward mode and second derivatives among it, is computed by the plain network that `accelerated` is given.
"""

from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from ringfence.kernels import calls
from ringfence.kernels.linear import linear

Layers = tuple[tuple[Array, Array], ...]  # weight and bias of each
Network = Callable[[Array, Layers, bool], Array]
Hidden = list[list[Array]]

# Numbers in all hidden layers (1 MB). Up to so many are written to memory even where no gradient follows. That costs little,
# and if a gradient of the same outputs is asked for elsewhere, XLA sees the same call twice and makes it once.
ALWAYS_KEPT = 2**18


def accelerated(plain: Network) -> Network:
    """The same function as `plain`, a network of linear layers with ReLU and perhaps LayerNorm between them, by the kernels
    where they can compute it."""
    by_kernels = with_derivatives(plain)

    @wraps(plain)
    def network(x: Float[Array, "*batch inputs"], layers: Layers, normalise: bool) -> Float[Array, "*batch outputs"]:
        if not (fit(x, layers) and calls.available()):
            return plain(x, layers, normalise)
        output = by_kernels(x.reshape(-1, x.shape[-1]), layers, normalise)
        return output.reshape(*x.shape[:-1], output.shape[-1])

    return network


def fit(x: Array, layers: Layers) -> bool:
    """Whether these are arrays that the kernels can take, of shapes that fit together. If not, the plain network computes
    them, or raises its own error."""
    if x.ndim == 0:
        return False
    inputs = x.shape[-1]
    for weight, bias in layers:
        if weight.ndim != 2 or weight.shape[0] != inputs or bias.shape != weight.shape[1:]:
            return False
        inputs = weight.shape[1]
    return calls.float32(x, *flat(layers))


def with_derivatives(plain: Network) -> Network:
    """The kernels' `forward`, with their `backward` as its derivative in reverse mode."""

    @partial(jax.custom_jvp, nondiff_argnums=(2,))
    def network(x: Array, layers: Layers, normalise: bool) -> Array:
        kept = x.shape[0] * sum(bias.size for _, bias in layers[:-1])
        return forward(x, layers, normalise, keep=not normalise and kept <= ALWAYS_KEPT)[0]

    @partial(network.defjvp, symbolic_zeros=True)
    def network_jvp(normalise: bool, primals: Any, tangents: Any) -> tuple[Array, Array]:
        output, hidden = keeping(*primals, normalise)
        moving = {
            name: jax.tree.map(instantiate, tangent, is_leaf=symbolic)
            for name, tangent in zip(("x", "layers"), tangents, strict=True)
            if not all(symbolic(leaf) for leaf in jax.tree.leaves(tangent, is_leaf=symbolic))
        }
        if not moving:
            return output, jnp.zeros_like(output)
        along, back = directions(normalise, tuple(moving))
        return output, linear(along, back, (*primals, hidden), moving)

    @partial(jax.custom_jvp, nondiff_argnums=(2,))
    def keeping(x: Array, layers: Layers, normalise: bool) -> tuple[Array, Hidden]:
        return forward(x, layers, normalise, keep=True)

    @keeping.defjvp
    def keeping_jvp(normalise: bool, primals: Any, tangents: Any) -> Any:
        results = keeping(*primals, normalise)
        _, tangent = jax.jvp(lambda x, layers: plain(x, layers, normalise), primals, tangents)
        # Derivatives of what was kept are not asked for: only `backward` reads it, and its own derivative does not.
        return results, (tangent, jax.tree.map(jnp.zeros_like, results[1]))

    @cache
    def directions(normalise: bool, names: tuple[str, ...]) -> tuple[Callable[..., Array], Callable[..., Any]]:
        """The derivative along a direction of x, of the layers, or of both, and its transpose."""

        def along(constants: Any, moving: dict[str, Any]) -> Array:
            at = dict(zip(("x", "layers"), constants, strict=False))

            def of(moved: dict[str, Any]) -> Array:
                here = {**at, **moved}
                return plain(here["x"], here["layers"], normalise)

            tangent: Array = jax.jvp(of, ({name: at[name] for name in names},), (moving,))[1]
            return tangent

        @jax.custom_jvp
        def back(constants: Any, gradient: Array) -> dict[str, Any]:
            x, layers, hidden = constants
            return backward(x, layers, hidden, gradient, normalise, names)

        def plain_back(constants: Any, gradient: Array) -> Any:
            zeros = jax.tree.map(jnp.zeros_like, {"x": constants[0], "layers": constants[1]})
            zeros = {name: zeros[name] for name in names}
            return jax.linear_transpose(partial(along, constants), zeros)(gradient)[0]

        @back.defjvp
        def back_jvp(primals: Any, tangents: Any) -> Any:
            return back(*primals), jax.jvp(plain_back, primals, tangents)[1]

        return along, back

    return network


def forward(x: Array, layers: Layers, normalise: bool, keep: bool) -> tuple[Array, Hidden]:
    """The outputs and, with `keep`, what the gradient needs of each hidden layer: its output or, with LayerNorm, the
    normalised values (ReLU of which is the output) and their scales."""
    rows = x.shape[0]
    shapes: list[tuple[int, ...]] = [(rows, layers[-1][0].shape[1])]
    for weight, _ in layers[:-1] if keep else ():
        width = weight.shape[1]
        shapes += [(rows, width), (rows,)] if normalise else [(rows, width)]
    output, *kept = calls.call("forward", shapes, x, *flat(layers), normalise=normalise)
    each = 2 if normalise else 1
    return output, [kept[i : i + each] for i in range(0, len(kept), each)]


def backward(
    x: Array, layers: Layers, hidden: Hidden, gradient: Array, normalise: bool, names: tuple[str, ...]
) -> dict[str, Any]:
    """The gradients of x, of the layers, or of both, given that of the outputs."""
    arguments = [gradient]
    for (weight, _), values in zip(reversed(layers), reversed([[x], *hidden]), strict=True):
        arguments += [weight, *values]
    wants_input, wants_weights = "x" in names, "layers" in names
    shapes = [x.shape] if wants_input else []
    if wants_weights:
        shapes += [array.shape for layer in reversed(layers) for array in layer]
    wants: dict[str, Any] = {"wants_input": wants_input, "wants_weights": wants_weights}
    results = iter(calls.call("backward", shapes, *arguments, normalise=normalise, **wants))
    gradients: dict[str, Any] = {}
    if wants_input:
        gradients["x"] = next(results)
    if wants_weights:
        gradients["layers"] = tuple((next(results), next(results)) for _ in layers)[::-1]
    return gradients


def symbolic(tangent: object) -> bool:
    return isinstance(tangent, SymbolicZero)


def instantiate(tangent: Any) -> Any:
    return jnp.zeros(tangent.shape, tangent.dtype) if symbolic(tangent) else tangent


def flat(layers: Layers) -> list[Array]:
    return [array for layer in layers for array in layer]
