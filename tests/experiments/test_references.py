"""What cells are compared with is of their own log and as many episodes as their test has."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.experiments import references
from ringfence.experiments.grid import Cell, Experiment, Schedule
from ringfence.experiments.machine import Machine
from ringfence.experiments.references import write_references
from ringfence.experiments.runner import State
from ringfence.experiments.store import DirectoryStore
from tests.experiments.test_cells import Known
from tests.experiments.test_grid import a_cell

RESULTS = Path(__file__).parents[2] / "results"
OTHERS = {"another log": {"log_fingerprint": "another"}, "other test episodes": {"schedule": Schedule(test_episodes=7)}}


@pytest.fixture
def made(monkeypatch):
    """For how many episodes behaviours were evaluated."""
    asked = []
    monkeypatch.setattr(references, "evaluate_behaviours", lambda task, episodes: asked.append(episodes) or {})
    monkeypatch.setattr(references, "make", lambda source: None)
    monkeypatch.setattr(references, "log_range", lambda path: {})
    return asked


def keep(cell, results):
    """A result of the cell, without numbers."""
    parts = {"cell": cell.to_dict(), "test": None, "evaluations": [], "metrics": []}
    DirectoryStore(results).put_result(cell.id, parts)


def entry(results):
    return json.loads((results / "references.json").read_text())["hopper-torque"]


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_references_are_made_again_for_another_log_or_number_of_test_episodes(tmp_path, made, change):
    cell, other = a_cell(), a_cell(**change)
    write_references([cell], tmp_path)
    write_references([replace(cell, seed=1, limit=20.0)], tmp_path)
    assert made == [50]
    write_references([other], tmp_path)
    assert made == [50, other.schedule.test_episodes]
    assert entry(tmp_path)["log_fingerprint"] == other.log_fingerprint
    assert entry(tmp_path)["test_episodes"] == other.schedule.test_episodes


def test_an_older_entry_stays_if_the_cells_beside_it_show_what_it_was_made_from(tmp_path, made):
    old = {"hopper-torque": {"behaviours": {}, "log": {"horizon": 5}}}
    (tmp_path / "references.json").write_text(json.dumps(old))
    keep(a_cell(), tmp_path)
    write_references([a_cell(seed=1)], tmp_path)
    assert made == []
    assert entry(tmp_path)["log"] == {"horizon": 5}
    assert entry(tmp_path)["log_fingerprint"] == a_cell().log_fingerprint


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_an_older_entry_is_made_again_if_the_cells_beside_it_differ_or_there_are_none(tmp_path, made, change):
    old = {"hopper-torque": {"behaviours": {}, "log": {}}}
    for results, beside in ((tmp_path / "one", [a_cell(), a_cell(**change)]), (tmp_path / "two", [])):
        results.mkdir()
        (results / "references.json").write_text(json.dumps(old))
        for cell in beside:
            keep(cell, results)
        write_references([a_cell()], results)
    assert made == [50, 50]


@pytest.fixture
def conducted(tmp_path, made, monkeypatch):
    """Conduct an experiment of one cell, which is interrupted before it ends."""
    from ringfence.experiments import conduct as module

    monkeypatch.setattr(module, "measured_speeds", lambda *_: Known())
    monkeypatch.setattr(module, "make_log", lambda source: Path("nowhere"))
    monkeypatch.setattr(module, "run_experiment", lambda cells, *_, **__: State(cells, interrupted=True))
    return lambda: module.conduct(Experiment("mine", (a_cell(),)), tmp_path / "s", tmp_path, Machine(), progress=False)


def test_an_interrupted_experiment_has_its_references(tmp_path, made, conducted):
    assert conducted().interrupted
    assert made == [50]
    assert entry(tmp_path)["test_episodes"] == 50


def test_an_interrupt_while_references_are_made_leaves_nothing_behind_that_stands_in_the_way(
    tmp_path, made, conducted, monkeypatch
):
    def interrupt(task, episodes):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(references, "evaluate_behaviours", interrupt)
        with pytest.raises(KeyboardInterrupt):
            conducted()
    assert not (tmp_path / "references.json").exists()
    conducted()
    assert entry(tmp_path)["test_episodes"] == 50


@pytest.mark.parametrize("figure", ["figure1", "figure2"])
def test_the_references_of_the_repository_are_those_of_its_cells(figure):
    known = json.loads((RESULTS / figure / "references.json").read_text())
    for file in (RESULTS / figure / "cells").glob("*.json"):
        cell = Cell.from_dict(json.loads(file.read_text())["cell"])
        said = {name: known[cell.log.name][name] for name in ("log_fingerprint", "test_episodes")}
        assert said == {"log_fingerprint": cell.log_fingerprint, "test_episodes": cell.schedule.test_episodes}
