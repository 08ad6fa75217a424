"""The runner with real processes: nothing is lost, nothing runs twice, whatever dies."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ringfence.errors import InvalidSetting
from ringfence.experiments.engines import LocalEngine
from ringfence.experiments.runner import run_experiment
from ringfence.experiments.store import DirectoryStore, rows_text
from ringfence.training import RunDirectory
from tests.experiments.trivial import LOGS, cell, experiment, lines, work


def run(store, experiment, workers=2, **options):
    engine = LocalEngine(work, workers)
    try:
        return run_experiment(experiment, store, engine, LOGS, elsewhere_wait=0.2, **options)
    finally:
        engine.close()


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path)


def driver(store, *words, in_background=False, **settings):
    """A driver in a process of its own; in the background of a script a shell starts it with SIGINT ignored."""
    code = f"from tests.experiments.trivial import drive; drive({store.address!r}, 'local', *{words!r}, **{settings!r})"
    before = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if in_background else None
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, preexec_fn=before)


def until(condition, seconds=20.0):
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def test_every_cell_is_run_once_and_leaves_its_result(store):
    state = run(store, experiment("plain", seeds=range(3)))
    assert len(state.done) == 3
    for seed in range(3):
        name = cell("plain", seed).id
        assert store.result(name)["square"] == seed**2
        assert lines(store.path / "runs" / name / "ended") == ["once"]


@pytest.mark.parametrize("letter", ["x", "é", "語"])
def test_a_cell_with_a_long_label_keeps_its_result(store, letter):
    """Of one, two and three bytes: file names end at 255 of them."""
    cells = experiment("plain " + 250 * letter, "refused " + 250 * letter, times=1)
    finished, refused = (c.id for c in cells.cells)
    state = run(store, cells, workers=1)
    assert (state.done, set(state.failed)) == ({finished}, {refused})
    assert store.result(finished)["square"] == 0
    assert store.failure(refused)


def test_a_log_with_a_long_name_is_copied_under_a_shorter_one(store, tmp_path):
    log = tmp_path / f"{'é' * 120}.csv"
    log.write_text("rows")
    copy = store.fetch_log(store.put_log(log, "0123456789abcdef"))
    assert (copy.read_text(), copy.suffix) == ("rows", ".csv")
    assert len(copy.name.encode()) < 100


def test_finished_cells_are_never_touched_again(store):
    cells = experiment("plain", seeds=range(2))
    store.put_result(cells.cells[0].id, {"square": "kept"})
    file = store.path / "cells" / f"{cells.cells[0].id}.json"
    before = file.stat().st_mtime_ns
    run(store, cells)
    assert (store.result(cells.cells[0].id), file.stat().st_mtime_ns) == ({"square": "kept"}, before)
    assert not (store.path / "runs" / cells.cells[0].id).exists()


@pytest.mark.parametrize("fault", ["killed", "raises", "interrupted"])
def test_a_cell_that_dies_goes_on_from_its_checkpoint_and_the_rest_is_not_disturbed(store, fault):
    cells = experiment(fault, "plain")
    state = run(store, cells)
    assert state.done == {c.id for c in cells.cells}
    assert list(state.retried) == [cells.cells[0].id]
    steps = lines(store.path / "runs" / cells.cells[0].id / "steps")
    assert steps == [str(n) for n in range(10)]  # five before, five after: none twice


@pytest.mark.parametrize(
    ("fault", "said"),
    [("killed", "SIGKILL"), ("raises", "a fault of the cell"), ("interrupted", "interrupted from outside")],
)
def test_a_cell_that_dies_twice_is_reported_and_the_rest_goes_on(store, fault, said):
    cells = experiment(fault, "plain", times=2)
    state = run(store, cells)
    assert state.done == {cells.cells[1].id}
    assert said in state.failed[cells.cells[0].id]
    assert said in store.failure(cells.cells[0].id)


def test_a_request_that_makes_no_sense_is_not_tried_again(store):
    cells = experiment("refused", "plain")
    state = run(store, cells)
    refused = cells.cells[0].id
    assert state.failed == {refused: "no episode is inside the limit"}
    assert len(lines(store.path / "runs" / refused / "entered")) == 1
    assert state.done == {cells.cells[1].id}


def test_a_failure_is_forgotten_once_there_is_a_result(store):
    cells = experiment("plain")
    store.put_failure(cells.cells[0].id, "an old fault")
    run(store, cells)
    assert store.failure(cells.cells[0].id) is None


def test_each_process_has_its_share_of_threads(store):
    run(store, experiment("plain"), workers=1)
    (name,) = store.finished()
    assert store.result(name)["threads"] == len(os.sched_getaffinity(0))


def test_two_starts_of_one_experiment_share_the_work(store):
    cells = experiment("plain", seeds=range(4), pause=0.02)
    drivers = [driver(store, "plain", seeds=tuple(range(4)), pause=0.02) for _ in range(2)]
    assert [process.wait() for process in drivers] == [0, 0]
    assert store.finished() == {c.id for c in cells.cells}
    for c in cells.cells:
        assert lines(store.path / "runs" / c.id / "ended") == ["once"]


@pytest.mark.parametrize("in_background", [False, True])
def test_a_killed_driver_takes_its_workers_along_and_a_new_start_finishes_the_work(store, in_background):
    cells = experiment("plain", pause=0.3)  # long enough for a worker on a busy machine to see that its driver is gone
    run_path = store.path / "runs" / cells.cells[0].id
    process = driver(store, "plain", in_background=in_background, pause=0.3)
    until(lambda: len(lines(run_path / "steps")) >= 3)
    assert store.running({c.id for c in cells.cells}) == {cells.cells[0].id}
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    until(lambda: not store.running({c.id for c in cells.cells}))  # the worker saw that its driver was gone
    assert not store.finished()
    state = run(store, cells)
    assert state.done == {cells.cells[0].id}
    assert sorted(set(lines(run_path / "steps")), key=int) == [str(n) for n in range(10)]
    assert lines(run_path / "ended") == ["once"]


def test_ctrl_c_stops_the_workers_in_order_and_a_new_start_goes_on(store):
    cells = experiment("plain", "late", pause=0.1)
    first = store.path / "runs" / cells.cells[0].id
    process = driver(store, "plain", "late", pause=0.1)
    until(lambda: len(lines(first / "steps")) >= 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 0
    process.stderr.close()
    assert not store.running({c.id for c in cells.cells})
    assert not list((store.path / "failures").glob("*"))
    state = run(store, cells)
    assert (state.failed, state.done) == ({}, {c.id for c in cells.cells})
    assert lines(first / "ended") == ["once"]


def test_an_error_in_the_driver_lets_the_workers_save_and_does_not_wait_for_their_end(store):
    cells = experiment("plain", pause=5.0)
    run_path = store.path / "runs" / cells.cells[0].id

    def fails(state):
        if lines(run_path / "steps"):
            raise ValueError("a full disk, say")

    began = time.monotonic()
    with pytest.raises(ValueError, match="full disk"):
        run(store, cells, watch=fails)
    assert time.monotonic() - began < 45  # all ten steps take 50 seconds
    assert not lines(run_path / "ended")
    assert not store.running({c.id for c in cells.cells})


def test_a_second_process_cannot_claim_a_cell_that_is_claimed(store):
    code = (
        "from ringfence.experiments.store import DirectoryStore\n"
        f"with DirectoryStore({store.address!r}).claim('cell', 'other') as ours: print(ours)"
    )
    claim = [sys.executable, "-c", code]
    with store.claim("cell", "one") as ours:
        assert ours
        assert store.running({"cell"}) == {"cell"}
        assert store.running({"another"}) == set()
        assert subprocess.run(claim, capture_output=True, text=True).stdout.strip() == "False"
    assert store.running({"cell"}) == set()
    assert subprocess.run(claim, capture_output=True, text=True).stdout.strip() == "True"


def test_a_look_at_what_runs_opens_no_lock_of_a_finished_cell_and_makes_none(store, monkeypatch):
    """A driver looks once a second, and a lock stays when its cell has ended."""
    for name in ("finished", "left"):
        with store.claim(name, "one"):
            pass
    opened = []

    def opening(file, mode="r"):
        opened.append((os.path.basename(file), mode))
        return open(file, mode)

    monkeypatch.setattr("ringfence.experiments.store.open", opening, raising=False)
    assert store.running({"left", "not begun"}) == set()
    assert opened == [("left.lock", "r+")]  # a shared lock wants the right to read on NFS
    assert sorted(file.stem for file in (store.path / "locks").iterdir()) == ["finished", "left"]


def test_the_first_result_of_a_cell_stays(store):
    store.put_result("cell", {"value": 1})
    store.put_result("cell", {"value": 2})
    assert store.result("cell") == {"value": 1}


def test_a_result_is_json_with_a_line_for_each_row():
    result = {"id": "x", "rows": [{"a": 1}, {"a": 2}], "empty": [], "plain": [1, 2]}
    text = rows_text(result)
    assert json.loads(text) == result
    assert '  {"a": 1},\n  {"a": 2}\n' in text


def test_progress_is_the_last_whole_line_of_the_metrics(tmp_path):
    store, run = DirectoryStore(tmp_path), RunDirectory(tmp_path / "runs" / "cell")
    assert store.steps_done("cell") is None
    run.path.mkdir(parents=True)
    run.append("metrics", [{"overall_step": 10}, {"overall_step": 20}])
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"overall_st')
    assert store.steps_done("cell") == 20


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"threads": 0}])
def test_no_workers_or_threads_are_refused(wrong):
    with pytest.raises(InvalidSetting, match="at least 1"):
        LocalEngine(work, **wrong)
