"""The same runner on a real local Ray with several workers, of which some are killed."""

import os
import signal
import subprocess
import sys

import pytest

import ringfence
from ringfence.experiments.cell import train_cell
from ringfence.experiments.runner import run_experiment
from ringfence.experiments.store import DirectoryStore
from ringfence.experiments.sweepfile import read_sweep
from tests.experiments.test_cells import GRID, Known
from tests.experiments.test_runner import until
from tests.experiments.trivial import LOGS, experiment, lines, work
from tests.logs import narrow_log

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ray():
    """One Ray for all tests here: to start it takes longer than they do."""
    import ray

    os.environ |= {"RAY_worker_niceness": "0"}  # by default Ray's workers yield to everything else on a busy machine
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "store")


def run(store, cells, work=work, logs=LOGS, **options):
    from ringfence.experiments.ray_engine import RayEngine

    engine = RayEngine(work)
    assert not engine.started_here
    try:
        return run_experiment(cells, store, engine, logs, elsewhere_wait=0.2, **options)
    finally:
        engine.close()


def test_cells_run_once_each_on_several_workers(ray, store):
    cells = experiment("plain", seeds=range(6), pause=0.03)
    state = run(store, cells)
    assert state.done == {c.id for c in cells.cells}
    runs = [store.path / "runs" / c.id for c in cells.cells]
    assert all(lines(path / "ended") == ["once"] for path in runs)
    workers = {pid for path in runs for pid in lines(path / "entered")}
    assert len(workers) > 1
    assert str(os.getpid()) not in workers
    assert {store.result(c.id)["threads"] for c in cells.cells} == {1}


def test_a_killed_worker_loses_nothing_and_a_cell_that_kills_every_worker_is_reported(ray, store):
    cells = experiment("killed", times=1).cells + experiment("killed", "plain", seeds=[1], times=2).cells
    once, twice, plain = cells
    state = run(store, type(experiment("plain"))("trivial", cells))
    assert state.done == {once.id, plain.id}
    assert set(state.failed) == {twice.id}
    assert "worker was lost" in state.failed[twice.id]
    assert lines(store.path / "runs" / once.id / "steps") == [str(n) for n in range(10)]


def test_stopping_lets_tasks_end_in_order_and_a_new_start_goes_on(ray, store):
    cells = experiment("plain", seeds=range(5), pause=0.1)
    first = store.path / "runs" / cells.cells[0].id

    def interrupt(state):
        if len(lines(first / "steps")) >= 2 and not state.interrupted:
            raise KeyboardInterrupt

    state = run(store, cells, watch=interrupt)
    assert state.interrupted
    until(lambda: not store.running({c.id for c in cells.cells}))
    assert run(store, cells).done == {c.id for c in cells.cells}
    assert all(lines(store.path / "runs" / c.id / "ended") == ["once"] for c in cells.cells)


