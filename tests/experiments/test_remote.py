"""A store behind an address: claims that end by themselves, and runs that another machine can go on with."""

import signal
import subprocess
import sys
import time
import uuid

import pytest

from ringfence.errors import MissingExtra
from ringfence.experiments.store import open_store
from tests.experiments.test_runner import until

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
        assert store.running() == {"cell"}
    assert store.running() == set()
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
    assert store.running() == {"cell"}
    clock.now += 0.02 * store.lease
    assert not store.running()
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
