"""Cases run in a process of their own, so that a crash, a hang or too much memory is an outcome like any other."""

import multiprocessing
import resource
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ringfence.errors import RingfenceError

MEMORY = 3 << 30  # bytes of address space, beyond what the libraries have mapped
SECONDS = 120.0  # on a machine that may be busy


@dataclass(frozen=True)
class Outcome:
    """What became of a case: "same", "refused", or what went wrong."""

    case: str
    kind: str
    detail: str = ""
    seconds: float = 0.0
    kilobytes: int = 0  # by which the greatest memory of the process grew


def run(cases: Sequence[Callable[[], tuple[str, str]]], names: Sequence[str]) -> list[Outcome]:
    """Each case returns a kind of outcome and a detail. A RingfenceError counts as refused, anything else as a defect."""
    outcomes: list[Outcome] = []
    context = multiprocessing.get_context("fork")
    while len(outcomes) < len(cases):
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(cases, names, len(outcomes), sender), daemon=True)
        worker.start()
        sender.close()
        outcomes += _collect(worker, receiver, names, len(outcomes))
    return outcomes


def _collect(worker: Any, receiver: Connection, names: Sequence[str], first: int) -> list[Outcome]:
    """Outcomes until the process is done, crashes or hangs; a crash or hang is that of the case it was in."""
    found: list[Outcome] = []
    while first + len(found) < len(names):
        name = names[first + len(found)]
        try:
            if not receiver.poll(SECONDS):
                worker.kill()
                found.append(Outcome(name, "HANG", f"more than {SECONDS:g} s"))
                break
            found.append(receiver.recv())
        except EOFError:
            worker.join()
            found.append(Outcome(name, "CRASH", f"exit status {worker.exitcode}"))
            break
    worker.join()
    return found


def _work(cases: Sequence[Callable[[], tuple[str, str]]], names: Sequence[str], first: int, sender: Connection) -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    warnings.simplefilter("error")  # a number that overflows unseen is a defect too
    for case, name in list(zip(cases, names, strict=True))[first:]:
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        try:
            kind, detail = case()
        except RingfenceError as error:
            kind, detail = "refused", str(error)
            if len(detail) < 20 or "\n" in detail:
                kind = "UNCLEAR"
        except BaseException as error:
            kind, detail = "TRACEBACK", f"{type(error).__name__}: {error}"
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        sender.send(Outcome(name, kind, detail, time.process_time() - start, grown))


def report(title: str, outcomes: Sequence[Outcome], shown: int = 15) -> int:
    """Print what became of the cases; the number of defects, which are written in capitals."""
    counts = Counter(outcome.kind for outcome in outcomes)
    slowest = max(outcomes, key=lambda outcome: outcome.seconds)
    largest = max(outcomes, key=lambda outcome: outcome.kilobytes)
    print(f"{title}: {len(outcomes)} cases; " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    print(f"  slowest {slowest.seconds:.2f} s, most memory {largest.kilobytes / 1000:.0f} MB ({largest.case})")
    defects = [outcome for outcome in outcomes if outcome.kind.isupper()]
    for outcome in defects[:shown]:
        print(f"  {outcome.kind} {outcome.case}: {outcome.detail[:300]}")
    return len(defects)
