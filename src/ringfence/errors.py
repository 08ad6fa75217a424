"""Everything that can be wrong with what a user gives us, one class each.

The message says what is wrong, where (column, first offending row) and what to do about it.
The command line prints it on one or two lines and exits with status 2.
"""


class RingfenceError(Exception):
    """Any error that ringfence raises on purpose; its message is meant for users.

    >>> print(RingfenceError("column 'flow\\n[l]' is missing"))
    column 'flow\\n[l]' is missing
    """

    def __str__(self) -> str:
        """On one line, whatever names of a file it quotes: what cannot be printed is shown by its escape."""
        return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in super().__str__())


# What is wrong with a log


class DataError(RingfenceError):
    """The log cannot be used as it is."""


class UnreadableFile(DataError):
    """The file is missing, truncated, damaged or of a format we do not read."""


class EmptyData(DataError):
    """The log has no rows."""


class MissingColumns(DataError):
    """A column that ringfence needs is not in the log."""


class UnequalLengths(DataError):
    """The columns do not have the same number of rows."""


class WrongShape(DataError):
    """A column has the wrong number of dimensions, or holds something other than numbers."""


class NonFiniteValue(DataError):
    """A column holds NaN or infinity."""


class ActionOutOfBounds(DataError):
    """An action lies outside the stated action range."""


class NegativeCost(DataError):
    """A cost is negative; costs measure harm and start at 0."""


class NoEpisodeEnds(DataError):
    """Nothing in the log says where an episode ends."""


# What is wrong with a request


class InvalidSetting(RingfenceError):
    """An option or hyper-parameter has a value that makes no sense."""


class UnknownName(RingfenceError):
    """No task, method or dataset has this name."""


class MissingExtra(RingfenceError):
    """The request needs an optional package that is not installed."""


# What `pip install ringfence` brings; NumPy and safetensors alone are enough to run and to guard a policy.
DEPENDENCIES = (
    "bokeh", "equinox", "h5py", "jax", "jaxtyping", "matplotlib", "numpy", "optax", "pyarrow", "rich", "safetensors", "scipy"
)  # fmt: skip


def not_installed(error: ModuleNotFoundError) -> MissingExtra | None:
    """The error in our words, if what is missing is a dependency of ours."""
    package = (error.name or "").partition(".")[0]
    if package not in DEPENDENCIES:
        return None
    return MissingExtra(
        f"this needs {package}, which is not installed: pip install ringfence, with its dependencies (NumPy and safetensors "
        "alone are enough to load, run, guard and export a policy to C)"
    )


class WouldOverwrite(RingfenceError):
    """The output exists already, and nothing is overwritten without asking."""


class NoCacheDirectory(RingfenceError):
    """There is no safe place for what ringfence can make again."""


class SimulatorError(RingfenceError):
    """An environment failed, or gave numbers that make no sense."""


# What is wrong with a saved file or a run


class ForeignPolicy(RingfenceError):
    """The file is not a ringfence policy, or is damaged."""


class CheckpointError(RingfenceError):
    """No usable checkpoint: missing, damaged or of another version."""


class RunInUse(RingfenceError):
    """Another process works on the run."""


class NonFiniteLoss(RingfenceError):
    """Training produced NaN or infinity and was stopped."""
