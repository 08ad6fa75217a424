"""Attacks on runs: kills, damaged files, full disks, two processes at once, extreme numbers.

    python -m tests.campaigns.runs --cases 300 [--only kills:61 numbers policies ...] [--seed 0]

Every case ends in one of two ways: the very numbers of a run that nobody touched, or a refusal in one or two lines. What
ends otherwise (a wrong number, a traceback, a hang, something lost) is printed, and the exit status is 1.

Kills need processes: children forked from a parent that has imported everything and computed nothing, a second each. The
other attacks call the command line again and again in this process, after the kills.
"""

import argparse
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import matplotlib.figure  # noqa: F401  (imported before the children are made, like everything that takes long)
import numpy as np
from safetensors.numpy import load as load_tensors

import ringfence
import ringfence.reports.run
import ringfence.training.resuming
from ringfence.algorithms import METHODS
from ringfence.deploy import Policy
from ringfence.errors import RingfenceError
from ringfence.training import Run
from tests.campaigns.calls import Call, Child
from tests.campaigns.damage import damage_file, damaged
from tests.campaigns.forged import forge
from tests.campaigns.killing import before_each_change, fill_disk_at, kill_at
from tests.logs import narrow_log

SMALL = ["--set", "hidden=[4]", "batch_size=8"]
WORDS = ["--limit", "5", "--method", "bc", *SMALL, "--steps", "40", "--log-every", "10", "--checkpoint-every", "10"]
SHORT = {
    "cpq": ["cvae_steps=5", "ood_samples=2"],
    "cbpl": ["fqi_steps=5", "fqe_steps=5"],
    "bear-lag": ["cvae_steps=5", "warmup_steps=5"],
    "bcq-lag": ["cvae_steps=5"],
}
EXTREME_WORDS = """
nan NaN inf Infinity -Infinity 1e400 1e308 -1e308 1e39 3.4e38 1e30 -1e30 1e-30 1e-46 5e-324 -0.0 0 -1 1 0.999999999 1.0000001
2147483647 2147483648 4294967296 18446744073709551616 [] [0] [-1] [2147483647] {} null true 1_0 0x10
"""
EXTREME = (*EXTREME_WORDS.split(), "9" * 400)
LARGE = (1e-40, 1e-30, 1e10, 1e18, 1e20, 1e30, 1e36)
OPTIONS = (
    "limit",
    "discount",
    "horizon",
    "holdout",
    "seeds",
    "action-low",
    "action-high",
    "log-every",
    "checkpoint-every",
)
RESULTS = ("policy.safetensors", "metrics.jsonl", "verdict.json", "config.json")


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

    def forged(self, cases: int) -> None:
        """Signed policy files with absurd numbers inside."""
        for case in range(cases):
            try:
                outcome, what = forge(self.folder, self.rng)
            except Exception as error:
                self.fault(f"forged policy {case}", f"{type(error).__name__}: {error}")
                continue
            self.outcomes[f"forged policy {outcome}"] += 1
            if outcome.isupper():
                self.fault(f"forged policy {case}", f"{outcome}: {what}")

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
            elif "is damaged and left out" in child.said or "are lost" in child.said:
                self.same_as_whole(case_name, run, ("policy.safetensors", "config.json"))
                self.read(case_name, run)
                if "damaged or lost" not in (run / "verdict.txt").read_text():
                    self.fault(case_name, "the verdict does not say that lines are lost")
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

    def full(self, cases: int) -> None:
        """A disk that is full from some operation of the run on, for each of its operations: told in a line, and it goes
        on later."""
        for case in range(1, cases + 1):
            run = self.folder / f"full-{case}"
            end = fill_disk_at(case, run)
            call = Call([*self.fresh, "--out", str(run)])
            status = call.wait()
            operations = end()
            if status == 0:  # nothing after that operation needed room
                self.same_as_whole(f"full disk at {case}", run)
                if operations < case:
                    print(f"{operations} operations of a run on a disk that fills up", flush=True)
                    return
                continue
            if status != 1 or "No space left" not in call.said:
                self.fault(f"full disk at {case}", f"status {status}: {call.said[-600:]}")
            self.refused(f"full disk at {case}", call, status)
            self.finish(f"full disk at {case}", run, here=True)

    def numbers(self, cases: int) -> None:
        """An option, a setting or a column of the log with an extreme number: refused, or a run whose policy and verdict
        are finite."""
        for case in range(cases):
            run, method = self.folder / f"number-{case}", self.rng.choice(("bc", "bc", "cpq"))
            name, value = self.rng.choice(settings_with_numbers(method)), self.rng.choice(EXTREME)
            log = self.log
            if case % 4 == 0:  # the log instead
                name, value = (
                    self.rng.choice(("observations", "rewards", "costs")),
                    str(factor := self.rng.choice(LARGE)),
                )
                log = self.log_with(name, factor)
            words = ["train", str(log), "--method", method, "--steps", "20", "--out", str(run)]
            others = [word for word in (*SMALL, *SHORT.get(method, [])) if not word.startswith(f"{name}=")]
            words += ["--log-every", "5", "--checkpoint-every", "3", "--limit", "5", *others]
            if log == self.log:
                words.append(f"{name}={value}")  # a setting joins those of --set
            child = Child(words, self.folder, little_memory)
            status = child.wait_busy(60.0)
            case_name = f"number {case} ({method}, {name}={value[:30]})"
            if status == 0:
                self.finite(case_name, run)
            else:
                self.refused(case_name, child, status)
            shutil.rmtree(run, ignore_errors=True)

    def log_with(self, column: str, factor: float) -> Path:
        """The log with one column so many times as large."""
        log = narrow_log(rows=300)
        changed = replace(log, **{column: getattr(log, column) * np.float32(factor)})
        path = self.folder / "extreme.npz"
        ringfence.save(changed, path, overwrite=True)
        return path

    def finite(self, case: str, run: Path) -> None:
        """Everything that a run left is finite, and strict JSON."""
        self.outcomes["finite"] += 1
        try:
            loaded = Run.load(run)
            actions = loaded.policy(np.zeros((5, 3), np.float32))
            lines = [*(run / "metrics.jsonl").read_text().splitlines(), (run / "verdict.json").read_text()]
            for line in lines:
                json.loads(line, parse_constant=lambda constant: self.fault(case, f"{constant} in its JSON"))
            if not np.isfinite(actions).all():
                self.fault(case, "its policy's actions are not finite")
            for file in run.glob("checkpoints/*.safetensors"):
                if not all(np.isfinite(array).all() for array in load_tensors(file.read_bytes()).values()):
                    self.fault(case, f"{file.name} is not finite")
        except Exception as error:
            self.fault(case, f"{type(error).__name__}: {error}")

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


