"""Matrix work of a compiled program, counted from its own text.

XLA's cost analysis counts the body of a loop once, which is what a step is to our loop, but adds element-wise work to the
products. The share of a matrix-multiply peak is only meaningful for the products, so they are counted apart: each
`dot` of the optimised program does 2 x (elements of its result) x (length of the contraction) operations.
"""

import re
from math import prod
from typing import Any

INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = \(?\w+\[([\d,]*)\]")
DOT = re.compile(r" dot\(%?([\w.\-]+), .*lhs_contracting_dims=\{([\d,]*)\}")


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
    return total


def program_work(compiled: Any) -> dict[str, float]:
    """Matrix FLOPs, and all FLOPs by XLA's own analysis."""
    return {"matrix_flops": matrix_flops(compiled.as_text()), "xla_flops": float(compiled.cost_analysis()["flops"])}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)
