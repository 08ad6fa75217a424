"""Tables and figures of an experiment, from result files alone."""

import csv
import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from ringfence.errors import UnreadableFile
from ringfence.reports.experiment import write_report
from ringfence.reports.figures import (
    COLOURS,
    colour_and_marker,
    curves_figure,
    ends_of_frontier,
    look_of,
    named,
    per_step,
)
from ringfence.reports.results import Described, gather, read_experiment
from ringfence.reports.tables import aggregate_table, comma_separated, latex, markdown, results_table


def result(label, seed, limit=30.0, returns=(1000.0, 1200.0), costs=(28.0, 32.0), log="hopper-torque", tested=True):
    """Two test episodes of 1000 and 500 steps and two evaluations on the way."""
    test = {"return": returns, "discounted_cost": costs, "episode_cost": [300.0, 100.0], "length": [1000, 500]}
    test["discounted_return"] = [value / 10 for value in returns]
    rows = [{"step": 10 * n, "return": 100.0 * n + seed, "discounted_cost": 20.0 + n} for n in (1, 2)]
    cell = {
        "log": {"source": log},
        "variant": {"label": label},
        "limit": limit,
        "seed": seed,
        "schedule": {"steps": 20},
        "hyperparameters": {"discount": 0.99},
    }
    metrics = [{"qc_start": 10.0 + seed, "qr_start": 5.0}]
    return {"cell": cell, "test": test if tested else None, "evaluations": rows if tested else [], "metrics": metrics}


def behaviour(value, cost):
    row = {"return": value, "discounted_cost": cost, "episode_cost": 10 * cost, "step_cost": cost / 100}
    return {"noise-free": row, "sampled": row}


REFERENCE = {
    "behaviours": {"safe": behaviour(1000.0, 20.0), "unsafe": behaviour(3000.0, 40.0)},
    "log": {"least_return": 0.0, "most_return": 4000.0, "horizon": 1000},
}


def folder(path, results, references=True):
    names = [f"cell{n}" for n in range(len(results))]
    (path / "cells").mkdir(parents=True)
    (path / "experiment.json").write_text(json.dumps({"name": "figure1", "cells": [*names, "not yet there"]}))
    for name, content in zip(names, results, strict=True):
        (path / "cells" / f"{name}.json").write_text(json.dumps(content))
    if references:
        logs = {content["cell"]["log"]["source"] for content in results}
        (path / "references.json").write_text(json.dumps(dict.fromkeys(logs, REFERENCE)))
    return path


def column(rows, name):
    return [row[rows[0].index(name)] for row in rows[1:]]


def test_a_row_has_the_last_iterate_over_seeds(tmp_path):
    two = [result("cpq", 0), result("cpq", 1, returns=[2000.0, 2200.0], costs=[26.0, 26.0])]
    rows = results_table(gather(folder(tmp_path, two)))
    assert column(rows, "return") == ["1600 [1100, 2100]"]  # seeds 1100 and 2100: the extremes of a bootstrap of two
    assert column(rows, "discounted return") == ["160.0 [110.0, 210.0]"]  # a tenth, by `result`
    assert column(rows, "discounted cost") == ["28.0 [26.0, 30.0]"]
    assert column(rows, "episodes over limit") == ["25%"]  # one of four
    assert column(rows, "seeds over limit") == ["0 of 2"]  # 30 and 26 against 30
    assert column(rows, "cost per step")[0].startswith("0.267")  # 400 over 1500 steps
    assert column(rows, "normalised return") == ["0.30"]  # (1600 - 1000) / 2000
    assert column(rows, "cost / limit") == ["0.93"]  # 28 / 30
    assert column(rows, "DSRL return") == ["0.40"]  # 1600 / 4000
    assert column(rows, "DSRL cost") == ["0.67"]  # 200 a mean episode, of 300 in 1000 steps