def settings_with_numbers(method: str) -> list[str]:
    """The settings of a method, and the options of the command line, that are numbers. Those that say how long a run
    takes are left out."""
    of_method = [field.name for field in fields(METHODS[method]) if isinstance(field.default, int | float | tuple)]
    long = {"cvae_steps", "limit"}
    return [*(name for name in of_method if name not in long), *(f"--{name}" for name in OPTIONS)]


def little_memory() -> None:
    """So that a run which asks for terabytes fails instead of filling the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))


ATTACKS = (
    "kills",
    "together",
    "numbers",
    "operations",
    "policies",
    "forged",
    "directories",
    "disks",
    "full",
)  # three fork


def attack_of(word: str) -> tuple[str, int | None]:
    """An attack, or an attack and its number of cases, such as "kills:61"."""
    name, _, cases = word.partition(":")
    if name not in ATTACKS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(ATTACKS)}")
    return name, int(cases) if cases else None


def run_campaign() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300, help="of each attack that does not say its own number")
    parser.add_argument(
        "--only", nargs="+", type=attack_of, default=[(name, None) for name in ATTACKS], metavar="ATTACK"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringfence-campaign-") as name:
        campaign = Campaign(Path(name), options.seed)
        warnings.simplefilter("ignore")
        for attack, cases in sorted(options.only, key=lambda chosen: ATTACKS.index(chosen[0])):
            began, outcomes_before, faults_before = time.process_time(), campaign.outcomes.copy(), len(campaign.faults)
            getattr(campaign, attack)(cases or options.cases)
            print(
                f"{attack}: {dict(campaign.outcomes - outcomes_before)}, {len(campaign.faults) - faults_before} faults, "
                f"{time.process_time() - began:.0f} s of this process",
                flush=True,
            )
    return 1 if campaign.faults else 0


if __name__ == "__main__":
    sys.exit(run_campaign())
