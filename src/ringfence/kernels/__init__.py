"""Compiled code for CPUs: networks, their optimiser and random words. An optional part of the package, built when it is
installed.

`computation` says what computes here and `explanation` why; `mlp` is what networks use, `calls` what the optimiser and
random numbers use. Where the kernels cannot run, XLA's own products do the same work.
"""


def computation() -> str:
    """What computes in this process: "kernels/avx512", "kernels/avx2" or "xla". Sums of floats depend on it in their last
    digits, so a run records it, and goes on to the same numbers only under the same."""
    from ringfence.kernels import calls  # imports JAX

    return "xla" if calls.obstacle() else f"kernels/{calls.library_name()}"


def explanation() -> str:
    """Why XLA computes and not the kernels; empty if the kernels do."""
    from ringfence.kernels import calls

    return calls.obstacle()
