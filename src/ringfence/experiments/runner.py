"""Runs an experiment: every cell that has no result yet, each retried once, the rest going on whatever happens."""

import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ringfence.experiments.engines import Engine
from ringfence.experiments.grid import Cell, Experiment
from ringfence.experiments.store import Store
from ringfence.experiments.worker import Job, Outcome

RETRIES = 1
POLL = 0.5  # seconds between looks at what runs
ELSEWHERE_WAIT = 10.0  # seconds before a cell is tried again that another process works on


@dataclass
class State:
    """Where an experiment stands."""

    experiment: Experiment
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)  # cell, reason
    retried: dict[str, str] = field(default_factory=dict)  # cell, why the first attempt ended
    began: dict[str, float] = field(default_factory=dict)  # when a running cell was first seen to run
    seconds: dict[str, float] = field(default_factory=dict)  # of the cells that ended while this driver ran
    steps: dict[str, int] = field(default_factory=dict)  # how far the running ones are
    interrupted: bool = False

    @property
    def left(self) -> list[Cell]:
        return [cell for cell in self.experiment.cells if cell.id not in self.done and cell.id not in self.failed]


def run_experiment(
    experiment: Experiment,
    store: Store,
    engine: Engine,
    logs: Mapping[str, str],
    *,
    watch: Callable[[State], None] = lambda state: None,
    retries: int = RETRIES,
    elsewhere_wait: float = ELSEWHERE_WAIT,
) -> State:
    """Run what is missing and say where everything stands. `logs` has the address of each log by its fingerprint;
    `watch` is called about twice a second. Ctrl-C lets the cells save their state and stops."""
    state = State(experiment, done=store.finished() & {cell.id for cell in experiment.cells})
    owner = secrets.token_hex(8)
    jobs = {cell.id: Job(cell, logs[cell.log_fingerprint], store.address, owner) for cell in state.left}
    futures = {engine.submit(job): cell for cell, job in jobs.items()}
    attempts = dict.fromkeys(jobs, 1)
    looked = 0.0
    later: dict[str, float] = {}  # cells that another process works on, and when to try them again
    try:
        while futures or later:
            ended, _ = wait(futures, timeout=POLL if futures else 0, return_when=FIRST_COMPLETED)
            if not futures:
                time.sleep(POLL)
            for future in ended:
                cell = futures.pop(future)
                outcome = result_of(future)
                if outcome.status == "stopped":  # not by us: after our own Ctrl-C no outcome is read here
                    outcome = Outcome("failed", "interrupted from outside")
                if outcome.status == "elsewhere":
                    later[cell] = time.monotonic() + elsewhere_wait
                elif outcome.status == "failed" and attempts[cell] <= retries:
                    attempts[cell] += 1
                    state.retried[cell] = outcome.reason
                    futures[engine.submit(jobs[cell])] = cell
                else:
                    settle(state, store, cell, outcome)
            for cell in [c for c, at in later.items() if at <= time.monotonic()]:
                try:
                    finished = store.result(cell) is not None
                except OSError:  # the store does not answer: ask again
                    later[cell] = time.monotonic() + elsewhere_wait
                    continue
                del later[cell]
                if finished:
                    settle(state, store, cell, Outcome("done"))
                else:
                    futures[engine.submit(jobs[cell])] = cell
            if time.monotonic() - looked >= store.look_every:
                with suppress(OSError):  # it serves the display alone
                    look(state, store)
                looked = time.monotonic()
            watch(state)
    except KeyboardInterrupt:
        state.interrupted = True
        engine.stop()
        state.done |= store.finished() & set(jobs)
    except BaseException:  # whatever is wrong here, what runs there saves its state
        engine.stop()
        raise
    watch(state)
    return state


def result_of(future: "Future[Outcome]") -> Outcome:
    """The outcome; that of a job whose worker was lost is a failure like any other."""
    try:
        return future.result()
    except CancelledError:
        return Outcome("stopped")
    except Exception as error:  # the engine lost the worker
        first = str(error).strip().splitlines()
        return Outcome("failed", f"its worker was lost ({type(error).__name__}: {first[0] if first else ''})")


def settle(state: State, store: Store, cell: str, outcome: Outcome) -> None:
    began = state.began.pop(cell, None)
    state.steps.pop(cell, None)
    if outcome.status == "done":
        state.done.add(cell)
        if began is not None:
            state.seconds[cell] = time.monotonic() - began
    else:
        state.failed[cell] = outcome.reason
        with suppress(OSError):  # the reason is for people, and the driver says it as well
            store.put_failure(cell, outcome.reason)


def look(state: State, store: Store) -> None:
    """Note which cells run and how far they are."""
    running = store.running({cell.id for cell in state.left})
    state.began = {cell: state.began.get(cell, time.monotonic()) for cell in running}
    found: dict[str, Any] = {cell: store.steps_done(cell) for cell in running}
    state.steps = {cell: steps for cell, steps in found.items() if steps is not None}
