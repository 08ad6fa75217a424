"""Matrix work of a compiled program, counted from its own text.

XLA's cost analysis counts the body of a loop once, which is what a step is to our loop, but adds element-wise work to the
products. The share of a matrix-multiply peak is only meaningful for the products, so they are counted apart: each
`dot` of the optimised program does 2 x (elements of its result) x (length of the contraction) operations, and each call of
our kernels 2 x (rows) x (elements of a weight) for every weight that it multiplies with and every one whose gradient it
gives.
"""

import re
from math import prod
from typing import Any

INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = \(?\w+\[([\d,]*)\]")
DOT = re.compile(r" dot\(%?([\w.\-]+), .*lhs_contracting_dims=\{([\d,]*)\}")
CALL = re.compile(r'custom_call_target="ringfence\.\w+\.(forward|backward)", operand_layout_constraints=\{(.*?)\}, api')
SHAPE = re.compile(r"f32\[([\d,]*)\]")


def matrix_flops(program_text: str) -> int:
    """FLOPs of every dot in the text of an optimised HLO module, loop bodies counted once."""
    total = 0
    shapes: dict[str, tuple[int, ...]] = {}
    for line in program_text.splitlines():
        if line.endswith("{"):  # a new computation: names start again
            shapes = {}
        found = INSTRUCTION.match(line)
        if not found:
            continue
        shapes[found[1]] = _numbers(found[2])
        if dot := DOT.search(line):
            contracted = prod(shapes[dot[1]][axis] for axis in _numbers(dot[2]))
            total += 2 * prod(shapes[found[1]]) * contracted
        if call := CALL.search(line):
            operands = [_numbers(shape) for shape in SHAPE.findall(call[2])]
            switches = {name for name in ("normalise", "wants_input", "wants_weights") if f"{name} = true" in line}
            total += kernel_flops(call[1], operands, switches)
    return total


def kernel_flops(name: str, operands: list[tuple[int, ...]], switches: set[str]) -> int:
    """FLOPs of one call of `ringfence.kernels`, from the shapes of its arguments and what is switched on."""
    rows = operands[0][-2]
    if name == "forward":  # x, then weight and bias of each layer
        return sum(2 * rows * prod(weight) for weight in operands[1::2])
    # The gradient of y; then of each layer, the last first: weight, input and, with LayerNorm before it, its scales
    each = 3 if "normalise" in switches else 2
    weights = [2 * rows * prod(weight) for weight in operands[1::each]]
    back = sum(weights if "wants_input" in switches else weights[:-1])
    return back + (sum(weights) if "wants_weights" in switches else 0)


def program_work(compiled: Any) -> dict[str, float]:
    """Matrix FLOPs, and all FLOPs by XLA's own analysis."""
    return {"matrix_flops": matrix_flops(compiled.as_text()), "xla_flops": float(compiled.cost_analysis()["flops"])}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)
