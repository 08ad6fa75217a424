"""The step of Constrained Policy Optimization: a linear objective and a linear constraint inside a quadratic ball.

    max_x  g^T x    such that    c + b^T x <= 0    and    1/2 x^T H x <= delta

(Achiam et al., 2017, Eq. 11). Large problems never form H: its inverse is applied by conjugate gradients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Case = Literal["unconstrained", "constrained", "recovery"]
Product = Callable[[Float[Array, " n"]], Float[Array, " n"]]


@dataclass(frozen=True)
class Dual:
    """The multipliers at the solution, x* = (H^-1 g - nu H^-1 b) / lam.

    In the recovery case lam is infinite and x* = -nu H^-1 b: the step that lowers the cost the most."""

    lam: float
    nu: float
    case: Case


def solve_dual(q: float, r: float, s: float, c: float, delta: float) -> Dual:
    """The analytic dual (Achiam et al., 2017, Theorem 2), with q = g^T H^-1 g, r = g^T H^-1 b, s = b^T H^-1 b.

    The dual function, to be minimised over lam > 0 and nu >= 0, is

        D(lam, nu) = (q - 2 nu r + nu^2 s) / (2 lam) - nu c + lam delta.

    For fixed lam the best nu is max(0, (r + lam c) / s). Where that is positive D = A / (2 lam) + lam B / 2 - r c / s
    with A = q - r^2 / s and B = 2 delta - c^2 / s; elsewhere D = q / (2 lam) + lam delta. Each piece is convex, so its
    minimum over its own range of lam is its free minimum moved into the range; the better of the two is the solution.
    """
    tiny = 1e-12
    if s <= tiny or (c < 0 and c**2 / s > 2 * delta):
        return Dual(math.sqrt(max(q, tiny) / (2 * delta)), 0.0, "unconstrained")  # the whole ball is safe
    if c > 0 and c**2 / s > 2 * delta:
        return Dual(math.inf, math.sqrt(2 * delta / s), "recovery")  # none of it is (the text after Eq. 14)
    a, b = max(q - r**2 / s, 0.0), max(2 * delta - c**2 / s, tiny)
    active, inactive = _ranges(r, c)
    candidates = []
    if active is not None:
        lam = max(_into(math.sqrt(a / b), active), tiny)
        candidates.append((a / (2 * lam) + lam * b / 2 - r * c / s, lam, max(0.0, (r + lam * c) / s)))
    if inactive is not None:
        lam = max(_into(math.sqrt(q / (2 * delta)), inactive), tiny)
        candidates.append((q / (2 * lam) + lam * delta, lam, 0.0))
    _, lam, nu = min(candidates)
    return Dual(lam, nu, "constrained" if nu > 0 else "unconstrained")


Range = tuple[float, float]


def _ranges(r: float, c: float) -> tuple[Range | None, Range | None]:
    """The values of lam for which r + lam c is positive (the constraint is active), and those for which it is not."""
    if c == 0:
        return ((0.0, math.inf), None) if r > 0 else (None, (0.0, math.inf))
    edge = -r / c
    above, below = (max(edge, 0.0), math.inf), ((0.0, edge) if edge > 0 else None)
    return (above, below) if c > 0 else (below, above)


def _into(value: float, interval: Range) -> float:
    return min(max(value, interval[0]), interval[1])


def conjugate_gradients(
    product: Product, b: Float[Array, " n"], iterations: int = 10, tolerance: float = 1e-10
) -> Float[Array, " n"]:
    """Solve H x = b, given only the product with H (Hestenes and Stiefel, 1952)."""

    def step(_: int, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        x, residual, direction, squared = carry
        image = product(direction)
        # Once solved, residual and direction are 0 and the quotient would be 0 / 0: stay.
        alpha = jnp.where(squared > tolerance, squared / jnp.maximum(direction @ image, 1e-30), 0.0)
        x, residual = x + alpha * direction, residual - alpha * image
        following = residual @ residual
        return x, residual, residual + following / jnp.maximum(squared, 1e-30) * direction, following

    start = (jnp.zeros_like(b), b, b, b @ b)
    solution: Array = jax.lax.fori_loop(0, iterations, step, start)[0]
    return solution
