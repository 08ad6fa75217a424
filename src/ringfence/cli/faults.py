"""Turns an error into one or two lines and an exit status: 2 for a fault of the request, 1 for one of the machine or of
ringfence."""

import errno
import os
import sys
import tempfile
import traceback

from ringfence.errors import RingfenceError, not_installed

REQUEST, MACHINE = 2, 1
# What the system says of a path that was asked for, rather than of itself.
OF_THE_REQUEST = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOTEMPTY, errno.EXDEV,
}  # fmt: skip
ADVICE = {
    errno.ENOSPC: "free some space, then go on with --resume where a run was under way",
    errno.EDQUOT: "your quota is used up; free some space, then go on with --resume where a run was under way",
    errno.EFBIG: "the file would be larger than this process may write (ulimit -f)",
    errno.EROFS: "the place is read-only; choose another",
    errno.EACCES: "you may not write (or read) there; choose another place",
}


def report(error: Exception, verb: str) -> int:
    """Print what happened and return the exit status. With RINGFENCE_DEBUG=1 the traceback comes first."""
    if os.environ.get("RINGFENCE_DEBUG") == "1":
        traceback.print_exception(error)
    text, status = explained(error)
    print(f"ringfence {verb}: error: {' '.join(text.split())}", file=sys.stderr)
    return status


def explained(error: Exception) -> tuple[str, int]:
    if isinstance(error, RingfenceError):
        return str(error), REQUEST
    if isinstance(error, OSError) and error.errno is not None:
        named = error.filename2 or error.filename  # of a rename, the name that was wanted
        where = f"{named}: " if named else ""
        advice = f"; {ADVICE[error.errno]}" if error.errno in ADVICE else ""
        status = REQUEST if error.errno in OF_THE_REQUEST else MACHINE
        return f"{where}{error.strerror or error}{advice}", status
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error):
        return f"not enough memory ({_short(error)}); use smaller networks, a smaller batch or a smaller log", MACHINE
    if isinstance(error, ModuleNotFoundError) and (missing := not_installed(error)):
        return str(missing), REQUEST
    kept = _keep_traceback(error)
    return (
        f"unforeseen {type(error).__name__}: {_short(error)}. Please report it at the project's issue tracker{kept}",
        MACHINE,
    )


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _keep_traceback(error: Exception) -> str:
    """Where the traceback was written, in words; nothing where it could not be."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="ringfence-error-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return "; RINGFENCE_DEBUG=1 shows the traceback"
    return f", with {name}"