def test_the_aggregate_has_interquartile_means_over_tasks_and_seeds_and_compares_with_bc_safe(tmp_path):
    results = [
        result(label, seed, returns=[value, value], log=log)
        for log in ("hopper-torque", "walker2d-torque")
        for seed in (0, 1)
        for label, value in (("cpq", 2000.0 + 100 * seed), ("bc-safe", 1000.0))
    ]
    rows = aggregate_table(gather(folder(tmp_path, results)))
    assert column(rows, "method") == ["cpq", "bc-safe"]
    assert column(rows, "IQM normalised return")[0].startswith("0.53")  # 0.5, 0.5, 0.55, 0.55: the middle two, rounded
    assert column(rows, "P(return > bc-safe)") == ["1.00 [1.00, 1.00]", "-"]


def test_the_aggregate_of_one_seed_each_has_no_intervals(tmp_path):
    one = [
        result(m, 0, returns=[2000.0, 2000.0], log=log) for log in ("hopper-torque", "mine") for m in ("cpq", "bc-safe")
    ]
    rows = aggregate_table(gather(folder(tmp_path, one)))
    assert column(rows, "IQM normalised return") == ["0.50", "0.50"]
    assert column(rows, "P(return > bc-safe)") == ["0.50", "-"]


def test_a_method_with_seeds_that_is_compared_with_a_single_seed_has_no_interval(tmp_path):
    """The bootstrap of the one seed has no width, and so has the interval wherever all others lie on one side of it."""
    three = [result("cpq", seed, returns=[value, value]) for seed, value in enumerate((900.0, 950.0, 1200.0))]
    for n, (ours, theirs) in enumerate([(three, [result("bc-safe", 0)]), ([result("cpq", 0)], bc_safe(three))]):
        rows = aggregate_table(gather(folder(tmp_path / str(n), [*ours, *theirs])))
        assert column(rows, "P(return > bc-safe)")[0] in ("0.33", "0.67")  # two of three are below 1100
    rows = aggregate_table(gather(folder(tmp_path / "both", [*three, *bc_safe(three)])))
    assert "[" in column(rows, "P(return > bc-safe)")[0]


def bc_safe(results):
    return [{**one, "cell": {**one["cell"], "variant": {"label": "bc-safe"}}} for one in results]


def test_a_limit_of_0_has_no_cost_over_limit_and_does_not_spoil_the_others(tmp_path):
    cells = [result("cpq", 0, limit, costs=(0.5 * limit, 0.5 * limit)) for limit in (0.0, 30.0)]
    gathered = gather(folder(tmp_path / "both", cells))
    assert column(results_table(gathered), "cost / limit") == ["-", "0.50"]
    assert column(aggregate_table(gathered), "IQM cost / limit") == ["0.50"]
    assert column(aggregate_table(gather(folder(tmp_path / "zero", cells[:1]))), "IQM cost / limit") == ["-"]


def test_what_an_earlier_report_had_and_this_one_has_not_is_removed(tmp_path):
    folder(tmp_path, [result("cpq", 0), result("cpq", 1, tested=False)])
    write_report(tmp_path, Described("figure1", ("cell0",), ""))
    made = {f"{name}.{s}" for name, ss in (("figure", "pdf svg png"), ("aggregate", "md csv tex")) for s in ss.split()}
    assert all((tmp_path / name).exists() for name in made)
    (tmp_path / "figure.txt").touch()  # a user's own
    written = write_report(tmp_path, Described("figure1", ("cell0", "cell1"), ""))
    assert {file.name for file in written} == {"table.md", "table.csv", "table.tex"}
    left = {file.name for file in tmp_path.iterdir() if file.is_file()}
    assert left == {"table.md", "table.csv", "table.tex", "figure.txt", "experiment.json", "references.json"}


