"""From an experiment to its results: make the logs, run what is missing, keep the small results apart."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringfence.behaviour.datasets import builtin_dataset, dataset_path
from ringfence.data import load_file
from ringfence.evaluation import Evaluator
from ringfence.experiments.choosing import write_choices
from ringfence.experiments.display import Display, duration
from ringfence.experiments.grid import Cell, Experiment, LogSource
from ringfence.experiments.listing import describe, former_cells, whole_result
from ringfence.experiments.machine import Machine
from ringfence.experiments.references import write_references
from ringfence.experiments.runner import State, run_experiment
from ringfence.experiments.speed import measured_speeds
from ringfence.experiments.store import DirectoryStore, Store, open_store
from ringfence.progress import counting
from ringfence.reports.results import is_result, read_references


def conduct(
    experiment: Experiment,
    out: str | Path,
    results: Path,
    machine: Machine,
    *,
    command: str = "",
    progress: bool = True,
) -> State:
    """Run the experiment's missing cells in the store `out`; finished ones are copied to `results`/cells as they end.
    Results that are in `results` already count as finished."""
    machine.check_run()
    store, kept = open_store(out), DirectoryStore(results)
    read_references(results)  # a damaged file is an error now, not when all has run
    names = {cell.id for cell in experiment.cells}
    for name in (kept.finished() & names) - store.finished():
        store.put_result(name, whole_result(kept, name))
    former = former_cells(experiment, results)
    describe(experiment, results, list(former), command)
    others = [cell for name, cell in former.items() if name not in names]
    missing = [cell for cell in experiment.cells if cell.id not in store.finished()]
    check_logs(missing)
    speeds = measured_speeds(missing, finished_results(experiment, store), machine.threads_of_a_cell)
    estimates = {cell.id: speeds.seconds(cell) for cell in missing}
    local = {cell.log_fingerprint: make_log(cell.log) for cell in missing}
    write_references(experiment.cells, results)  # first: what is there of the cells can be compared at any time
    engine = machine.open()
    try:
        logs = {key: str(path) if engine.shares_files else store.put_log(path, key) for key, path in local.items()}
        with Display(experiment.name, lambda cell: estimates.get(cell.id, 0.0), engine.slots, progress) as display:

            def watch(state: State) -> None:
                display(state)
                with suppress(OSError):  # a store that does not answer is asked again
                    keep_results(state, store, kept)

            state = run_experiment(experiment, store, engine, logs, watch=watch)
            keep_results(state, store, kept)
    finally:
        engine.close()
    if not state.interrupted:
        write_choices(Experiment(experiment.name, (*experiment.cells, *others)), store, results)
    return state


def keep_results(state: State, store: Store, kept: Store) -> None:
    for name in state.done - kept.finished():
        kept.put_result(name, whole_result(store, name))


def check_logs(cells: Iterable[Cell]) -> None:
    """Read each log of the user's once and compare it with the task: a fault is one error now, not one of every worker."""
    for source, task in dict.fromkeys((cell.log, cell.task) for cell in cells):
        if not source.builtin:
            log = load_file(source.source, **source.options)
            if task is not None:
                Evaluator(task, parallel=1).require_match(log)


def make_log(source: LogSource) -> Path:
    """The log's file; a built-in one is made now if it is not in the cache."""
    if source.rows is None:
        return Path(source.source).absolute()
    with counting(f"making {source.rows:,} rows of {source.source}", "rows") as progress:
        return builtin_dataset(source.source, source.rows, source.seed, progress=progress)


def finished_results(experiment: Experiment, *stores: Store) -> list[dict[str, Any]]:
    """The results of the experiment's cells in the first of the stores that has them; damaged ones are left out."""
    found: dict[str, dict[str, Any]] = {}
    for store in stores:
        for name in sorted(store.finished() & {cell.id for cell in experiment.cells} - found.keys()):
            if (result := store.result(name)) is not None and is_result(result):
                found[name] = result
    return list(found.values())


def dry_run(experiment: Experiment, out: str | Path, results: Path, machine: Machine) -> None:
    """List what would run and how long it should take, from measured speeds."""
    store, kept = open_store(out), DirectoryStore(results)
    done = (store.finished() | kept.finished()) & {cell.id for cell in experiment.cells}
    missing = [cell for cell in experiment.cells if cell.id not in done]
    check_logs(missing)
    speeds = measured_speeds(missing, finished_results(experiment, store, kept), machine.threads_of_a_cell)
    title = f"{escape(experiment.name)}: {len(missing)} cells to run, {len(done)} done"
    table = Table("cell", "steps", "about", title=title)
    seconds = {cell.id: speeds.seconds(cell) for cell in missing}
    for cell in missing:
        table.add_row(cell.id, f"{cell.schedule.steps:,}", duration(seconds[cell.id]))
    console = Console()
    console.print(table)
    for source in unmade_logs(missing):
        print(
            f"the log of {source.rows:,} rows of {source.source} is not in the cache and is made first", file=sys.stderr
        )
    total = sum(seconds.values())
    slots = sorted({1, machine.slots})
    times = ", ".join(f"{duration(makespan(list(seconds.values()), n))} with {n} at a time" for n in slots)
    threads = machine.threads_of_a_cell
    console.print(f"{duration(total)} of work on {threads} thread(s) each: {times}", highlight=False, soft_wrap=True)


def unmade_logs(cells: Iterable[Cell]) -> list[LogSource]:
    sources = dict.fromkeys(cell.log for cell in cells)
    return [s for s in sources if s.rows is not None and not dataset_path(s.source, s.rows, s.seed).exists()]


def makespan(seconds: list[float], slots: int) -> float:
    """When the last of these cells ends if each free slot takes the next one in order."""
    free = [0.0] * slots
    for length in seconds:
        free.sort()
        free[0] += length
    return max(free)
