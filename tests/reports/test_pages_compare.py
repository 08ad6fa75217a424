"""The page of a sweep or of several runs: a table of everything, intervals, limits, and which one `choose` takes."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import ringfence
from ringfence.errors import InvalidSetting
from ringfence.evaluation.statistics import bootstrap_interval
from ringfence.experiments import choosing
from ringfence.experiments.grid import Cell, Experiment, LogSource, Schedule, Variant
from ringfence.experiments.store import DirectoryStore
from ringfence.experiments.sweepfile import read_sweep
from ringfence.reports.html.compare_page import compare_page
from ringfence.reports.html.compare_runs import horizons_of, labels_of, of_run, runs_numbers
from ringfence.reports.html.compare_sweep import sweep_numbers
from ringfence.reports.html.pages import kind_of, write_sweep_page
from ringfence.reports.html.render import write_page
from ringfence.reports.html.run_numbers import run_numbers
from ringfence.reports.html.run_page import _comparison
from tests.logs import narrow_log
from tests.reports.pages import content, objects, read
from tests.reports.test_experiment import folder, result
from tests.reports.test_run_report import SIMULATED, run_with

LIMITS = (20.0, 30.0)
RESULTS = [
    {**result(label, seed, limit, returns=[900.0 + 10 * limit + seed, 1100.0], costs=[0.9 * limit, 0.8 * limit + seed]),
     "id": f"hopper-{label}-limit{limit:g}-seed{seed}", "verdict": "inside", "seconds": 4.0}
    for label in ("cpq", "bc-safe") for limit in LIMITS for seed in (0, 1)
]  # fmt: skip
CHOICE = {
    "limit": 30.0,
    "chosen": "hopper-cpq-limit30-seed1",
    "reason": "hopper-cpq-limit30-seed1: return at least 1150",
    "candidates": [{"name": "hopper-cpq-limit30-seed1", "sentence": "inside the limit"}],
}


@pytest.fixture
def sweep(tmp_path):
    folder(tmp_path / "store" / "grid", RESULTS)
    return tmp_path / "store" / "grid"


def test_every_cell_is_a_row_with_what_it_earned_and_cost(sweep):
    heading, *rows = read(write_sweep_page(sweep)).tables["policies"]
    assert len(rows) == len(RESULTS)
    first = dict(zip(heading, rows[0], strict=True))
    costs, returns = np.array([18.0, 16.0]), np.array([1100.0, 1100.0])
    said = [first[name] for name in ("method", "limit", "seed", "verdict of training")]
    assert said == ["cpq", "20", "0", "inside"]
    assert first["return"] == f"{returns.mean():.4g}"
    assert first["discounted cost"] == f"{costs.mean():.4g}"
    assert first["cost over limit"] == "0.85"  # 17 of 20
    found = sweep_numbers(sweep).candidates[0]
    assert found.cost_interval == bootstrap_interval(costs)
    assert found.over_limit == 0.0


def test_a_seed_is_shown_with_all_its_digits(tmp_path):
    heading, row = read(write_sweep_page(folder(tmp_path, [result("cpq", 20261117)]))).tables["policies"]
    assert row[heading.index("seed")] == "20261117"


def test_the_page_says_over_how_many_steps(sweep):
    page = read(write_sweep_page(sweep)).text
    assert "fresh simulated episodes: return; discounted cost, over episodes of up to 1000 steps" in page
    assert "by simulation, or by the critic's sum over an infinite horizon" in page


def test_a_sweep_without_a_simulator_is_compared_by_sums_without_end(tmp_path):
    found = sweep_numbers(folder(tmp_path, [result("cpq", seed, tested=False) for seed in (0, 1)]))
    assert found.measure == "discounted sums over an infinite horizon"
    assert found.axes == ("discounted cost, over an infinite horizon", "discounted return, over an infinite horizon")


def test_simulated_runs_are_compared_over_the_steps_that_were_simulated():
    """The log's episodes have 50 steps; one simulation is shorter, of the other the first 50 count."""
    shorter, longer = ({**SIMULATED, "length": 30.0}, {**SIMULATED, "first_steps": 50})
    runs = [run_with([row]) for row in (shorter, longer)]
    assert horizons_of(runs, "simulation") == [30, 50]
    assert horizons_of(runs, "the critics, at a steady pace") == [50]


