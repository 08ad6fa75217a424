"""Real cells on a real log: trained, stopped, resumed, tested, reported."""

import json
import sys
from dataclasses import replace
from functools import partial

import pytest

import ringfence
from ringfence.behaviour.collect import collect_dataset
from ringfence.cli import main
from ringfence.experiments import cell as cell_module
from ringfence.experiments.cell import train_cell
from ringfence.experiments.clock import spent_before
from ringfence.experiments.engines import LocalEngine
from ringfence.experiments.grid import Schedule, Variant
from ringfence.experiments.listing import comparable
from ringfence.experiments.runner import State, run_experiment
from ringfence.experiments.speed import read_measured
from ringfence.experiments.store import DirectoryStore
from ringfence.experiments.sweepfile import read_sweep
from ringfence.experiments.worker import Job, execute
from tests.experiments.test_grid import a_cell
from tests.experiments.trivial import train_cell_killed_once
from tests.logs import narrow_log, still_with_costs

GRID = """
log = "log.h5"
limits = [7.0]
seeds = [0, 1]
steps = 40
log_every = 10
checkpoint_every = 10
evaluate_every = 20
[[methods]]
method = "bc"
settings = { hidden = [8], batch_size = 16 }
"""
TASK = """
task = "hopper-torque"
episodes = 1
test_episodes = 2
"""


@pytest.fixture
def sweep(tmp_path):
    ringfence.save(narrow_log(rows=600, obs=11, act=3, with_source=True), tmp_path / "log.h5")
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path / "grid.toml"


def test_a_cell_leaves_a_small_result_with_evaluations_test_and_last_metrics(sweep, tmp_path):
    sweep.write_text(TASK + GRID)
    cell = read_sweep(sweep).cells[0]
    result = train_cell(cell, tmp_path / "run", sweep.parent / "log.h5")
    assert [row["step"] for row in result["evaluations"]] == [20, 40]
    assert [row["step"] for row in result["metrics"]] == [20, 40]
    assert {len(values) for values in result["test"].values()} == {2}
    assert result["paced"] is result["in_turns"] is None  # its policy has no gains and no second policy
    assert result["fingerprint"] == cell.fingerprint
    assert result["policy"] == ringfence.Policy.load(tmp_path / "run" / "policy.safetensors").checksum
    text = json.dumps(result)
    assert len(text) < 20_000
    assert str(tmp_path) not in text  # a result is committed: it names no place of this machine


def test_a_policy_that_has_gains_and_a_second_policy_is_tested_with_its_costs_too(sweep, tmp_path, monkeypatch):
    """A step costs the mean torque: nothing with the pacer, a half in turns."""
    horizons = []

    def watched(of, policy, horizon):
        horizons.append(horizon)
        return of(policy, horizon=horizon)

    for name in ("Pacer", "Turns"):
        monkeypatch.setattr(cell_module, name, partial(watched, getattr(cell_module, name)))
    sweep.write_text(TASK + GRID)
    cell = read_sweep(sweep).cells[0]
    train_cell(cell, tmp_path / "run", sweep.parent / "log.h5")
    still = still_with_costs(ringfence.Policy.load(tmp_path / "run" / "policy.safetensors"))
    plain, told = (test(cell, still, 9) for test in (cell_module.test_policy, cell_module.test_with_costs))
    assert horizons == [9, 9]
    for kind, cost in (("paced", 0.0), ("in_turns", 4.5)):
        assert plain["length"] == told[kind]["length"] == [9, 9]
        assert told[kind]["episode_cost"] == pytest.approx([cost, cost], rel=1e-4)
        assert told[kind]["episode_cost"] != plain["episode_cost"]


