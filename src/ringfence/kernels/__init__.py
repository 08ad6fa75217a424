"""Compiled code of our own for CPUs: networks, their optimiser and random words.

`computation` says what computes here; `calls` is what networks, optimiser and random numbers use. Where the kernels cannot
run, XLA's own products do the same work.
"""


def computation() -> str:
    """What computes in this process: "kernels/avx512", "kernels/avx2" or "xla". Sums of floats depend on it in their last
    digits, so a run records it, and goes on to the same numbers only under the same."""
    from ringfence.kernels import calls  # imports JAX

    return calls.computation()