def test_critics_of_runs_are_compared_over_the_logs_horizon():
    """Sums of 20 and 100 over an infinite horizon; 50 steps at 0.99 have 39.5 % of them."""
    run = run_with()
    run.path = Path("mine")  # its judgements and policies would be there
    (candidate,) = of_run("cpq", run, "the critics, at a steady pace")
    share = 1 - 0.99**50
    assert (candidate.cost, candidate.returned) == (pytest.approx(20 * share), pytest.approx(100 * share))


@pytest.mark.parametrize("bounded", [True, False])
def test_a_return_that_the_judge_does_not_bound_has_no_bounds_on_any_page(bounded):
    judged = {
        "returned": {"value": 90.0, "lower": 80.0, "upper": 100.0}, "cost": {"value": 5.0, "lower": 4.0, "upper": 6.0},
        "sentence": "inside", "advice": "", "support": {}, "limit": 9.0, "confidence": 0.95, "verdict": "inside",
        "return_is_bounded": bounded,
    }  # fmt: skip
    run = run_with()
    run.path, run.judgements = Path("mine"), [SimpleNamespace(to_dict=lambda: judged)]
    (candidate,) = of_run("cpq", run, "episodes set aside")
    assert candidate.return_interval == ((80.0, 100.0) if bounded else None)
    assert candidate.cost_interval == (4.0, 6.0)

    (plots, table) = _comparison(run_numbers(run, None))
    row = next(row for row in table.rows if row[1].text.startswith("episodes set aside"))
    assert row[table.headings.index("at least")].text == ("80" if bounded else "no bound")
    assert row[table.headings.index("at most")].text == "6"
    lines = [drawn for drawn in plots.plots[0].model.renderers if type(drawn.glyph).__name__ == "Segment"]
    assert len(lines) == (2 if bounded else 1)  # of the cost alone


def test_seeds_are_drawn_together_with_the_interval_of_their_mean(sweep):
    group = sweep_numbers(sweep).groups[0]
    means = np.array([17.0, 17.5])  # of the two seeds
    assert (group.method, group.limit, len(group.seeds)) == ("cpq", 20.0, 2)
    assert group.cost == pytest.approx(means.mean())
    assert group.cost_interval == pytest.approx(bootstrap_interval(means))


def test_cost_and_return_are_drawn_against_the_limit_where_there_are_several(sweep, tmp_path):
    page = write_sweep_page(sweep)
    assert len(content(page)["figures"]) == 3  # return against cost; cost and return against the limit
    assert {line["location"] for line in objects(content(page), "Span")} == set(LIMITS)
    folder(tmp_path / "one", [r for r in RESULTS if r["cell"]["limit"] == 20.0])
    page = write_sweep_page(tmp_path / "one")
    assert len(content(page)["figures"]) == 1
    assert "All policies of a log have one limit" in read(page).text


def test_the_page_says_which_one_choose_takes_and_why_or_why_not(sweep):
    assert "the cells set no episodes aside" in read(write_sweep_page(sweep)).text
    (sweep / "choice.json").write_text(json.dumps({"cells": [], "choices": [CHOICE]}))
    found = read(write_sweep_page(sweep))
    assert "At a limit of 30 take hopper-cpq-limit30-seed1" in found.text
    assert CHOICE["reason"] in found.text
    heading, *rows = found.tables["policies"]
    chosen = [row[-1] for row in rows if row[heading.index("chosen")] == "chosen"]
    assert chosen == [CHOICE["chosen"]]


