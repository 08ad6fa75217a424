"""`python -m benchmarks.time_to_policy --python .bench-venv/bin/python`: seconds from the command to a policy that holds its
limit and beats the safe clone.

Every method gets the same log of HalfCheetah, the same cores and the same limits, where a gain exists: between the costs of
the two policies that wrote the log. While it trains, what it has learned is saved every so many steps, with the seconds
since the command: loading, compiling and the detector count, evaluation does not. Afterwards all that was saved is
evaluated in the same episodes. A policy is good if its mean discounted cost is inside the limit and its mean return above
that of cloning the safe episodes (BC-Safe, given as many steps). Two times are reported: that of the first good policy, and
that from which on all are good. A user without a simulator cannot pick the right moment to stop, so the second one counts.
For our methods the seconds at which each stage of the training ended are kept as well ("stages"). Limits that the file has
already, measured with the same settings, are kept and not measured again.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import machine, report
from benchmarks.child import ROOT, MeasurementFailed, measure
from benchmarks.osrl_methods import OSRL_METHODS
from benchmarks.reallog import as_arrays, log_path
from ringfence.files import read_json, write_json

TASK = "halfcheetah-torque"
RESULTS = ROOT / "results" / "time_to_policy.json"
OURS = {"ringfence CPQ": "cpq"}
STAGES = "stages.json"  # beside the policies of a run: the seconds since the command at which each stage ended


def train_ours(
    log: str, method: str, folder: str, began: float, limit: float, steps: int, every: int, settings: dict[str, Any],
    seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Train as `ringfence train` does, with policies saved in place of evaluations, and STAGES beside them."""
    from ringfence.algorithms import METHODS
    from ringfence.data import load_file
    from ringfence.training import Plan, run
    from ringfence.training.compilation import use_compilation_cache
    from ringfence.training.configuration import Member

    use_compilation_cache()
    saved: dict[str, Any] = {}
    ended: dict[str, float] = {}
    if "hidden" in settings:
        settings = {**settings, "hidden": tuple(settings["hidden"])}

    def save(policy: Any, member: Any) -> dict[str, float]:
        seconds, cpu = time.time() - began, time.process_time()
        step = every * (len(saved) + 1)
        policy.save(Path(folder) / f"{step}.safetensors")
        saved[str(step)] = {"seconds": seconds, "cpu_seconds": cpu}
        return {"return": 0.0, "discounted_cost": 0.0}  # not simulated here

    def note(row: dict[str, Any]) -> None:
        ended[row["stage"]] = time.time() - began  # the last line of a stage is made at its end

    plan = Plan(METHODS[method](**settings), (Member(seed, limit),), steps=steps, evaluate_every=every)
    run(load_file(log), plan, evaluate=save, progress=False, observe=note)
    write_json(Path(folder) / STAGES, ended)
    return saved


def evaluate(policy: Any, limit: float, episodes: int) -> dict[str, float]:
    from ringfence.evaluation import evaluate

    result = evaluate(policy, TASK, episodes=episodes, seed=50_000, limit=limit)
    return {"return": float(result.returns.mean()), "discounted_cost": float(result.discounted_costs.mean())}


