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

VARIANTS = ("cpq paper, all", "cpq paper, one", "cpq")


def compare(other: Path, cores: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Each variant in both trees by turns, so that what else the machine does hits both alike; the best round stands."""
    measured: dict[str, Any] = {}
    trees: dict[str, dict[str, str]] = {"before": {"PYTHONPATH": str(other.resolve())}, "after": {}}
    for name in VARIANTS:
        rates: dict[str, list[float]] = {tree: [] for tree in trees}
        for _ in range(rounds):
            for tree, environment in trees.items():
                found = measure(STEP, {"name": name}, cores=cores, environment=environment)
                rates[tree].append(found["steps_per_second"])
        measured[name] = {tree: max(values) for tree, values in rates.items()}
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the CPQ step with that of another checkout.")
    parser.add_argument("other", type=Path, help="the other checkout's src directory")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    numbers = report.read(options.out)
    numbers.setdefault("machine", machine.describe())
    numbers["before_and_after"] = {
        **{str(len(cores)): compare(options.other, cores, options.rounds) for cores in (all_cores(), (0,))},
        "load_average": machine.load_average(),
    }
    report.write(options.out, numbers)
    Console().print(report.before_table(numbers).for_terminal())
    if options.out == RESULTS:
        report.update_page(numbers, PAGE)


if __name__ == "__main__":
    main()
