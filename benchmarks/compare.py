"""`python -m benchmarks.compare OTHER/src`: the CPQ step of this tree beside that of another checkout, in the same run.

Useful for one's own change: `git worktree add ../before main && python -m benchmarks.compare ../before/src`.
"""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine, report
from benchmarks.child import measure
from benchmarks.run import PAGE, RESULTS, STEP, all_cores

RATES = ("steps_per_second", "steps_per_cpu_second")
VARIANTS = ("cpq paper, all", "cpq paper, one", "cpq")


def compare(name: str, other: Path, cores: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """A variant in both trees by turns, so that what else the machine does hits both alike; the best round stands."""
    trees: dict[str, dict[str, str]] = {"before": {"PYTHONPATH": str(other.resolve())}, "after": {}}
    shortly_trained = {"earlier": 200, "trained": 200}  # in each process anew
    found: dict[str, list[dict[str, Any]]] = {tree: [] for tree in trees}
    for _ in range(rounds):
        for tree, environment in trees.items():
            found[tree].append(measure(STEP, {"name": name, **shortly_trained}, cores=cores, environment=environment))
    return {tree: {rate: max(values[rate] for values in several) for rate in RATES} for tree, several in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the CPQ step with that of another checkout.")
    parser.add_argument("other", type=Path, help="the other checkout's src directory")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--one-core", action="store_true", help="on one core only: by processor time, for a busy machine"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    numbers = report.read(options.out)
    numbers.setdefault("machine", machine.describe())
    for cores in [(0,)] if options.one_core else [(0,), all_cores()]:
        for name in VARIANTS:
            section = numbers.setdefault("before_and_after", {})
            section.setdefault(str(len(cores)), {})[name] = compare(name, options.other, cores, options.rounds)
            section["load_average"] = machine.load_average()
            report.write(options.out, numbers)
    Console().print(report.before_table(numbers).for_terminal())
    if options.out == RESULTS:
        report.update_page(numbers, PAGE)


if __name__ == "__main__":
    main()
