"""Calls of the command line that the campaigns make: in a process of its own, or in this one."""

import io
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import ringfence.reports.html.pages
import ringfence.reports.run
from ringfence.cli import main

PATIENCE = 600.0  # seconds until a case counts as a hang
PLOT, PAGE = ringfence.reports.run.plot_run, ringfence.reports.html.pages.write_run_page


def processor_seconds(pid: int) -> float:
    """The processor time that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Child:
    """A call of the command line in a process of its own."""

    def __init__(self, words: list[str], folder: Path, before: Callable[[], None] = lambda: None):
        self.error = folder / f"stderr-{time.monotonic_ns()}"
        self.pid = os.fork()
        if self.pid == 0:
            status = 99
            try:
                with open(self.error, "w") as error, open(os.devnull, "w") as nowhere:
                    os.dup2(nowhere.fileno(), 1)
                    os.dup2(error.fileno(), 2)
                before()
                status = main(words)
            except SystemExit as error:  # how argparse refuses
                status = int(error.code or 0)
            except BaseException as error:  # a traceback at the door is what we look for
                print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
            finally:
                sys.stderr.flush()
                os._exit(status)

    def wait(self, patience: float = PATIENCE) -> int | None:
        """Its exit status, minus the signal's number if one ended it, None if it hangs."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return None

    def wait_busy(self, patience: float) -> int | None:
        """As `wait`, with a patience in seconds of the process's own time, which does not pass while others compute."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and processor_seconds(self.pid) < patience:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        return self.wait(0.0)

    @property
    def said(self) -> str:
        return self.error.read_text(errors="replace")


class Call:
    """A call of the command line in this process, with the interface of `Child`."""

    made = 0

    def __init__(self, words: list[str]):
        self.words, self.said = words, ""

    def wait(self, patience: float = PATIENCE) -> int | None:
        def too_late(*_: object) -> None:
            raise TimeoutError

        Call.made += 1
        if Call.made % 20:  # the picture takes half of the time and says nothing new
            ringfence.reports.run.plot_run = lambda run, log, path: path
            ringfence.reports.html.pages.write_run_page = lambda run, log: run.path
        else:
            ringfence.reports.run.plot_run, ringfence.reports.html.pages.write_run_page = PLOT, PAGE
        out, error = io.StringIO(), io.StringIO()
        before = signal.signal(signal.SIGALRM, too_late)
        signal.alarm(int(patience))
        try:
            with redirect_stdout(out), redirect_stderr(error):
                return main(self.words)
        except TimeoutError:
            return None
        except SystemExit as refusal:  # how argparse refuses
            return int(refusal.code or 0)
        except BaseException as error_at_the_door:
            print(f"Traceback: {error_at_the_door!r}", file=error)
            return 99
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            self.said = error.getvalue()
