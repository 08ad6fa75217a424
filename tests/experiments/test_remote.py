"""A store behind an address: claims that end by themselves, and runs that another machine can go on with."""

import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import Future
from pathlib import Path

import pytest

from ringfence.errors import MissingExtra
from ringfence.experiments.runner import run_experiment
from ringfence.experiments.store import DirectoryStore, open_store
from ringfence.experiments.worker import Outcome
from tests.experiments.test_runner import until
from tests.experiments.trivial import LOGS, experiment

pytest.importorskip("fsspec")

from ringfence.experiments.remote import RemoteStore, upload_order


@pytest.fixture
def store():
    return RemoteStore(f"memory://{uuid.uuid4().hex}", renew=0.05, lease=0.4)


class Clock:
    """Leases end by this clock, which only a test moves: however slow the machine, none ends on its own."""

    now = 1000.0

    def time(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("ringfence.experiments.remote.time", made)
    return made


def test_an_address_opens_a_remote_store_and_a_path_a_directory(tmp_path):
    assert isinstance(open_store("memory://somewhere"), RemoteStore)
    assert open_store(tmp_path).address == str(tmp_path)
    with pytest.raises(MissingExtra, match="nosuch"):
        open_store("nosuch://bucket")


def test_results_and_failures_are_kept_and_the_first_result_stays(store):
    store.put_failure("cell", "a fault")
    assert store.failure("cell") == "a fault"
    store.put_result("cell", {"value": 1})
    store.put_result("cell", {"value": 2})
    assert store.result("cell") == {"value": 1}
    assert store.finished() == {"cell"}
    assert store.failure("cell") is None


def test_a_half_written_result_counts_as_none(store):
    store._write("cells/cell.json", '{"value": ')
    assert store.result("cell") is None


def test_a_claim_keeps_others_out_for_longer_than_a_lease_and_ends_with_its_block(store, clock):
    with store.claim("cell", "one") as ours:
        assert ours
        for _ in range(3):
            clock.now += 0.75 * store.lease
            until(lambda: store._read("locks/cell.json")["until"] == clock.now + store.lease)  # renewed
        with store.claim("cell", "other") as theirs:
            assert not theirs
        assert store.running({"cell"}) == {"cell"}
        assert store.running({"another"}) == set()
    assert store.running({"cell"}) == set()
    with store.claim("cell", "other") as theirs:
        assert theirs


def test_a_claim_that_no_one_renews_ends_by_itself_and_its_driver_need_not_wait(store, clock):
    store._lease("cell", "dead worker's driver")
    with store.claim("cell", "other") as ours:
        assert not ours
    with store.claim("cell", "dead worker's driver") as ours:
        assert ours
    store._lease("cell", "dead worker's driver")
    clock.now += 0.99 * store.lease
    assert store.running({"cell"}) == {"cell"}
    clock.now += 0.02 * store.lease
    assert not store.running({"cell"})
    with store.claim("cell", "other") as ours:
        assert ours


WORKER = """
import sys, time
from pathlib import Path
from ringfence.experiments.remote import RemoteStore, upload_order
with RemoteStore(sys.argv[1], renew=0.05).workspace("cell") as path:
    (path / "checkpoints").mkdir(parents=True)
    for step in range(1, 1000):
        (path / "metrics.jsonl").open("a").write(f"{step}\\n")
        (path / "checkpoints" / f"step-{step:09d}.safetensors").write_text(str(step))
        (path / "checkpoints" / f"step-{step:09d}.json").write_text(str(step))
        if step > 2:
            (path / "checkpoints" / f"step-{step - 2:09d}.json").unlink()
            (path / "checkpoints" / f"step-{step - 2:09d}.safetensors").unlink()
        time.sleep(0.02)
"""


def test_a_run_whose_worker_is_killed_can_be_gone_on_with_elsewhere(tmp_path):
    """The copy holds a whole checkpoint, arrays and manifest, and metrics that are no older than it."""
    store = RemoteStore(f"file://{tmp_path}", renew=0.05)
    worker = subprocess.Popen([sys.executable, "-c", WORKER, store.address])
    try:
        until(lambda: len(list((tmp_path / "runs" / "cell" / "checkpoints").glob("*.json"))) >= 1)
        time.sleep(0.5)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    with store.workspace("cell") as path:
        whole = [
            step
            for file in (path / "checkpoints").glob("*.json")
            if (step := file.read_text()) and (arrays := file.with_suffix(".safetensors")).exists()
            if arrays.read_text() == step
        ]
        assert whole
        assert int((path / "metrics.jsonl").read_text().split()[-1]) >= max(map(int, whole))


def test_in_a_directory_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    """A write that ends half-way leaves the file of before, and what it left beside it is neither listed nor downloaded."""
    store = RemoteStore(f"file://{tmp_path}")
    with store.workspace("cell") as path:
        path.mkdir(exist_ok=True)
        (path / "metrics.jsonl").write_text("1\n")
    copy = tmp_path / "runs" / "cell"
    write = Path.write_bytes

    def half(file, content):
        write(file, content[: len(content) // 2])
        raise OSError("the machine stopped")

    def go_on_and_stop():
        with store.workspace("cell") as path:
            (path / "metrics.jsonl").write_text("1\n2\n")
            monkeypatch.setattr(Path, "write_bytes", half)

    with pytest.raises(OSError, match="stopped"):
        go_on_and_stop()
    monkeypatch.undo()
    assert (copy / "metrics.jsonl").read_text() == "1\n"
    left = ".metrics.0123456789ab.tmp.json"  # as a kill leaves it
    (copy / left).write_text("{")
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / left).write_text("{")
    assert store.finished() == set()
    with store.workspace("cell") as path:
        assert [file.name for file in path.iterdir()] == ["metrics.jsonl"]


def test_old_checkpoints_are_dropped_from_the_copy_too(store):
    with store.workspace("cell") as path:
        (path / "checkpoints").mkdir(parents=True)
        (path / "checkpoints" / "step-000000001.json").write_text("1")
    with store.workspace("cell") as path:
        (path / "checkpoints" / "step-000000001.json").rename(path / "checkpoints" / "step-000000002.json")
        (path / ".lock").write_text("process 1")
    with store.workspace("cell") as path:
        assert [file.name for file in path.rglob("*") if file.is_file()] == ["step-000000002.json"]


def test_a_log_is_copied_once_and_fetched_into_the_cache(store, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("rows")
    address = store.put_log(log, "a fingerprint")
    assert store.fetch_log(address).read_text() == "rows"
    log.write_text("gone")
    assert store.put_log(log, "a fingerprint") == address
    assert store.fetch_log(address).read_text() == "rows"
    log.write_text("rose")  # another log of the same name and size
    assert store.fetch_log(store.put_log(log, "another")).read_text() == "rose"


def test_metrics_are_copied_before_checkpoints_and_manifests_last(tmp_path):
    """So that a copy cut off anywhere holds no checkpoint without its arrays or newer than its metrics."""
    names = ("checkpoints/step-1.json", "checkpoints/step-1.safetensors", "metrics.jsonl", "config.json")
    order = [file.name for file in sorted((tmp_path / name for name in names), key=upload_order)]
    assert order == ["config.json", "metrics.jsonl", "step-1.safetensors", "step-1.json"]


class FailsOnce:
    """A file system of which one request of each kind that is named fails."""

    def __init__(self, files, *kinds):
        self.files, self.failing, self.failed = files, set(kinds), []

    def __getattr__(self, name):
        def request(*args, **options):
            if name in self.failing:
                self.failing.remove(name)
                self.failed.append(name)
                raise ConnectionError("the network was away")
            return getattr(self.files, name)(*args, **options)

        return request


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr("ringfence.experiments.remote.PAUSE", 0.0)


def test_a_lease_is_renewed_though_a_request_fails(store, clock, monkeypatch):
    monkeypatch.setattr("ringfence.experiments.remote.TRIES", 1)
    with store.claim("cell", "one") as ours:
        assert ours
        store.files = FailsOnce(store.files, "pipe_file")
        until(lambda: store.files.failed)
        clock.now += 0.75 * store.lease
        until(lambda: store._read("locks/cell.json")["until"] == clock.now + store.lease)


def test_a_claim_that_another_driver_has_taken_over_is_left_to_it(store, clock):
    store.renew = 1000.0
    with store.claim("cell", "one"):
        clock.now += 2 * store.lease
        store._lease("cell", "other")
    assert store._holder("cell") == "other"


def test_a_request_that_fails_once_is_made_again(store, patient):
    store.files = FailsOnce(store.files, "pipe_file", "cat_file", "ls")
    store.put_result("cell", {"value": 1})
    assert store.result("cell") == {"value": 1}
    assert store.finished() == {"cell"}
    assert sorted(store.files.failed) == ["cat_file", "ls", "pipe_file"]


class Forgetful(DirectoryStore):
    """A store that does not answer the first time it is asked for each thing."""

    look_every = 0.0

    def running(self, cells):
        return self.once("running", lambda: super(Forgetful, self).running(cells))

    def result(self, cell):
        return self.once("result", lambda: super(Forgetful, self).result(cell))

    def put_failure(self, cell, reason):
        return self.once("put_failure", lambda: super(Forgetful, self).put_failure(cell, reason))

    def once(self, name, answer):
        if name not in self.__dict__.setdefault("asked", set()):
            self.asked.add(name)
            raise ConnectionError("the network was away")
        return answer()


class Elsewhere:
    """An engine that says of each cell: first that another process works on it, then that it is refused."""

    slots, shares_files = 1, True

    def __init__(self):
        self.seen = set()

    def submit(self, job):
        future = Future()
        future.set_result(Outcome("refused", "why") if job.cell.id in self.seen else Outcome("elsewhere"))
        self.seen.add(job.cell.id)
        return future


def test_a_driver_goes_on_though_its_store_does_not_answer_once(tmp_path):
    store = Forgetful(tmp_path)
    cells = experiment("plain")
    state = run_experiment(cells, store, Elsewhere(), LOGS, elsewhere_wait=0.01)
    assert store.asked == {"running", "result", "put_failure"}
    assert state.failed == {cells.cells[0].id: "why"}