class Served:
    """The policies of a peer: a function from observations, in the task's own units, to actions."""

    def __init__(self, python: str, name: str, log: Path, limit: float, width: int):
        from ringfence.data import load_file

        self.log = load_file(log)
        arguments = {"name": name, "arrays": str(log.with_suffix(".npz")), "limit": limit, "width": width}
        command = [python, "-m", "benchmarks.osrl_methods", json.dumps(arguments)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        normaliser = self.log.normaliser
        normalised = (observations - normaliser.mean) / normaliser.std
        actions = np.clip(np.asarray(self.ask({"observations": normalised.tolist()}), np.float32), -1.0, 1.0)
        low, high = self.log.action_low, self.log.action_high
        return np.asarray(low + (actions + 1.0) / 2.0 * (high - low))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def judged(saved: dict[str, Any], bar: float, limit: float, score: Callable[[str], dict[str, float]]) -> dict[str, Any]:
    """What was saved with its evaluation, and the two times."""
    curve = [{"step": int(step), **times, **score(step)} for step, times in saved.items()]
    good = [point["discounted_cost"] <= limit and point["return"] > bar for point in curve]
    first = next((point["seconds"] for point, yes in zip(curve, good, strict=True) if yes), None)
    lasting = next((curve[i]["seconds"] for i in range(len(curve)) if all(good[i:])), None)
    return {"curve": curve, "first_good_seconds": first, "good_from_then_on_seconds": lasting}


def compare(limit: float, log: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All methods at one limit."""
    from ringfence.deploy import Policy

    measured: dict[str, Any] = {}
    common = {"limit": limit, "steps": options.steps, "every": options.every}
    widths = {"hidden": [options.width, options.width]}

    def ours(method: str) -> tuple[dict[str, Any], dict[str, float]]:
        with tempfile.TemporaryDirectory() as folder:
            own = {"method": method, "settings": widths, "seed": options.seed}
            arguments = {"log": str(log), "folder": folder, **own, **common}
            saved = measure("benchmarks.time_to_policy:train_ours", {**arguments, "began": time.time()})
            scores = {
                step: evaluate(Policy.load(Path(folder) / f"{step}.safetensors"), limit, options.episodes)
                for step in saved
            }
            stages = read_json(Path(folder) / STAGES)
        return {step: {**times, **scores[step]} for step, times in saved.items()}, stages

    clone, stages = ours("bc-safe")
    last = list(clone.values())[-1]
    bar = last["return"]
    measured["BC-Safe"] = {"return": bar, "discounted_cost": last["discounted_cost"], "stages": stages}
    for label, method in OURS.items():
        points, stages = ours(method)
        found = judged(
            points, bar, limit, lambda step, points=points: {k: points[step][k] for k in ("return", "discounted_cost")}
        )
        measured[label] = {**found, "stages": stages}
    for name in options.methods if options.python else ():
        measured[f"osrl-lib {name}"] = peer(name, limit, log, bar, common, options)
    return measured


def peer(
    name: str, limit: float, log: Path, bar: float, common: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"name": name, "arrays": str(as_arrays(log)), "folder": folder, "width": options.width, **common}
        try:
            saved = measure("benchmarks.osrl_methods:train", {**arguments, "began": time.time()}, python=options.python)
        except MeasurementFailed as error:
            return {"failed": str(error)}
        served = Served(options.python, name, log, limit, options.width)

        def score(step: str) -> dict[str, float]:
            served.ask({"load": str(Path(folder) / f"{step}.npz")})
            return evaluate(served, limit, options.episodes)

        try:
            return judged(saved, bar, limit, score)
        finally:
            served.close()


def table(numbers: dict[str, Any]) -> report.Table:
    rows = []
    for limit, methods in numbers["limits"].items():
        for name, value in methods.items():
            if "failed" in value or "curve" not in value:
                last = value.get("failed") or f"{value['return']:.0f} @ {value['discounted_cost']:.1f}"
                rows.append((limit, name, "", "", last))
                continue
            point = value["curve"][-1]
            times = (value["first_good_seconds"], value["good_from_then_on_seconds"])
            shown = ("never" if seconds is None else f"{seconds:.0f}" for seconds in times)
            rows.append((limit, name, *shown, f"{point['return']:.0f} @ {point['discounted_cost']:.1f}"))
    columns = ("limit", "", "first good policy, s", "good from then on, s", "at the end: return @ cost")
    return report.table("Time to a policy that holds its limit and beats the safe clone, HalfCheetah", columns, rows)


def notes(numbers: dict[str, Any]) -> list[str]:
    """For each training of ours with a detector, when its stage ended, as a share of the time to a good policy."""
    lines = []
    for limit, methods in numbers["limits"].items():
        for name, value in methods.items():
            if (seconds := value.get("stages", {}).get("detector")) is None:
                continue
            good = value["good_from_then_on_seconds"]
            share = "" if good is None else f", {100 * seconds / good:.0f} % of the time until its policies were good"
            lines.append(
                f"limit {limit}, {name}: the detector's stage ended after {seconds:.0f} s, start and compilation included"
                f"{share}"
            )
    return lines


def measured_before(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The limits of a file that was measured with the same settings; none if there is no such file."""
    if not path.exists():
        return {}
    earlier = read_json(path)
    limits: dict[str, Any] = earlier["limits"] if {"seed": 0, **earlier["settings"]} == settings else {}
    return limits


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds from the command to a good policy, ours beside others'.")
    parser.add_argument("--python", help="Python of the environment that has the others; without it only ours")
    parser.add_argument("--limits", type=float, nargs="+", default=[40.0, 50.0, 60.0])
    parser.add_argument("--methods", nargs="+", choices=OSRL_METHODS, default=list(OSRL_METHODS))
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--steps", type=int, default=16_000)
    parser.add_argument("--every", type=int, default=2_000)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0, help="of our methods")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.python = options.python and str(Path(options.python).absolute())
    log = log_path(TASK, options.rows)
    settings = {name: getattr(options, name) for name in ("rows", "steps", "every", "episodes", "width", "seed")}
    numbers = {"machine": machine.describe(), "settings": settings, "limits": measured_before(options.out, settings)}
    for limit in options.limits:
        if f"{limit:g}" not in numbers["limits"]:
            numbers["limits"][f"{limit:g}"] = compare(limit, log, options)
        numbers["load_average"] = machine.load_average()
        report.write(options.out, numbers)
    Console().print(table(numbers).for_terminal())
    print("\n".join(notes(numbers)))
    print(f"wrote {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
