"""Attacks on runs: kills, damaged files, full disks, two processes at once.

    python -m tests.campaigns.runs --cases 300 [--only kills operations policies directories disks together] [--seed 0]

Every case ends in one of two ways: the very numbers of a run that nobody touched, or a refusal in one or two lines. What
ends otherwise (a wrong number, a traceback, a hang, something lost) is printed, and the exit status is 1.

Kills need processes: children forked from a parent that has imported everything and computed nothing, a second each. The
other attacks call the command line again and again in this process, after the kills.
"""

import argparse
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import matplotlib.figure  # noqa: F401  (imported before the children are made, like everything that takes long)
import numpy as np

import ringfence
import ringfence.reports.run
import ringfence.training.resuming
from ringfence.algorithms import METHODS
from ringfence.cli import main
from ringfence.deploy import Policy
from ringfence.errors import RingfenceError
from ringfence.training import Run
from tests.campaigns.killing import before_each_change, kill_at
from tests.logs import narrow_log

SMALL = ["--set", "hidden=[4]", "batch_size=8"]
WORDS = ["--limit", "5", "--method", "bc", *SMALL, "--steps", "40", "--log-every", "10", "--checkpoint-every", "10"]
SHORT = {
    "cpq": ["cvae_steps=5", "ood_samples=2"],
    "cbpl": ["fqi_steps=5", "fqe_steps=5"],
    "bear-lag": ["cvae_steps=5", "warmup_steps=5"],
    "bcq-lag": ["cvae_steps=5"],
}
PATIENCE = 600.0  # seconds until a case counts as a hang
PLOT = ringfence.reports.run.plot_run
RESULTS = ("policy.safetensors", "metrics.jsonl", "verdict.json", "config.json")


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
        else:
            ringfence.reports.run.plot_run = PLOT
        out, error = io.StringIO(), io.StringIO()
        before = signal.signal(signal.SIGALRM, too_late)
        signal.alarm(int(patience))
        try:
            with redirect_stdout(out), redirect_stderr(error):
                return main(self.words)
        except TimeoutError:
            return None
        except BaseException as error_at_the_door:
            print(f"Traceback: {error_at_the_door!r}", file=error)
            return 99
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            self.said = error.getvalue()