def test_without_a_simulator_the_table_says_what_the_critics_expect(tmp_path):
    two = [result("cpq", seed, tested=False, limit=10.5) for seed in (0, 1)]
    rows = results_table(gather(folder(tmp_path, two, references=False)))
    assert column(rows, "expected cost (infinite horizon)") == ["10.50 [10.00, 11.00]"]
    assert "expected return (infinite horizon)" in rows[0]
    assert column(rows, "seeds over limit") == ["1 of 2"]
    files = write_report(tmp_path)
    assert {file.suffix for file in files} == {".md", ".csv", ".tex"}


@pytest.mark.parametrize("limits", [(30.0,), (20.0, 30.0)])
def test_figures_are_written_as_vectors_and_pixels_and_come_out_the_same_again(tmp_path, limits):
    results = [result(m, s, limit) for limit in limits for s in (0, 1) for m in ("cpq", "cpq-paper", "my own")]
    folder(tmp_path, results)
    figures = [file for file in write_report(tmp_path) if file.stem == "figure"]
    assert {file.suffix for file in figures} == {".pdf", ".svg", ".png"}
    before = {file: file.read_bytes() for file in figures}
    svg = (tmp_path / "figure.svg").read_text()
    assert all(f">{name}<" in svg for name in ("CPQ as printed", "CPQ (our default)", "my own"))
    write_report(tmp_path)
    assert {file: file.read_bytes() for file in figures} == before


def test_a_curve_is_mean_and_standard_deviation_at_steps_that_all_seeds_have(tmp_path):
    short = result("cpq", 4)
    short["evaluations"] = short["evaluations"][:1]
    (group,) = gather(folder(tmp_path, [result("cpq", 0), short])).groups
    steps, mean, std = group.curve("return")
    assert steps.tolist() == [10]
    assert mean[0] == 102.0  # 100 and 104
    assert std[0] == pytest.approx(8**0.5)  # (2^2 + 2^2) / (2 - 1)


def test_behaviours_and_the_limit_are_named_beside_the_curves_and_cover_none(tmp_path, monkeypatch):
    monkeypatch.setattr("ringfence.reports.figures.save", lambda figure, path: figure)
    figure = curves_figure(gather(folder(tmp_path, [result("cpq", 0)])), tmp_path / "figure")
    of_return, of_cost = (list(axes.texts) for axes in figure.axes)
    methods = ["CPQ (our default)", "safe behaviour", "unsafe behaviour"]
    assert [text.get_text() for text in of_return] == methods
    assert [text.get_text() for text in of_cost] == [*methods, "limit 30"]
    for text in (*of_return, *of_cost):
        assert text.get_position()[0] > 1.0  # in shares of the panel's width
        assert text.get_ha() == "left"


def test_methods_can_be_told_apart_without_their_colours(tmp_path):
    names = ["cpq", "cpq-paper", "bc-safe", "cbpl", "mine", "other"]
    gathered = gather(folder(tmp_path, [result(m, 0) for m in names]))
    assert len({look_of(gathered, name)["marker"] for name in names}) == len(names)
    assert look_of(gathered, "cpq-paper")["linestyle"] != look_of(gathered, "cbpl")["linestyle"]


def test_only_a_method_without_settings_of_the_users_own_is_our_default(tmp_path):
    for n, (settings, name) in enumerate([
        ({}, "CPQ (our default)"), ({"hidden": [128, 128]}, "CPQ (our default)"), ({"anchor": 0.4}, "cpq"),
    ]):  # fmt: skip
        cell = result("cpq", 0)
        cell["cell"]["variant"] = {"label": "cpq", "method": "cpq", "preset": "default", "settings": settings}
        assert named(gather(folder(tmp_path / str(n), [cell])), "cpq") == name
    cell["cell"]["variant"] = {"label": "cpq", "method": "cpq", "preset": "paper", "settings": {}}
    assert named(gather(folder(tmp_path / "paper", [cell])), "cpq") == "cpq"


def test_the_figure_over_limits_names_the_diagonal_the_stars_and_the_bars(tmp_path):
    folder(tmp_path, [result("cpq", seed, limit) for seed in (0, 1) for limit in (20.0, 30.0)])
    write_report(tmp_path)
    svg = (tmp_path / "figure.svg").read_text()
    for text in (
        ">limit<",
        "limit's pace l (1 - γ)",
        "stars: behaviours without noise",
        "bars: standard deviations over seeds",
    ):
        assert text in svg


