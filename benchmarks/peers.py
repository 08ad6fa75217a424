"""`python -m benchmarks.peers --python .bench-venv/bin/python`: our CPQ step beside others, in the same run."""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine, reallog, report
from benchmarks.child import MeasurementFailed, measure
from benchmarks.run import PAGE, RESULTS, STEP, all_cores

PEERS = {"osrl-lib": "benchmarks.osrl_cpq:speed", "PyTorch, tuned by hand": "benchmarks.torch_cpq:speed"}
OURS = {
    "ringfence, CPQ": "cpq",
    "ringfence, CPQ.paper, one kept action": "cpq paper, one",
    "ringfence, CPQ.paper, all": "cpq paper, all",
}


def compare(python: str, cores: tuple[int, ...], states: str, rows: int, trained: int) -> dict[str, Any]:
    """Steps per second of each after as many steps on the same log, measured in turn, twice over: the better stands."""
    measured: dict[str, Any] = {}
    arrays = str(reallog.as_arrays(reallog.log_path(rows=rows)))
    ours = {"rows": rows, "log_rows": rows, "trained": trained, "earlier": min(2000, trained), "states": states}
    for _ in range(2):
        for name, function in PEERS.items():
            keep(measured, name, function, {"arrays": arrays, "trained": trained}, cores=cores, python=python)
        for name, variant in OURS.items():
            keep(measured, name, STEP, {"name": variant, **ours}, cores=cores)
    return measured


def keep(measured: dict[str, Any], name: str, function: str, arguments: dict[str, Any], **options: Any) -> None:
    try:
        found = measure(function, arguments, **options)
    except MeasurementFailed as error:
        found = {"failed": str(error)}
    before = measured.get(name, {}).get("steps_per_second", 0.0)
    if name not in measured or found.get("steps_per_second", 0.0) > before:
        measured[name] = found


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the CPQ step with other implementations.")
    parser.add_argument("--python", required=True, help="Python of the environment that has the others")
    parser.add_argument(
        "--one-core", action="store_true", help="on one core only: by processor time, for a busy machine"
    )
    parser.add_argument("--rows", type=int, default=reallog.ROWS, help="of the log")
    parser.add_argument("--trained", type=int, default=3000, help="steps before anything is timed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    numbers = report.read(options.out)
    numbers.setdefault("machine", machine.describe())
    python = str(Path(options.python).absolute())
    counts = {str(len(cores)): cores for cores in ([(0,)] if options.one_core else [(0,), all_cores()])}
    with tempfile.TemporaryDirectory() as states:
        measured = {
            count: compare(python, cores, states, options.rows, options.trained) for count, cores in counts.items()
        }
    numbers["peers"] = {**measured, "load_average": machine.load_average()}
    report.write(options.out, numbers)
    Console().print(report.peers_table(numbers).for_terminal())
    if options.out == RESULTS:
        report.update_page(numbers, PAGE)


if __name__ == "__main__":
    main()