class Campaign:
    def __init__(self, folder: Path, seed: int):
        self.folder, self.rng = folder, random.Random(seed)
        self.log = folder / "log.npz"
        ringfence.save(narrow_log(rows=300), self.log)
        self.faults: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.fresh = ["train", str(self.log), *WORDS]
        self.whole = folder / "whole"
        began = time.monotonic()
        child = Child([*self.fresh, "--out", str(self.whole)], folder)
        assert child.wait() == 0, child.said
        self.duration = time.monotonic() - began
        self.wanted = {name: (self.whole / name).read_bytes() for name in RESULTS}
        self.half = self.stopped_half_way()

    def stopped_half_way(self) -> Path:
        run = self.folder / "half"
        child = Child([*self.fresh, "--out", str(run)], self.folder, lambda: kill_at(20, run))
        assert child.wait() == -signal.SIGKILL, child.said
        assert list((run / "checkpoints").glob("*.json"))
        return run

    def fault(self, case: str, what: str) -> None:
        self.faults.append(f"{case}: {what}")
        print(f"FAULT {case}: {what}", flush=True)

    def refused(self, case: str, child: Child | Call, status: int | None) -> None:
        """A refusal is one or two lines, besides the lines that a run begins with."""
        start = ("limit:", "note:", "warning:", "run:", "stages:", "detector", "policy")
        lines = [line for line in child.said.splitlines() if line.strip() and not line.startswith(start)]
        if status is None:
            self.fault(case, "hangs")
        elif status not in (1, 2) or "Traceback" in child.said or "unforeseen" in child.said or len(lines) > 2:
            self.fault(case, f"status {status}: {child.said[-600:]}")
        self.outcomes[f"refused ({status})"] += 1

    def same_as_whole(self, case: str, run: Path, names: tuple[str, ...] = RESULTS) -> None:
        different = [n for n in names if not (run / n).exists() or (run / n).read_bytes() != self.wanted[n]]
        if different:
            self.fault(case, f"other content in {', '.join(different)}")
        left = [file.name for file in run.rglob(".*.tmp*")]
        if left:
            self.fault(case, f"temporaries left: {left}")
        self.outcomes["same numbers"] += 1

    def finish(self, case: str, run: Path, here: bool = False) -> None:
        """Begin again or go on, whichever is possible; it must end in the numbers of the whole run."""
        words = ["train", "--resume", str(run)] if (run / "config.json").exists() else [*self.fresh, "--out", str(run)]
        child = Call(words) if here else Child(words, self.folder)
        status = child.wait()
        if status != 0:
            self.fault(case, f"cannot go on, status {status}: {child.said[-600:]}")
        else:
            self.same_as_whole(case, run)
        shutil.rmtree(run, ignore_errors=True)

    # The attacks

    def kills(self, cases: int) -> None:
        """SIGKILL after a random time, up to four times in a row."""
        for case in range(cases):
            run = self.folder / f"kill-{case}"
            for _ in range(self.rng.randint(1, 4)):
                begun = (run / "config.json").exists()
                words = ["train", "--resume", str(run)] if begun else [*self.fresh, "--out", str(run)]
                child = Child(words, self.folder)
                if child.wait(self.rng.uniform(0.05, 1.1 * self.duration)) not in (None, 0):
                    self.fault(f"kill {case}", child.said[-600:])
            self.finish(f"kill {case}", run)

    def operations(self, cases: int) -> None:
        """What a kill before each operation on the run's files would leave: a copy of the directory at that moment. Of a
        run that begins, and of one that goes on."""
        for begun in (False, True):
            run, copies = self.folder / f"watched-{begun}", self.folder / f"copies-{begun}"
            if begun:
                shutil.copytree(self.half, run)
            names: list[str] = []

            def copy(operation: str, run: Path = run, copies: Path = copies, names: list[str] = names) -> None:
                names.append(operation)
                target = copies / str(len(names))
                shutil.copytree(run, target) if run.exists() else target.mkdir(parents=True)

            before_each_change(run, copy)
            words = ["train", "--resume", str(run)] if begun else [*self.fresh, "--out", str(run)]
            call = Call(words)
            if call.wait() != 0:
                self.fault(f"watched run ({begun})", call.said[-600:])
            watched = list(names)
            print(f"{len(watched)} operations of a run that {'goes on' if begun else 'begins'}", flush=True)
            for number, operation in enumerate(watched[:cases], 1):
                self.finish(f"killed before {operation} ({number}, begun: {begun})", copies / str(number), here=True)

    def policies(self, cases: int) -> None:
        """Damaged policy files of every method: refused, or the same policy."""
        files = []
        for name in METHODS:
            out = self.folder / f"policy-{name}"
            limit = "9" if name == "bc-safe" else "5"
            words = ["train", str(self.log), "--method", name, "--limit", limit, "--steps", "10", "--out", str(out)]
            child = Call([*words, *SMALL, *SHORT.get(name, [])])
            if child.wait() != 0:
                self.fault(f"policy of {name}", child.said[-600:])
                continue
            files.append(out / "policy.safetensors")
        observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
        for case in range(cases):
            original = self.rng.choice(files)
            content, how = damaged(original.read_bytes(), self.rng)
            target = self.folder / "damaged.safetensors"
            target.write_bytes(content)
            case_name = f"policy {case} ({original.parent.name}, {how})"
            try:
                policy = Policy.load(target)
            except RingfenceError:
                self.outcomes["policy refused"] += 1
                continue
            except Exception as error:
                self.fault(case_name, f"{type(error).__name__}: {error}")
                continue
            whole = Policy.load(original)
            same = np.array_equal(policy(observations), whole(observations)) and policy.metadata == whole.metadata
            self.outcomes["policy unharmed"] += 1
            if not same:
                self.fault(case_name, "accepted, and it is another policy")

    def directories(self, cases: int) -> None:
        """One file of a run damaged, lost or replaced: refused, or the same numbers, with every lost line named."""
        for case in range(cases):
            run = shutil.copytree(self.rng.choice((self.half, self.whole)), self.folder / f"directory-{case}")
            files = sorted(file for file in run.rglob("*") if file.is_file() and file.name != ".lock")
            file = self.rng.choice(files)
            how = damage_file(file, self.rng)
            case_name = f"directory {case} ({file.relative_to(run)}: {how})"
            self.read(case_name, run)
            child = Call(["train", "--resume", str(run)])
            status = child.wait()
            if status != 0:
                self.refused(case_name, child, status)
            elif "is damaged and left out" in child.said or file.suffix == ".jsonl":
                self.same_as_whole(case_name, run, ("policy.safetensors", "config.json"))
                self.read(case_name, run)
            else:
                self.same_as_whole(case_name, run)
            shutil.rmtree(run, ignore_errors=True)

    def read(self, case: str, run: Path) -> None:
        """Reading a run gives rows of the original, or is refused."""
        try:
            rows = Run.load(run).metrics
        except RingfenceError:
            return
        except Exception as error:
            self.fault(case, f"Run.load: {type(error).__name__}: {error}")
            return
        known = [json.dumps(row) for row in Run.load(self.whole).metrics]
        if any(json.dumps(row) not in known for row in rows):
            self.fault(case, "Run.load accepts a row that was never written")

    def disks(self, cases: int) -> None:
        """Files that may not grow beyond some size: told in a line, and it goes on later."""
        for case in range(cases):
            run, size = self.folder / f"disk-{case}", int(10 ** self.rng.uniform(0, 4.5))

            call = Call([*self.fresh, "--out", str(run)])
            no_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, no_limit[1]))
            try:
                status = call.wait()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, no_limit)
            if status not in (0, 1) or "Traceback" in call.said or "unforeseen" in call.said:
                self.fault(f"disk of {size} bytes", f"status {status}: {call.said[-600:]}")
            self.outcomes[f"small disk, status {status}"] += 1
            self.finish(f"disk of {size} bytes", run, here=True)

    def together(self, cases: int) -> None:
        """Two processes on one run: one works, the other is refused or comes after it."""
        for case in range(cases):
            run = self.folder / f"together-{case}"
            if case % 2:
                shutil.copytree(self.half, run)
            words = ["train", "--resume", str(run)] if case % 2 else [*self.fresh, "--out", str(run)]
            children = [Child(words, self.folder) for _ in range(2 + case % 3)]
            statuses = [child.wait() for child in children]
            if 0 not in statuses:
                self.fault(f"together {case}", f"nobody finished: {[child.said[-300:] for child in children]}")
            for child, status in zip(children, statuses, strict=True):
                if status != 0:
                    self.refused(f"together {case}", child, status)
            self.same_as_whole(f"together {case}", run)
            shutil.rmtree(run, ignore_errors=True)