def test_a_choice_that_was_made_before_other_cells_ended_says_so(tmp_path):
    results = [{**cell, "cell": {**cell["cell"], "holdout": 0.2}} for cell in RESULTS]
    folder(tmp_path, results)
    names = [cell["id"] for cell in results]
    for cells, said in ((names, False), (names[:-3], True)):
        (tmp_path / "choice.json").write_text(json.dumps({"cells": cells, "choices": [CHOICE]}))
        (choice,) = sweep_numbers(tmp_path).choices
        assert choice.name == CHOICE["chosen"]
        assert ("3 of the 8 cells have ended since and had no part in the choice" in choice.reason) == said


def test_an_estimate_that_diverged_does_not_hide_the_others(tmp_path):
    """The costs are 17, 17.5 and 1e9: the figure shows the first two and says that something is outside."""
    cells = [*RESULTS[:2], {**result("bear-lag", 0, 20.0, costs=[1e9, 1e9]), "id": "diverged"}]
    page = write_sweep_page(folder(tmp_path / "grid", cells))
    (across,) = [r for r in objects(content(page)["figures"][0], "DataRange1d") if "end" in r]
    assert 20.0 < across["end"] < 25.0
    assert "lie outside the figure" in read(page).text
    assert "lie outside the figure" not in read(write_sweep_page(folder(tmp_path / "sane", cells[:2]))).text


def test_cells_without_any_estimate_are_a_table_and_no_figure(tmp_path):
    page = write_sweep_page(folder(tmp_path, [{**result("bc", 0, tested=False), "metrics": []}]))
    assert content(page)["figures"] == []
    assert "No policy has an estimate" in read(page).text


def test_a_sweep_is_found_by_its_results_or_by_its_store(sweep):
    assert kind_of(str(sweep)) == kind_of(str(sweep.parent)) == "sweep"
    with pytest.raises(InvalidSetting, match="directory without"):
        kind_of(str(sweep / "cells"))


# Choosing at the end of a sweep


def cell(limit, seed, holdout=0.5):
    hyperparameters = {"discount": 0.99}
    return Cell(LogSource("log.h5"), "f", Variant("bc", "bc"), hyperparameters, limit, seed, Schedule(), None, holdout)


def test_what_is_set_aside_makes_another_cell_and_nothing_set_aside_the_same_as_before():
    with_none, with_some = cell(20.0, 0, 0.0), cell(20.0, 0, 0.2)
    assert with_none.fingerprint != with_some.fingerprint
    assert Cell.from_dict(with_some.to_dict()) == with_some
    old = {name: value for name, value in with_none.to_dict().items() if name != "holdout"}
    assert Cell.from_dict(old).fingerprint == with_none.fingerprint


def test_the_grid_says_what_is_set_aside(tmp_path):
    (tmp_path / "log.h5").write_bytes(b"a log")
    text = 'log = "log.h5"\nlimits = [20]\nmethods = ["bc"]\n'
    (tmp_path / "grid.toml").write_text(text + "holdout = 0.2\n")
    assert {c.holdout for c in read_sweep(tmp_path / "grid.toml").cells} == {0.2}
    (tmp_path / "grid.toml").write_text(text + "holdout = 1.5\n")
    with pytest.raises(InvalidSetting, match="'holdout' is a share"):
        read_sweep(tmp_path / "grid.toml")


def test_a_choice_is_made_at_each_limit_and_not_again_for_the_same_cells(tmp_path, monkeypatch):
    cells = [cell(limit, seed) for limit in LIMITS for seed in (0, 1)]
    store = DirectoryStore(tmp_path / "store")
    for c in cells:
        store.put_result(c.id, {})
    asked = []

    class Choice:
        def to_dict(self):
            best = str(store.path / "runs" / cells[1].id / "policy.safetensors")
            return {"chosen": best, "reason": f"{best}: good", "candidates": [{"name": best, "sentence": "inside"}]}

    def choose(paths, log, limit):
        asked.append((len(paths), limit))
        return Choice()

    monkeypatch.setattr("ringfence.evaluation.ope.runs.choose_among_runs", choose)
    monkeypatch.setattr("ringfence.api.log_of_run", lambda path: None)
    for _ in range(2):
        choosing.write_choices(Experiment("grid", tuple(cells)), store, tmp_path)
    assert asked == [(4, 20.0), (4, 30.0)]
    first, _ = json.loads((tmp_path / "choice.json").read_text())["choices"]
    assert (first["chosen"], first["reason"]) == (cells[1].id, f"{cells[1].id}: good")


