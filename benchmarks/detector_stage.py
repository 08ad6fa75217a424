"""`python -m benchmarks.detector_stage`: seconds that the detector's stage takes in CPQ's default, and what of it is the
detector's own: the stage without `feedback` trains the CVAE alone, without the model of the plant and the clones.

The time is that of the steps after the first thousand, so that loading and compiling do not count, for the stage's length.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import machine, report
from benchmarks.child import ROOT, measure
from benchmarks.reallog import log_path

TASK = "halfcheetah-torque"
RESULTS = ROOT / "results" / "detector_stage.json"
EVERY = 1000  # steps between two looks at the clock


def stage_seconds(log: str, settings: dict[str, Any]) -> dict[str, float]:
    """For all steps of the stage, at the speed of those after the first EVERY."""
    from ringfence import CPQ
    from ringfence.data import load_file
    from ringfence.training import Plan, run
    from ringfence.training.configuration import Member

    looked: list[tuple[int, float]] = []

    def note(row: dict[str, Any]) -> None:
        if row["stage"] == "detector":
            looked.append((int(row["step"]), time.perf_counter()))

    method = CPQ(**settings)
    run(load_file(log), Plan(method, (Member(0, 60.0),), steps=1, log_every=EVERY), progress=False, observe=note)
    (first, began), (last, ended) = looked[0], looked[-1]
    return {"steps": method.cvae_steps, "seconds": (ended - began) / (last - first) * method.cvae_steps}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What the detector's stage takes, and what of it is the detector's own."
    )
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    log = str(log_path(TASK, options.rows))
    numbers: dict[str, Any] = {"machine": machine.describe(), "rows": options.rows}
    for name, settings in (("the stage", {}), ("the CVAE alone", {"feedback": 0.0})):
        numbers[name] = measure("benchmarks.detector_stage:stage_seconds", {"log": log, "settings": settings})
        print(f"{name}: {numbers[name]['seconds']:.1f} s for {numbers[name]['steps']:,} steps")
    numbers["load_average"] = machine.load_average()
    report.write(options.out, numbers)
    print(f"wrote {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
