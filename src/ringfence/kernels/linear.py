"""Functions that are linear in some of their arguments, with a transpose of our own.

Reverse-mode differentiation transposes a linear function. JAX derives the transpose; here it is given, because a kernel
or a shorter formula computes it. Forward mode evaluates the function itself, and a derivative of it is JAX's own: so a
`jax.custom_jvp` rule that ends in `linear` can be differentiated in any mode and any number of times, which
`jax.custom_vjp` does not allow.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad as untyped_ad
from jax.interpreters import batching, mlir

Tree = Any

linear_p: Any = Primitive("linear")
linear_p.multiple_results = True
ad: Any = untyped_ad


def linear(function: Callable[..., Tree], transpose: Callable[..., Tree], constants: Tree, arguments: Tree) -> Tree:
    """function(constants, arguments), which must be linear in `arguments`; transpose(constants, g) gives the gradients of
    the arguments where g is that of the result. Both functions should be defined once, not at each call."""
    flat_constants, constants_tree = jax.tree.flatten(constants)
    flat_arguments, arguments_tree = jax.tree.flatten(arguments)
    result_tree = jax.tree.structure(jax.eval_shape(function, constants, arguments))
    results = linear_p.bind(
        *flat_constants,
        *flat_arguments,
        function=function,
        transpose=transpose,
        trees=(constants_tree, arguments_tree, result_tree),
        mapped=0,
    )
    return jax.tree.unflatten(result_tree, results)


def _evaluate(*operands: Any, function: Any, transpose: Any, trees: Any, mapped: int) -> list[Any]:
    del transpose
    constants_tree, arguments_tree, _ = trees

    def flat(*operands: Any) -> list[Any]:
        count = constants_tree.num_leaves
        constants, arguments = operands[:count], operands[count:]
        result = function(jax.tree.unflatten(constants_tree, constants), jax.tree.unflatten(arguments_tree, arguments))
        return list(jax.tree.leaves(result))

    return list(_mapped(flat, mapped)(*operands))


def _differentiate(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[list[Any], list[Any]]:
    count = parameters["trees"][0].num_leaves
    if all(isinstance(tangent, ad.Zero) for tangent in tangents[:count]):  # linear in the rest
        moved = [ad.instantiate_zeros(tangent) for tangent in tangents[count:]]
        return linear_p.bind(*primals, **parameters), linear_p.bind(*primals[:count], *moved, **parameters)
    every = [ad.instantiate_zeros(tangent) for tangent in tangents]
    results, moved = jax.jvp(lambda *operands: _evaluate(*operands, **parameters), tuple(primals), tuple(every))
    return results, moved


def _transpose(gradients: Sequence[Any], *operands: Any, **parameters: Any) -> list[Any]:
    constants_tree, _, result_tree = parameters["trees"]
    count = constants_tree.num_leaves
    arrays = [ad.instantiate_zeros(gradient) for gradient in gradients]

    def flat(*operands: Any) -> list[Any]:
        constants = jax.tree.unflatten(constants_tree, operands[:count])
        return list(
            jax.tree.leaves(parameters["transpose"](constants, jax.tree.unflatten(result_tree, operands[count:])))
        )

    transposed = _mapped(flat, parameters["mapped"])(*operands[:count], *arrays)
    asked = [ad.is_undefined_primal(operand) for operand in operands[count:]]
    return [None] * count + [gradient if wanted else None for gradient, wanted in zip(transposed, asked, strict=True)]


def _batch(operands: Sequence[Any], axes: Sequence[Any], **parameters: Any) -> tuple[list[Any], list[int]]:
    """All operands get the new axis in front."""
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(operands, axes, strict=True)
    ]
    results = linear_p.bind(*moved, **{**parameters, "mapped": parameters["mapped"] + 1})
    return results, [0] * len(results)


def _mapped(function: Callable[..., Any], times: int) -> Callable[..., Any]:
    for _ in range(times):
        function = jax.vmap(function)
    return function


def _shapes(*operands: Any, **parameters: Any) -> list[Any]:
    results = jax.eval_shape(lambda *operands: _evaluate(*operands, **parameters), *operands)
    return [jax.core.ShapedArray(result.shape, result.dtype) for result in results]


linear_p.def_impl(jax.jit(_evaluate, static_argnames=("function", "transpose", "trees", "mapped")))
linear_p.def_abstract_eval(_shapes)
ad.primitive_jvps[linear_p] = _differentiate
ad.primitive_transposes[linear_p] = _transpose
batching.primitive_batchers[linear_p] = _batch
mlir.register_lowering(linear_p, mlir.lower_fun(_evaluate, multiple_results=True))