def test_a_dotted_line_joins_what_both_behaviours_earn_at_the_limits_that_they_keep(tmp_path):
    gathered = gather(folder(tmp_path, [result("cpq", 0)]))
    dotted = {}
    for measure in ("return", "discounted_cost"):
        ends_of_frontier(gathered, "hopper-torque", axes := Figure().subplots(), measure)
        dotted[measure] = [line.get_xydata().tolist() for line in axes.lines if line.get_linestyle() == ":"]
    assert dotted == {"return": [[[20.0, 1000.0], [40.0, 3000.0]]], "discounted_cost": []}


def test_methods_of_ones_own_get_colours_that_are_free(tmp_path):
    gathered = gather(folder(tmp_path, [result(m, 0) for m in ("cpq", "mine", "other")]))
    colours = [colour_and_marker(gathered, label)[0] for label in gathered.labels]
    assert colours[0] == COLOURS["cpq"]
    assert len(set(colours)) == 3


@pytest.mark.parametrize("with_ours", [[], ["cpq", "cpq-paper"], list(COLOURS)])
def test_as_many_variants_of_ones_own_as_there_are_pairs_can_be_told_apart(tmp_path, with_ours):
    own = [f"mine {n}" for n in range(49 - len(with_ours))]
    gathered = gather(folder(tmp_path, [result(m, 0) for m in (*with_ours, *own)]))
    assert len({colour_and_marker(gathered, label) for label in gathered.labels}) == 49
    assert len({colour_and_marker(gathered, label)[0] for label in own[:7]}) == min(7, len(own))


def test_a_dollar_in_a_label_is_a_dollar_in_the_figure(tmp_path):
    folder(tmp_path, [result("pays $x_$", 0, limit) for limit in (20.0, 30.0)])
    write_report(tmp_path)
    assert ">pays $x_$<" in (tmp_path / "figure.svg").read_text()


def test_formats_escape_what_they_must():
    rows = [["a_b", "c"], ["5%", "x|y, z"]]
    assert markdown(rows).splitlines() == ["| a_b | c |", "|---|---|", r"| 5% | x\|y, z |"]
    assert list(csv.reader(comma_separated(rows).splitlines())) == rows
    assert r"a\_b & c \\" in latex(rows)
    assert r"5\% & x|y, z \\" in latex(rows)


def test_latex_names_its_package_and_has_math_minus_signs_where_there_are_signs():
    text = latex([["log", "return"], ["my-log", "-594 [-600, -1]"], ["a", "-"], ["b", "1e-5"]], ["a note"])
    assert text.startswith("% \\usepackage{booktabs}")
    assert "% a note\n" in text
    assert r"my-log & $-$594 [$-$600, $-$1] \\" in text
    assert r"a & - \\" in text
    assert r"b & 1e-5 \\" in text


def test_latex_has_the_main_columns_and_csv_has_all(tmp_path):
    write_report(folder(tmp_path, [result("cpq", 0)]))
    header = next(line for line in (tmp_path / "table.tex").read_text().splitlines() if line.startswith("log &"))
    assert header == r"log & limit & method & seeds & return & discounted cost & over limit \\"
    (first, *_) = csv.reader((tmp_path / "table.csv").open())
    assert first == results_table(gather(tmp_path))[0]
    assert len(first) == 16


def test_results_of_different_code_are_not_mixed_without_a_word(tmp_path):
    folder(tmp_path, [{**result("cpq", seed, tested=False), "code": f"state {seed}"} for seed in (0, 1)])
    with pytest.warns(UserWarning, match="2 different states"):
        write_report(tmp_path)
    for table in ("table.md", "table.tex"):
        assert "made by 2 different states of ringfence's code" in (tmp_path / table).read_text()