ENDLESS = """
import numpy as np

class Box:
    def __init__(self, low, high):
        self.low, self.high, self.shape = np.float32(low), np.float32(high), np.shape(low)

class Endless:
    observation_space, action_space = Box([0.0], [9.0]), Box([-1.0], [1.0])

    def reset(self, *, seed=None, options=None):
        return np.array([1.0]), {}

    def step(self, action):
        return np.array([1.0]), 1.0, False, False, {"cost": 0.5}
"""


@pytest.fixture
def endless(sweep, tmp_path, monkeypatch):
    """A cell whose simulator is the user's own, and its log."""
    (tmp_path / "endless_of_a_cell.py").write_text(ENDLESS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("ringfence.evaluation.episodes.LONGEST_EPISODE", 40)  # where it would give up
    ringfence.save(narrow_log(rows=200, obs=1, act=1, episode_length=20), tmp_path / "log.h5", overwrite=True)
    sweep.write_text(TASK.replace("hopper-torque", "endless_of_a_cell:Endless") + GRID)
    return read_sweep(sweep).cells[0], tmp_path / "log.h5"


def test_an_endless_simulation_is_tested_over_as_many_steps_as_the_log_has(endless, tmp_path):
    cell, log = endless
    result = train_cell(cell, tmp_path / "run", log)
    assert result["test"]["length"] == [20, 20]


def test_a_cell_with_a_simulator_of_the_user_s_own_goes_on(endless, tmp_path, monkeypatch):
    from ringfence.training.interrupt import Interrupt

    cell, log = endless
    with monkeypatch.context() as patch:
        patch.setattr(Interrupt, "pending", property(lambda self: True, lambda self, value: None), raising=False)
        assert train_cell(cell, tmp_path / "run", log) is None
    assert [row["step"] for row in train_cell(cell, tmp_path / "run", log)["evaluations"]] == [20, 40]


def test_a_cell_that_was_interrupted_goes_on_to_the_same_policy(sweep, tmp_path, monkeypatch):
    from ringfence.training.interrupt import Interrupt

    cell, log = read_sweep(sweep).cells[0], sweep.parent / "log.h5"
    whole = train_cell(cell, tmp_path / "whole", log)
    with monkeypatch.context() as patch:
        patch.setattr(Interrupt, "pending", property(lambda self: True, lambda self, value: None), raising=False)
        assert train_cell(cell, tmp_path / "cut", log) is None
    assert spent_before(tmp_path / "cut") > 0
    (tmp_path / "cut" / "clock.json").write_text('{"seconds": 5000.0}')
    gone_on = train_cell(cell, tmp_path / "cut", log)
    assert gone_on["policy"] == whole["policy"]
    assert gone_on["seconds"] == pytest.approx(5000 + whole["seconds"], abs=100)


@pytest.mark.slow
def test_a_cell_whose_process_is_killed_goes_on_from_its_checkpoint_to_the_same_policy(tmp_path):
    """A real method on a real log in a real process: what the driver starts again ends as if nothing had happened."""
    log = tmp_path / "log.h5"
    ringfence.save(collect_dataset("reactor", 960, seed=3, workers=1), log)
    (tmp_path / "grid.toml").write_text(KILLED)
    cells = read_sweep(tmp_path / "grid.toml")
    (cell,) = cells.cells
    store, engine = DirectoryStore(tmp_path / "store"), LocalEngine(train_cell_killed_once, 1)
    try:
        state = run_experiment(cells, store, engine, {cell.log_fingerprint: str(log)})
    finally:
        engine.close()
    assert (state.done, list(state.retried), state.failed) == ({cell.id}, [cell.id], {})
    assert "SIGKILL" in state.retried[cell.id]
    assert int((store.path / "runs" / f"{cell.id}.killed").read_text().removeprefix("step-")) < 3000
    whole = train_cell(cell, tmp_path / "whole", log)
    disturbed = store.result(cell.id)
    for part in ("policy", "evaluations", "metrics", "test"):
        assert disturbed[part] == json.loads(json.dumps(whole[part])), part


KILLED = """
log = "log.h5"
task = "reactor"
limits = [20.0]
seeds = [0]
steps = 3000
log_every = 100
checkpoint_every = 100
evaluate_every = 1000
episodes = 1
test_episodes = 2
[[methods]]
method = "cpq"
settings = { hidden = [8, 8], batch_size = 16 }
"""


def test_a_log_without_anything_to_learn_from_is_a_refusal_and_not_a_crash(sweep, tmp_path):
    sweep.write_text(GRID.replace('"bc"', '"bc-safe"').replace("[7.0]", "[0.001]"))
    cell = read_sweep(sweep).cells[0]
    outcome = execute(Job(cell, str(sweep.parent / "log.h5"), str(tmp_path / "store"), "me"), train_cell)
    assert outcome.status == "refused"
    assert "nothing safe to clone" in outcome.reason


def test_sweep_runs_a_users_grid_and_reports_it(sweep, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ringfence.experiments.conduct.measured_speeds", lambda *_: Known())
    monkeypatch.setattr(sys, "argv", ["ringfence", "sweep", "grid.toml"])
    store = tmp_path / "store"
    words = ["sweep", str(sweep), "--out", str(store), "--workers", "2"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "2/2 cells done" in err
    table = (store / "grid" / "table.md").read_text()
    assert "| log | 7 | bc | 2 | 40 |" in table
    assert str(store / "grid" / "table.tex") in out
    assert str(store / "grid" / "report.html") in out
    assert len(list((store / "grid" / "cells").glob("*.json"))) == 2
    assert json.loads((store / "grid" / "experiment.json").read_text())["command"] == "ringfence sweep grid.toml"

    (first, *_) = (store / "runs").glob("*/metrics.jsonl")
    before = first.stat().st_mtime_ns
    assert main(words) == 0  # all done: nothing runs
    assert first.stat().st_mtime_ns == before


def test_results_that_are_there_count_as_finished(sweep, tmp_path, monkeypatch):
    """As with results from a checkout: only what is missing runs."""
    monkeypatch.setattr("ringfence.experiments.conduct.measured_speeds", lambda *_: Known())
    cells = read_sweep(sweep).cells
    results = tmp_path / "results"
    made = train_cell(cells[0], tmp_path / "run", sweep.parent / "log.h5")
    DirectoryStore(results).put_result(cells[0].id, made)
    assert main(["sweep", str(sweep), "--out", str(tmp_path / "s"), "--results", str(results), "--workers", "1"]) == 0
    assert [path.name for path in (tmp_path / "s" / "runs").iterdir() if path.is_dir()] == [cells[1].id]
    assert DirectoryStore(results).finished() == {cell.id for cell in cells}


def test_workers_of_this_machine_read_the_log_where_it_is_though_the_store_is_behind_an_address(
    sweep, tmp_path, monkeypatch
):
    pytest.importorskip("fsspec")
    monkeypatch.setenv("RINGFENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("ringfence.experiments.conduct.measured_speeds", lambda *_: Known())
    sweep.write_text(GRID.replace("[0, 1]", "[0]"))
    words = ["--out", f"file://{tmp_path}/remote", "--results", str(tmp_path / "results"), "--workers", "1"]
    assert main(["sweep", str(sweep), *words]) == 0
    assert [file.stem for file in (tmp_path / "remote" / "cells").iterdir()] == [read_sweep(sweep).cells[0].id]
    assert not (tmp_path / "remote" / "logs").exists()


def test_a_narrowed_sweep_does_not_shrink_the_report_and_a_report_is_of_its_own_grid(
    sweep, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("ringfence.experiments.conduct.measured_speeds", lambda *_: Known())
    words = ["sweep", str(sweep), "--out", str(tmp_path / "store"), "--workers", "2"]
    results, both = tmp_path / "store" / "grid", [cell.id for cell in read_sweep(sweep).cells]
    assert main(words) == 0

    def seeds():
        return (results / "table.md").read_text().splitlines()[2].split(" | ")[3]

    sweep.write_text(GRID.replace("[0, 1]", "[1]"))
    assert main(words) == 0
    assert json.loads((results / "experiment.json").read_text())["cells"] == both
    assert seeds() == "2"
    assert main([*words, "--report-only"]) == 0
    assert seeds() == "1"
    sweep.write_text(GRID.replace("[0, 1]", "[5]"))
    assert main([*words, "--report-only"]) == 2
    assert "holds no results yet of the 1 cells of grid" in capsys.readouterr().err


OTHER = {
    "trained for longer": {"schedule": Schedule(steps=7)},
    "another log": {"log_fingerprint": "another"},
    "another default": {"hyperparameters": {"discount": 0.5}},
}


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_only_cells_that_belong_in_one_report_are_kept_from_an_earlier_command(change):
    former = a_cell(seed=1).to_dict()
    assert comparable(former, [a_cell(), a_cell(limit=20.0)])
    assert not comparable(former, [a_cell(**change)])


def test_methods_may_be_evaluated_at_different_steps_and_seeds_of_one_method_may_not():
    former = a_cell(seed=1).to_dict()
    often = replace(a_cell().schedule, evaluate_every=7)
    assert comparable(former, [a_cell(variant=Variant("cpq", "cpq"), schedule=often)])
    assert not comparable(former, [a_cell(schedule=often)])
    assert not comparable(former, [a_cell(variant=Variant("cpq", "cpq"), schedule=replace(often, test_episodes=3))])


def test_methods_that_each_train_for_their_own_number_of_steps_belong_in_one_report():
    bc, cpq = a_cell().to_dict(), a_cell(variant=Variant("cpq", "cpq"), schedule=Schedule(steps=15_000))
    assert comparable(bc, [cpq], own_steps=True)
    assert not comparable(bc, [cpq])  # the same steps were asked of all
    assert not comparable({**bc, "schedule": {**bc["schedule"], "steps": 7}}, [cpq], own_steps=True)
    assert not comparable({**bc, "variant": {**bc["variant"], "settings": {"gone": 1}}}, [cpq], own_steps=True)


def test_a_sweep_of_which_a_cell_has_no_result_names_it_and_is_no_success(sweep, tmp_path, capsys, monkeypatch):
    cells = read_sweep(sweep)
    monkeypatch.setattr("ringfence.experiments.conduct.conduct", lambda *_, **__: State(cells))
    assert main(["sweep", str(sweep), "--out", str(tmp_path / "store")]) == 1
    said = capsys.readouterr().err
    assert all(f"{cell.id} has no result" in said for cell in cells.cells)


class Known:
    def seconds(self, cell):
        return 1.0


def test_a_dry_run_lists_the_cells_and_the_time_and_runs_nothing(sweep, tmp_path, capsys):
    assert main(["sweep", str(sweep), "--out", str(tmp_path / "store"), "--workers", "2", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "2 cells to run" in out
    assert "with 1 at a time" in out
    assert "with 2 at a time" in out
    assert not (tmp_path / "store").exists()


def test_a_dry_run_takes_the_speed_of_finished_cells_from_the_results_too(sweep, tmp_path, capsys, monkeypatch):
    """As with results from a checkout, of which the store has none."""
    first = read_sweep(sweep).cells[0]
    made = {"cell": first.to_dict(), "test": None, "evaluations": [], "metrics": []}
    results = tmp_path / "results"
    DirectoryStore(results).put_result(first.id, {**made, "threads": 1, "seconds": 4321.0})
    monkeypatch.setattr("ringfence.experiments.speed.measure", lambda *_: pytest.fail("there is a measurement"))
    words = ["--out", str(tmp_path / "s"), "--results", str(results), "--workers", "2", "--threads", "1"]
    assert main(["sweep", str(sweep), *words, "--dry-run"]) == 0
    assert "1 h 12 min" in capsys.readouterr().out  # 4321 s


WITHOUT_PROFIT = GRID.replace("log.h5", "log.csv").replace("steps = 40", 'steps = 40\ncolumns = { rewards = "profit" }')
DO_NOT_FIT = {
    "another robot's log": (TASK.replace("hopper", "walker2d") + GRID, "11 observations"),
    "a missing column": (WITHOUT_PROFIT, "profit"),
}


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
@pytest.mark.parametrize(("grid", "named"), DO_NOT_FIT.values(), ids=DO_NOT_FIT)
def test_a_log_that_does_not_fit_is_told_once_before_anything_runs(sweep, tmp_path, capfd, words, grid, named):
    (tmp_path / "log.csv").write_text("observation_0,action_0,reward,cost,episode\n" + "0.1,0.2,1,0,0\n" * 9)
    sweep.write_text(grid)
    assert main(["sweep", str(sweep), "--out", str(tmp_path / "store"), *words]) == 2
    error = capfd.readouterr().err.strip()
    assert named in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "store" / "runs").exists()


def test_a_task_that_cannot_be_made_is_told_in_a_line_by_a_dry_run(sweep, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("RINGFENCE_CACHE", str(tmp_path / "cache"))
    sweep.write_text('task = "math:sqrt"\n' + GRID)  # a function that makes no environment
    assert main(["sweep", str(sweep), "--out", str(tmp_path / "store"), "--dry-run"]) == 2
    error = capfd.readouterr().err
    assert "math:sqrt could not be made" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("content", ["[]", '{"seconds": 5}', '{"seconds": {"policy": "x"}}', "{", "\xff"])
def test_a_damaged_measurement_in_the_cache_counts_as_none(tmp_path, content):
    file = tmp_path / "speed.json"
    file.write_text(content)
    assert read_measured(file) == {}


def test_a_result_of_which_a_number_was_changed_is_refused_and_made_again_without_it(
    sweep, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("ringfence.experiments.conduct.measured_speeds", lambda *_: Known())
    store = tmp_path / "store"
    words = ["sweep", str(sweep), "--out", str(store), "--workers", "1"]
    assert main(words) == 0
    (kept, *_), (stored, *_) = (sorted(place.glob("cells/*.json")) for place in (store / sweep.stem, store))
    whole = kept.read_text()
    assert stored.read_text() == whole
    for file, verb in ((kept, [*words, "--report-only"]), (kept, ["report", str(store)])):
        file.write_text(whole.replace('"seconds": ', '"seconds": 1'))
        assert main(verb) == 2
        assert f"{file} is damaged" in capsys.readouterr().err
    stored.write_text(whole[:-30])
    kept.unlink()
    assert main(words) == 2
    assert f"cells/{stored.name} in {store} is damaged" in capsys.readouterr().err
    assert not kept.exists()
    stored.unlink()
    assert main(words) == 0
    assert json.loads(kept.read_text())["policy"] == json.loads(whole)["policy"]


def test_a_report_of_nothing_says_so(sweep, tmp_path, capsys):
    assert main(["sweep", str(sweep), "--out", str(tmp_path / "store"), "--report-only"]) == 2
    assert "no results" in capsys.readouterr().err


def test_an_unknown_task_or_method_of_a_figure_is_named(capsys):
    assert main(["reproduce", "figure1", "--tasks", "hoper", "--dry-run"]) == 2
    assert "hopper-torque" in capsys.readouterr().err
    assert main(["reproduce", "figure2", "--methods", "magic", "--dry-run"]) == 2
    assert "cpq-paper" in capsys.readouterr().err


def test_behind_an_address_results_are_in_a_directory_of_the_experiments_name(sweep, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", str(sweep), "--out", "memory://somewhere", "--report-only"]) == 2
    assert "error: grid holds no results" in capsys.readouterr().err
