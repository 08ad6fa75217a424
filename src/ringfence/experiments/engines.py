"""Engines run jobs: here, a process for each cell on this machine. `ray_engine` does it on a cluster."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from ringfence.errors import InvalidSetting
from ringfence.experiments.worker import Job, Outcome, Work, name_of, thread_environment
from ringfence.files import cache_directory

GRACE = 120.0  # seconds a worker has to save its state before it is killed


class Engine(Protocol):
    """Starts jobs in the order in which they are submitted, as many at a time as it has room for."""

    slots: int  # how many cells run side by side, for estimates
    shares_files: bool  # whether workers see the driver's files, so that logs need not be copied

    def submit(self, job: Job) -> "Future[Outcome]": ...

    def stop(self) -> None:
        """Start nothing more, let what runs save its state, and wait for it."""

    def close(self) -> None: ...


class LocalEngine:
    """A process for each cell, at most `workers` at a time, each with its share of the machine's threads. A process of
    its own means that a cell that dies takes no other with it."""

    shares_files = True

    def __init__(self, work: Work, workers: int | None = None, threads: int | None = None):
        cores = available_cores()
        self.slots = cores if workers is None else workers
        if self.slots < 1:
            raise InvalidSetting(f"workers must be at least 1, not {workers}")
        if threads is not None and threads < 1:
            raise InvalidSetting(f"threads must be at least 1, not {threads}")
        self.threads = threads or max(1, cores // self.slots)
        self.work = work
        self._pool = ThreadPoolExecutor(self.slots, "cells")
        self._running: set[subprocess.Popen[str]] = set()
        self._lock, self._stopping = threading.Lock(), False

    def submit(self, job: Job) -> "Future[Outcome]":
        return self._pool.submit(self._run, job)

    def _run(self, job: Job) -> Outcome:
        log = worker_log(job)
        with open(log, "a", encoding="utf-8") as errors:
            with self._lock:
                if self._stopping:
                    return Outcome("stopped")
                process = subprocess.Popen(
                    [sys.executable, "-m", "ringfence.experiments.worker", name_of(self.work)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env={**os.environ, **thread_environment(self.threads)},
                    start_new_session=True,  # Ctrl-C is for the driver, which asks its workers to save
                )
                self._running.add(process)
            try:
                answer = converse(process, json.dumps(job.to_dict()))
            finally:
                with self._lock:
                    self._running.discard(process)
        return outcome_of(answer, process.returncode, log)

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            running = list(self._running)
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
        self.close()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def converse(process: "subprocess.Popen[str]", question: str) -> str:
    """Send a line and read until the process ends. Its input stays open meanwhile: see `worker.stop_with_driver`."""
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once
            process.stdin.write(question + "\n")
            process.stdin.flush()
        return process.stdout.read()


def worker_log(job: Job) -> Path:
    """Where a worker's messages go: beside its run, or, if that is behind an address, into the cache."""
    folder = cache_directory() / "workers" if "://" in job.store else Path(job.store) / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{job.cell.id}.log"


def outcome_of(answer: str, status: int, log: Path) -> Outcome:
    """What the worker said; if it said nothing, how it died and the end of what it printed."""
    try:
        return Outcome(**json.loads(answer))
    except (ValueError, TypeError):
        pass
    how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] if log.exists() else []
    return Outcome("failed", f"its process died ({how})" + (f": {said[0][:300]}" if said else ""))


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