def test_tables_say_how_many_cells_have_a_result(tmp_path):
    folder(tmp_path, [result("cpq", seed) for seed in (0, 1)])
    write_report(tmp_path)
    for table in ("table.md", "table.tex", "aggregate.md"):
        assert "2 of 3 cells; the others have no result yet" in (tmp_path / table).read_text()
    write_report(tmp_path, Described("figure1", ("cell1",), ""))  # of a grid of its own: all is there
    assert "cells;" not in (tmp_path / "table.md").read_text()
    assert column(results_table(gather(tmp_path, Described("figure1", ("cell1",), ""))), "seeds") == ["1"]


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(UnreadableFile, match="no results"):
        gather(tmp_path)
    folder(tmp_path, [])
    with pytest.raises(UnreadableFile, match="yet"):
        gather(tmp_path)


def test_a_limit_per_step_is_that_of_the_episodes_whose_costs_stand_beside_it(tmp_path):
    """A log of the user's own has no references. Over 119 steps 10 discounted is 0.143 a step, without a horizon 0.1."""
    cells = [result("cpq", 0, limit=limit, log="mine") for limit in (10.0, 20.0)]
    for cell in cells:
        cell["test"]["length"] = [119, 119]
    gathered = gather(folder(tmp_path, cells, references=False))
    assert per_step(gathered, "mine", np.array([10.0])) == pytest.approx(10 * 0.01 / (1 - 0.99**119))
    (svg,) = [file for file in write_report(tmp_path) if file.suffix == ".svg"]
    assert "(simulated episodes of up to 119 steps)" in svg.read_text()
    assert ">limit's pace over 119 steps<" in svg.read_text()  # 0.143 for a limit of 10, and l (1 - γ) is 0.1
    assert column(results_table(gathered), "steps per episode") == ["119", "119"]


BAD = ('{"name": "x", "cells": [1.5]}', '{"name": "x", "cells": 3}', '{"cells": []}', "[]", "{")


@pytest.mark.parametrize("content", BAD)
def test_a_damaged_description_of_an_experiment_is_refused(tmp_path, content):
    (tmp_path / "experiment.json").write_text(content)
    for read in (gather, read_experiment):
        with pytest.raises(UnreadableFile, match="holds no results of an experiment"):
            read(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "5", '{"hopper-torque": []}', '{"hopper-torque": {"log": {}}}'])
def test_damaged_references_are_named_with_what_to_do(tmp_path, content):
    folder(tmp_path, [result("cpq", 0)])
    (tmp_path / "references.json").write_text(content)
    with pytest.raises(UnreadableFile, match=r"references\.json is damaged; remove it"):
        gather(tmp_path)


@pytest.mark.parametrize("missing", ["cell", "test", "evaluations", "metrics"])
def test_a_result_without_a_seal_in_which_a_part_is_missing_is_named(tmp_path, missing):
    folder(tmp_path, [result("cpq", 0)])
    damaged = {name: part for name, part in result("cpq", 0).items() if name != missing}
    (tmp_path / "cells" / "cell0.json").write_text(json.dumps(damaged))
    with pytest.raises(UnreadableFile, match=r"cell0\.json is damaged; remove it"):
        gather(tmp_path)


@pytest.mark.parametrize("other", [{"log_fingerprint": "another"}, {"test_episodes": 7}])
def test_references_of_another_log_or_other_test_episodes_are_not_compared_with(tmp_path, other):
    cell = result("cpq", 0)
    cell["cell"] |= {"log_fingerprint": "this one", "schedule": {"steps": 20, "test_episodes": 2}}
    folder(tmp_path, [cell])
    for said, normalised in (({}, "0.05"), (other, "-")):  # (1100 - 1000) / 2000
        (tmp_path / "references.json").write_text(json.dumps({"hopper-torque": {**REFERENCE, **said}}))
        assert column(results_table(gather(tmp_path)), "normalised return") == [normalised]