def test_a_killed_driver_loses_nothing(ray, store):
    """It had started a Ray of its own, whose workers end with it."""
    cells = experiment("plain", seeds=range(2), pause=0.3)
    code = f"from tests.experiments.trivial import drive; drive({store.address!r}, 'ray', 'plain', seeds=(0, 1), pause=0.3)"
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "RAY_ADDRESS": ""})
    first = store.path / "runs" / cells.cells[0].id
    until(lambda: len(lines(first / "steps")) >= 2, seconds=120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    state = run(store, cells)  # while the old workers still run, their cells are elsewhere
    assert state.done == {c.id for c in cells.cells}
    for c in cells.cells:
        assert store.result(c.id)["square"] == c.seed**2
        steps = lines(store.path / "runs" / c.id / "steps")
        assert set(steps) == {str(n) for n in range(10)}
        assert len(steps) <= 11  # what was saved is not done again: the kill may fall between a step and its checkpoint


def test_a_cell_comes_to_the_same_policy_on_ray_as_in_this_process_through_an_address(ray, tmp_path, monkeypatch):
    from ringfence.experiments.conduct import conduct
    from ringfence.experiments.machine import Machine

    monkeypatch.setattr("ringfence.experiments.conduct.measured_speeds", lambda *_: Known())
    log, results = tmp_path / "log.h5", DirectoryStore(tmp_path / "results")
    ringfence.save(narrow_log(rows=600), log)
    (tmp_path / "grid.toml").write_text(GRID.replace("[0, 1]", "[0]"))
    cells = read_sweep(tmp_path / "grid.toml")
    name = cells.cells[0].id
    here = train_cell(cells.cells[0], tmp_path / "here", log)
    state = conduct(cells, f"file://{tmp_path}/remote", results.path, Machine("ray"), progress=False)
    assert state.done == {name}
    assert results.result(name)["policy"] == here["policy"]
    assert (tmp_path / "remote" / "runs" / name / "policy.safetensors").exists()


STARTED_HERE = """
from pathlib import Path
import sys
from ringfence.errors import InvalidSetting
from ringfence.experiments.ray_engine import RayEngine
from ringfence.experiments.runner import run_experiment
from ringfence.experiments.store import DirectoryStore
from tests.experiments.trivial import LOGS, experiment, work

engine = RayEngine(work, workers=1, cpus=2.0)
state = run_experiment(experiment("plain", seeds=range(2)), DirectoryStore(sys.argv[1]), engine, LOGS)
engine.close()
print(engine.slots, len(state.done))
try:
    RayEngine(work, gpus=1000.0)
except InvalidSetting as error:
    print(error)
"""


def test_a_ray_started_here_has_room_for_its_workers_and_refuses_what_it_never_has(store):
    """In a process of its own: there is one Ray here already."""
    words = [sys.executable, "-c", STARTED_HERE, store.address]
    said = subprocess.run(words, env={**os.environ, "RAY_ADDRESS": ""}, capture_output=True, text=True, timeout=300)
    ran, refused = said.stdout.splitlines()
    assert ran == "1 2"
    assert refused.startswith("a cell asks for 1000 GPUs (--gpus) and Ray has")


def test_places_are_counted_by_what_a_cell_needs():
    from ringfence.experiments.ray_engine import CELLS, count_slots, places, what_is_lacking

    cluster = {"CPU": 64.0, "GPU": 4.0}
    assert count_slots(cluster, {"CPU": 1.0, "GPU": 0.0}) == 64
    assert count_slots(cluster, {"CPU": 4.0, "GPU": 0.0}) == 16
    assert count_slots(cluster, {"CPU": 1.0, "GPU": 0.5}) == 8
    assert count_slots({"CPU": 1.0}, {"CPU": 2.0, "GPU": 0.0}) == 1  # a cluster may grow
    half = places(3, 0.5)  # one and a half processors: Ray has two, and yet room for three cells
    assert half["num_cpus"] == 2
    assert count_slots({"CPU": 2.0, **half["resources"]}, {"CPU": 0.5, "GPU": 0.0, CELLS: 1.0}) == 3
    assert not what_is_lacking(cluster, {"CPU": 64.0, "GPU": 4.0})
    assert "64.5 CPUs (--cpus)" in what_is_lacking(cluster, {"CPU": 64.5, "GPU": 0.0})
    assert "1 GPUs (--gpus)" in what_is_lacking({"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0})


@pytest.mark.parametrize(
    ("address", "said"), [(None, "could not be started on this machine"), ("a:1", "answers at 'a:1'")]
)
def test_a_ray_that_does_not_start_and_a_cluster_that_does_not_answer_are_told_apart(address, said):
    from ringfence.errors import InvalidSetting
    from ringfence.experiments.ray_engine import start

    class Fails:
        def init(self, **_):
            raise ConnectionError("no\nanswer")

    with pytest.raises(InvalidSetting, match=rf"{said} \(no answer\)"):
        start(Fails(), address, {})
