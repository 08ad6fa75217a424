"""Damaged guard logs, runs and sweeps by the hundred: `report`, `judge` and `choose` make their page or refuse in a line.

    python -m tests.campaigns.pages --cases 300 --seed 0

What ends otherwise (a traceback, a hang, a line of a guard's log that was never written) is printed, and the exit status
is 1. The pages of runs and sweeps are not compared with those of whole files.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import ringfence
from ringfence.cli import main as ringfence_main
from ringfence.deploy import Guard, Policy, read_guard_log
from tests.campaigns.calls import PAGE, PLOT, Call
from tests.campaigns.damage import damage_file
from tests.logs import narrow_log

SWEEP = """
name = "grid"
log = "log.npz"
limits = [9, 12]
seeds = [0]
steps = 20
holdout = 0.4
[[methods]]
method = "bc"
settings = { hidden = [4], batch_size = 8 }
"""
ODD: tuple[Any, ...] = (None, True, -1, 0, 1e400, 10**400, "x", "", [], {}, [[]], [None], float("nan"), {"x": None})


def make_originals(folder: Path) -> None:
    """Two runs, a sweep and a guard's log, all of one log."""
    log = narrow_log(rows=1000, episode_length=20, with_source=True)
    ringfence.save(log, folder / "log.npz")
    for name, seed in (("one", "0"), ("two", "1")):
        words = [
            "train",
            str(folder / "log.npz"),
            "--method",
            "bc",
            "--limit",
            "9",
            "--steps",
            "20",
            "--holdout",
            "0.4",
        ]
        words += ["--seeds", seed, "--set", "hidden=[4]", "batch_size=8", "--out", str(folder / name)]
        assert ringfence_main(words) == 0
    (folder / "grid.toml").write_text(SWEEP)
    assert ringfence_main(["sweep", str(folder / "grid.toml"), "--out", str(folder / "store"), "--workers", "1"]) == 0
    policy = Policy.load(folder / "one" / "policy.safetensors")
    guard = Guard(policy, fallback=lambda observation: log.actions[0], log=folder / "guard.jsonl", record="steps")
    for row in range(200):
        guard(log.observations[row] * (30.0 if row % 17 == 0 else 1.0))


def damage_line(file: Path, rng: random.Random) -> str:
    """Another value, or none, somewhere in one line (or all) of a file of JSON; the rest stays as it was."""
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    place = rng.randrange(min(len(lines), 5)) if lines else 0
    value = json.loads(lines[place])
    inside, key = value, None
    while isinstance(inside, dict | list) and inside and (key is None or rng.random() < 0.6):
        parent, key = inside, rng.choice(sorted(inside) if isinstance(inside, dict) else range(len(inside)))
        inside = parent[key]
    if key is None:
        return "was empty"
    if rng.random() < 0.3:
        del parent[key]
    else:
        parent[key] = rng.choice(ODD)
    lines[place] = json.dumps(value)
    file.write_text("\n".join(lines) + "\n")
    return f"line {place + 1}, {key}"


def damaged_case(originals: Path, folder: Path, rng: random.Random) -> tuple[str, list[str]]:
    """A copy with one damaged file, in words, and the command that reads it."""
    shutil.copytree(originals, folder)
    run, other, guard, store = (str(folder / name) for name in ("one", "two", "guard.jsonl", "store"))
    kind = rng.choice(("guard", "guard", "run", "sweep"))
    page = ["--out", str(folder / "page.html")]
    commands = {
        "guard": [["report", guard, *page], ["report", guard, "--log", f"{run}/policy.safetensors", *page]],
        "run": [
            ["report", run],
            ["report", run, other, *page],
            ["judge", run],
            ["choose", run, other],
            ["judge", other],
        ],
        "sweep": [
            ["report", store],
            ["sweep", str(folder / "grid.toml"), "--out", store, "--report-only"],
            ["sweep", str(folder / "grid.toml"), "--out", store, "--workers", "1"],
        ],
    }
    files = {
        "guard": [folder / "guard.jsonl"],
        "run": [file for file in (folder / "one").iterdir() if file.is_file() and file.name != ".lock"],
        "sweep": [f for f in (folder / "store").rglob("*") if f.is_file() and f.suffix in (".json", ".jsonl", ".csv")],
    }
    file = rng.choice(sorted(files[kind]))
    by_value = file.suffix in (".json", ".jsonl") and rng.random() < 0.6
    how = damage_line(file, rng) if by_value else damage_file(file, rng)
    command = rng.choice(commands[kind])
    return f"{command[0]} of a {kind} ({file.relative_to(folder)}: {how})", command


def invented_lines(damaged: Path, original: Path) -> int:
    """How many lines of a guard's log are read that were never written."""
    written = [json.dumps(line) for line in read_guard_log(original)]
    return sum(json.dumps(line) not in written for line in read_guard_log(damaged))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, outcomes, faults = random.Random(options.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="ringfence-campaign-") as name:
        originals = Path(name) / "originals"
        originals.mkdir()
        make_originals(originals)
        for case in range(options.cases):
            said, command = damaged_case(originals, Path(name) / "case", rng)
            ringfence.reports.run.plot_run, ringfence.reports.html.pages.write_run_page = PLOT, PAGE
            call = Call(command)
            status = call.wait()
            outcomes[f"status {status}"] += 1
            lines = [line for line in call.said.splitlines() if line and not line.startswith(("warning:", "note:"))]
            if status not in (0, 2, 3) or "unforeseen" in call.said or (status == 2 and len(lines) > 2):
                faults += 1
                print(f"FAULT {case}: {said}: status {status}: {call.said[-600:]}", flush=True)
            guard_logs = (Path(name) / "case" / "guard.jsonl", originals / "guard.jsonl")
            if status == 0 and "of a guard" in said and (invented := invented_lines(*guard_logs)):
                faults += 1
                print(f"FAULT {case}: {said}: {invented} lines are read that were never written", flush=True)
            shutil.rmtree(Path(name) / "case")
    print(f"pages: {dict(outcomes)}, {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
