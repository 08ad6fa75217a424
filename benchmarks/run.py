"""`python -m benchmarks.run [--quick] [--out FILE]`: measure everything, print the tables, write the numbers."""

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine, reallog, report
from benchmarks.child import ROOT, measure, result, start
from benchmarks.evaluation import share_of_run

STEP = "benchmarks.workload:step_speed"
RESULTS = ROOT / "results" / "benchmarks.json"
PAGE = ROOT / "docs" / "speed.md"


@dataclass(frozen=True)
class Sizes:
    """How much to measure. The quick sizes only show that everything works; their numbers mean nothing."""

    settings: dict[str, Any]
    methods: tuple[str, ...]
    members: tuple[int, ...]
    batches: tuple[int, ...]
    widths: tuple[int, ...]
    samples: tuple[int, ...]
    rows: tuple[int, ...]
    log_rows: int
    startup_rows: int
    episodes: int
    windows: int
    seconds: float
    matmul: tuple[int, ...]
    real_rows: int  # of the log that steps are timed on
    earlier: int  # steps of the stages before the last (the detector) ...
    trained: int  # ... and of the last one, before anything is timed
    shortly_trained: int  # the same for both where many sizes are tried
    states: str | None = None  # folder for trained states: each is made once


FULL = Sizes(
    settings={},
    methods=("cpq paper, all", "cpq paper, one", "cpq", "bc", "bc-safe", "bcq-lag", "bear-lag", "cbpl"),
    members=(1, 2, 4, 8),
    batches=(64, 256, 1024, 4096),
    widths=(64, 128, 256, 512),
    samples=(1, 5, 10, 20, 50),
    rows=(100_000, 1_000_000, 10_000_000),
    log_rows=2_000_000,
    startup_rows=100_000,
    episodes=10,
    windows=5,
    seconds=0.6,
    matmul=(256, 512, 1024, 2048),
    real_rows=100_000,
    earlier=2000,
    trained=3000,
    shortly_trained=200,
)
QUICK = Sizes(
    settings={"hidden": [8, 8], "batch_size": 8},
    methods=("cpq", "bc"),
    members=(1, 2),
    batches=(8,),
    widths=(8,),
    samples=(2,),
    rows=(1000,),
    log_rows=2000,
    startup_rows=500,
    episodes=1,
    windows=2,
    seconds=0.01,
    matmul=(64,),
    real_rows=1000,
    earlier=3,
    trained=5,
    shortly_trained=2,
)


def all_cores() -> tuple[int, ...]:
    return tuple(range(os.cpu_count() or 1))


def peak(sizes: Sizes) -> dict[str, Any]:
    arguments = {"sizes": sizes.matmul, "seconds": sizes.seconds}
    several = {str(len(cores)): cores for cores in ((0,), all_cores()[:2], all_cores())}
    return {
        count: measure("benchmarks.machine:matmul_peak", arguments, cores=cores) for count, cores in several.items()
    }


def speed(
    sizes: Sizes, name: str, cores: tuple[int, ...] = (), environment: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    return measure(STEP, step_arguments(sizes, name, **more), cores=cores, environment=environment)


def step_arguments(sizes: Sizes, name: str, settings: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    timing = {"windows": sizes.windows, "seconds": sizes.seconds, "peak_size": sizes.matmul[-1]}
    training = {"earlier": sizes.earlier, "trained": sizes.trained, "states": sizes.states}
    data = {"rows": sizes.real_rows, "log_rows": sizes.real_rows}
    return {"name": name, "settings": {**sizes.settings, **(settings or {})}, **timing, **training, **data, **more}


def shortly(sizes: Sizes) -> Sizes:
    """For tables over many sizes, where training each one for long would take hours."""
    return replace(sizes, earlier=sizes.shortly_trained, trained=sizes.shortly_trained)


def methods(sizes: Sizes) -> dict[str, Any]:
    return {name: speed(sizes, name) for name in sizes.methods}


def without_kernels(sizes: Sizes) -> dict[str, Any]:
    """CPQ through XLA's own products, as where there is no compiler."""
    off = {"RINGFENCE_KERNELS": "xla"}
    return {name: speed(sizes, name, environment=off) for name in sizes.methods if name.startswith("cpq")}


def one_core(sizes: Sizes) -> dict[str, Any]:
    return {name: speed(sizes, name, cores=(0,)) for name in sizes.methods if name.startswith("cpq")}


def population(sizes: Sizes) -> dict[str, Any]:
    """Member-steps per second: of several seeds in one program, and of one program on each of two cores."""
    sizes = shortly(sizes)
    together = {str(count): speed(sizes, "cpq", members=count)["steps_per_second"] * count for count in sizes.members}
    arguments = step_arguments(sizes, "cpq")
    running = [start(STEP, arguments, cores=(core,)) for core in all_cores()[:2]]
    apart = [result(process)["median"] for process in running]
    return {"one_program": together, "processes": {"1": together["1"], str(len(apart)): sum(apart)}}


def growth(sizes: Sizes) -> dict[str, Any]:
    """Steps per second of CPQ's default as one thing grows and the others keep their standard size."""
    sizes = shortly(sizes)
    grown: dict[str, dict[int, dict[str, Any]]] = {
        "batch_size": {value: {"settings": {"batch_size": value}} for value in sizes.batches},
        "width": {value: {"settings": {"hidden": [value, value]}} for value in sizes.widths},
        "ood_samples": {value: {"settings": {"ood_samples": value}} for value in sizes.samples},
        "rows": {value: {"rows": value} for value in sizes.rows},
    }
    return {
        name: {str(value): speed(sizes, "cpq", **change) for value, change in changes.items()}
        for name, changes in grown.items()
    }


def evaluation(sizes: Sizes) -> dict[str, Any]:
    measured = measure("benchmarks.evaluation:evaluation_speed", {"episodes": sizes.episodes})
    training = speed(sizes, "cpq")["steps_per_second"]
    return {**measured, "share_of_run": share_of_run(measured["seconds"], training)}


def startup(sizes: Sizes) -> dict[str, Any]:
    width = sizes.settings.get("hidden", [256])[0]
    return measure("benchmarks.startup:startup", {"rows": sizes.startup_rows, "hidden": width})


def large_log(sizes: Sizes) -> dict[str, Any]:
    steps = min(50, sizes.trained)
    return measure("benchmarks.logs:large_log", {"rows": sizes.log_rows, "settings": sizes.settings, "steps": steps})


SECTIONS: dict[str, Callable[[Sizes], dict[str, Any]]] = {
    "peak": peak,
    "methods": methods,
    "without_kernels": without_kernels,
    "one_core": one_core,
    "population": population,
    "startup": startup,
    "evaluation": evaluation,
    "large_log": large_log,
    "growth": growth,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the speed and memory of ringfence.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, under a minute: only shows that it works")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="some sections only")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the numbers go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as states:
        run(replace(QUICK if options.quick else FULL, states=states), options)


def run(sizes: Sizes, options: argparse.Namespace) -> None:
    reallog.log_path(rows=sizes.real_rows)
    console = Console()
    numbers: dict[str, Any] = report.read(options.out)
    numbers["machine"] = machine.describe()
    for name in options.only:
        console.print(f"measuring {name} ...", style="dim")
        numbers[name] = {**SECTIONS[name](sizes), "load_average": machine.load_average()}  # of the last minute
        report.write(options.out, numbers)
    report.show(numbers, console)
    report.draw(numbers, options.out.with_suffix(".png"))
    if options.out == RESULTS:
        report.update_page(numbers, PAGE)
    console.print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