def test_cells_that_set_nothing_aside_are_not_chosen_among(tmp_path):
    store = DirectoryStore(tmp_path / "store")
    store.put_result(cell(20.0, 0, 0.0).id, {})
    choosing.write_choices(Experiment("grid", (cell(20.0, 0, 0.0),)), store, tmp_path)
    assert not (tmp_path / "choice.json").exists()


# Several runs


def test_several_runs_stand_side_by_side_and_choose_is_asked(tmp_path):
    log = narrow_log(rows=1000, with_source=True)
    for name, width in (("narrow", 4), ("wide", 8)):
        method = ringfence.BC(limit=30.0, hidden=(width,), batch_size=16)
        ringfence.train(log, method, steps=5, out=tmp_path / name, holdout=0.4, progress=False)
    found = runs_numbers([tmp_path / "narrow", tmp_path / "wide"], log, None)
    assert found.axes == ("discounted cost over 50 steps", "discounted return over 50 steps")
    # Their networks differ: they are two points of the figure, not two seeds with a mean and an interval.
    assert [(g.method, len(g.seeds)) for g in found.groups] == [("bc (narrow)", 1), ("bc (wide)", 1)]
    assert found.evidence == "episodes set aside"
    assert [c.name for c in found.candidates] == ["narrow/policy.safetensors", "wide/policy.safetensors"]
    judged = json.loads((tmp_path / "wide" / "judgement.json").read_text())[0]
    assert found.candidates[1].cost_interval == (judged["cost"]["lower"], judged["cost"]["upper"])
    (choice,) = found.choices
    assert set(choice.sentences) == {"narrow/policy.safetensors", "wide/policy.safetensors"}
    page = read(write_page(compare_page(found), tmp_path / "page.html"))
    assert "ringfence comparison report" in page.text
    heading, *rows = page.tables["policies"]
    assert [row[heading.index("by episodes set aside")] for row in rows] == [c.judged for c in found.candidates]
    assert found.candidates[1].judged == judged["verdict"]
    assert all(sentence in page.text for sentence in choice.sentences.values())
    assert choice.reason in page.text


def test_runs_that_differ_in_seed_and_limit_alone_are_seeds_of_one_method(tmp_path):
    log = narrow_log(rows=1000, with_source=True)
    for seed in (0, 1):
        method = ringfence.BC(limit=30.0 + seed, hidden=(4,), batch_size=16)
        ringfence.train(log, method, steps=5, seeds=(seed,), out=tmp_path / str(seed), holdout=0.4, progress=False)
    found = runs_numbers([tmp_path / "0", tmp_path / "1"], None, None)
    assert [c.method for c in found.candidates] == ["bc", "bc"]


@pytest.mark.parametrize(
    ("logs", "labels"),
    [
        ([("narrow", "1"), ("narrow", "1")], ["cpq", "cpq"]),
        ([("narrow", "1"), ("narrow", "2")], ["cpq (0)", "cpq (1)"]),  # an earlier state of the log
        ([("narrow", "1"), ("other", "2")], ["cpq", "cpq"]),  # groups are of one log's name anyway
    ],
)
def test_runs_on_different_logs_of_one_name_are_not_seeds_of_one_method(logs, labels):
    configuration = run_with().configuration
    runs = [
        SimpleNamespace(
            configuration=replace(configuration, log=replace(configuration.log, name=name, fingerprint=content)),
            directory=SimpleNamespace(path=Path(str(number))),
        )
        for number, (name, content) in enumerate(logs)
    ]
    assert labels_of(runs) == labels