def damaged(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """The bytes with one kind of damage, and its name."""
    data, kind = (
        bytearray(content),
        rng.choice(("flip", "truncate", "zero", "extend", "insert", "header", "swap", "empty")),
    )
    place = rng.randrange(len(data)) if data else 0
    if not data:
        return b"\x00", "was empty"
    if kind == "flip":
        data[place] ^= 1 << rng.randrange(8)
    elif kind == "truncate":
        del data[place:]
    elif kind == "zero":
        data[place : place + 64] = bytes(len(data[place : place + 64]))
    elif kind == "extend":
        data += rng.randbytes(rng.randint(1, 64))
    elif kind == "insert":
        data[place:place] = rng.randbytes(rng.randint(1, 16))
    elif kind == "header":  # a digit or letter near the start, where JSON is
        place = rng.randrange(min(len(data), 1500))
        data[place] = ord(rng.choice('0129aZ"{}[],:-.eN'))
    elif kind == "swap":
        other = rng.randrange(len(data))
        size = min(32, len(data) - max(place, other))
        data[place : place + size], data[other : other + size] = data[other : other + size], data[place : place + size]
    else:
        data = bytearray()
    return bytes(data), kind


def damage_file(file: Path, rng: random.Random) -> str:
    """Damage, lose or replace one file."""
    kind = rng.choice(("content", "content", "content", "content", "lost", "directory", "garbage", "JSON"))
    if kind == "content":
        content, kind = damaged(file.read_bytes(), rng)
        file.write_bytes(content)
    elif kind == "lost":
        file.unlink()
    elif kind == "directory":
        file.unlink()
        file.mkdir()
    elif kind == "garbage":
        file.write_bytes(rng.randbytes(200))
    elif file.suffix == ".json" and isinstance(content := json.loads(file.read_bytes()), dict):
        key = rng.choice(sorted(content))
        content[key] = rng.choice((None, [], {}, -1, 1e400, "x", float("nan"), True))
        file.write_text(json.dumps(content))
    else:
        file.write_text("[]\n")
    return kind


def run_campaign() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("kills", "together", "operations", "policies", "directories", "disks")  # the first two fork
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringfence-campaign-") as name:
        campaign = Campaign(Path(name), options.seed)
        warnings.simplefilter("ignore")
        for attack in sorted(options.only, key=names.index):
            began = time.monotonic()
            getattr(campaign, attack)(options.cases)
            print(
                f"{attack}: {options.cases} cases, {time.monotonic() - began:.0f} s, "
                f"{len(campaign.faults)} faults so far; {dict(campaign.outcomes)}",
                flush=True,
            )
    return 1 if campaign.faults else 0


if __name__ == "__main__":
    sys.exit(run_campaign())
