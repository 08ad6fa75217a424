"""An experiment is data: which cells there are, in which order, and what makes two of them the same."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ringfence.algorithms import BC, METHODS
from ringfence.errors import InvalidSetting, UnknownName, UnreadableFile
from ringfence.experiments.grid import Cell, Experiment, LogSource, Schedule, Variant, grid, hyperparameters
from ringfence.experiments.paper import LIMITS, VARIANTS, figure_grid
from ringfence.experiments.sweepfile import read_sweep

GRID = """
log = "log.csv"
limits = [20, 30]
seeds = [0, 1]
steps = 400
[[methods]]
method = "cpq"
preset = "paper"
grid = { tau = [0.01, 0.02] }
[[methods]]
method = "bc-safe"
settings = { hidden = [8, 8] }
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "log.csv").write_text("a log")
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    return path


def a_cell(**changes):
    source = LogSource("hopper-torque", 1000)
    variant = Variant("bc", "bc")
    (cell,) = grid([(source, "hopper-torque")], [variant], [30.0], [0], Schedule())
    return replace(cell, **changes)


def test_a_cell_survives_json_with_its_fingerprint():
    cell = a_cell(hyperparameters=hyperparameters(Variant("bc", "bc", settings={"hidden": (8, 8)})))
    again = Cell.from_dict(json.loads(json.dumps(cell.to_dict())))
    assert again.fingerprint == cell.fingerprint
    assert again.id == cell.id


def test_cells_whose_labels_differ_where_they_are_cut_off_have_names_of_their_own():
    long = 100 * "x"
    first, second = (
        a_cell(variant=Variant(long + end, "bc"), hyperparameters={"discount": 0.99, "tau": end}) for end in "ab"
    )
    assert first.id != second.id
    assert first.id == f"hopper-torque-{60 * 'x'}-limit30-seed0-{first.fingerprint[:8]}"


@pytest.mark.parametrize(
    "change",
    [
        {"limit": 31.0},
        {"seed": 1},
        {"task": None},
        {"schedule": Schedule(steps=49_999)},
        {"schedule": Schedule(test_episodes=1)},
        {"log_fingerprint": "another"},
        {"hyperparameters": hyperparameters(Variant("bc", "bc", settings={"learning_rate": 1e-3}))},
    ],
)
def test_whatever_changes_the_numbers_of_a_cell_changes_its_fingerprint(change):
    assert a_cell(**change).fingerprint != a_cell().fingerprint


def test_how_often_a_cell_is_saved_and_what_it_is_called_does_not_change_its_fingerprint():
    renamed = a_cell(schedule=Schedule(checkpoint_every=7, log_every=7), variant=Variant("other name", "bc"))
    assert renamed.fingerprint == a_cell().fingerprint


def test_a_changed_default_of_a_method_is_another_cell(monkeypatch):
    @dataclass(frozen=True)
    class Changed(BC):
        batch_size: int = 128

    before = a_cell().fingerprint
    monkeypatch.setitem(METHODS, "bc", Changed)
    assert a_cell().fingerprint != before


def test_figure_1_has_every_method_on_every_task_and_one_seed_of_all_first():
    cells = figure_grid("figure1", rows=1000).cells
    assert len(cells) == 7 * 3 * 3
    assert {cell.limit for cell in cells} == {30.0}
    first = cells[: 7 * 3]
    assert {cell.seed for cell in first} == {0}
    assert {(cell.variant.label, cell.task) for cell in first} == {(m, t) for m in VARIANTS for t in LIMITS}
    assert cells[0].schedule == Schedule(steps=50_000, evaluate_every=5_000, episodes=10)


def test_the_paper_scale_is_half_a_million_steps_on_two_million_rows():
    cell = figure_grid("figure1", scale="paper", tasks=["hopper"], methods=["bc"], seeds=[0]).cells[0]
    assert (cell.schedule.steps, cell.log.rows) == (500_000, 2_000_000)


def test_evaluations_on_the_way_and_of_the_last_iterate_have_their_own_number_of_episodes():
    cell = figure_grid("figure2", rows=1000, tasks=["hopper"], episodes=5, test_episodes=20).cells[0]
    assert (cell.schedule.episodes, cell.schedule.test_episodes) == (5, 20)


def test_a_width_is_that_of_every_method():
    narrow = figure_grid("figure1", rows=1000, tasks=["hopper"], seeds=[0], width=32).cells
    assert {tuple(c.hyperparameters["hidden"]) for c in narrow} == {(32, 32)}
    assert not {c.id for c in narrow} & {c.id for c in figure_grid("figure1", rows=1000).cells}


def test_figure_2_shares_its_cells_at_30_with_figure_1():
    first, second = (
        {c.id for c in figure_grid(f, rows=1000, tasks=["walker2d"], methods=["cpq-paper"]).cells}
        for f in ("figure1", "figure2")
    )
    assert first < second


def test_cpq_as_printed_and_our_default_are_different_cells():
    printed, ours = figure_grid("figure1", rows=1000, tasks=["hopper"], methods=["cpq-paper", "cpq"], seeds=[0]).cells
    assert printed.fingerprint != ours.fingerprint


@pytest.mark.parametrize(
    ("narrowed", "named"),
    [
        ({"tasks": ["hoper"]}, "hopper"),
        ({"methods": ["magic"]}, "bc-safe"),
        ({"steps": 0}, "steps"),
        ({"rows": 0}, "rows"),
    ],
)
def test_an_unknown_part_of_a_figure_is_named_with_what_there_is(narrowed, named):
    with pytest.raises(InvalidSetting, match=named):
        figure_grid("figure1", **narrowed)


def test_the_same_cell_twice_is_refused():
    with pytest.raises(InvalidSetting, match="twice"):
        Experiment("twice", (a_cell(), a_cell()))


# A user's own grid


def test_a_file_lists_every_combination(file):
    experiment = read_sweep(file)
    assert experiment.name == "grid"
    assert len(experiment.cells) == 3 * 2 * 2
    labels = [cell.variant.label for cell in experiment.cells[:6:2]]
    assert labels == ["cpq-paper tau=0.01", "cpq-paper tau=0.02", "bc-safe"]
    assert experiment.cells[0].hyperparameters["tau"] == 0.01
    assert experiment.cells[4].hyperparameters["hidden"] == [8, 8]
    assert experiment.cells[0].log.source == str(file.parent / "log.csv")  # relative to the grid's file


def test_without_steps_each_method_makes_as_many_as_train_would(file):
    methods = "\n".join(f'[[methods]]\nmethod = "{name}"\n' for name in ("cpq", "bear-lag", "bc"))
    file.write_text(GRID.replace("steps = 400", "") + methods + "settings = { hidden = [8] }\n")
    steps = {cell.variant.label: cell.schedule.steps for cell in read_sweep(file).cells}
    own = {"cpq-paper tau=0.01": 30_000, "cpq-paper tau=0.02": 15_000, "bc-safe": 50_000}  # 3 / (tau x 0.01)
    assert steps == {**own, "cpq": 50_000, "bear-lag": 60_000, "bc": 50_000}
    file.write_text(GRID)
    assert {cell.schedule.steps for cell in read_sweep(file).cells} == {400}


def test_the_grid_in_the_docs_is_read(file):
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    file.write_text(page.split("```toml\n")[1].split("```")[0])
    (file.parent / "my_logs.parquet").write_text("a log")
    cells = read_sweep(file).cells
    assert len(cells) == 3 * 2 * 3  # variants, limits, seeds
    assert cells[0].log.options == {"columns": {"rewards": "profit"}}


def test_a_grid_may_be_yaml(file):
    pytest.importorskip("yaml")
    path = file.with_suffix(".yaml")
    path.write_text("log: log.csv\nlimits: [30]\nmethods: [bc, {method: cpq, grid: {tau: [0.01]}}]\nseeds: [4]\n")
    assert [(c.variant.label, c.seed) for c in read_sweep(path).cells] == [("bc", 4), ("cpq tau=0.01", 4)]


def test_a_limit_per_episode_is_converted_with_the_methods_discount(file):
    text = 'limit_kind = "episode"\nhorizon = 1000\n' + GRID.replace("[20, 30]", "[300]")
    file.write_text(text)
    # 300 / 1000 per step, discounted over 1000 steps at 0.99: 0.3 (1 - 0.99^1000) / 0.01
    assert read_sweep(file).cells[0].limit == pytest.approx(0.3 * (1 - 0.99**1000) / 0.01)


def test_another_content_of_the_log_makes_other_cells(file):
    before = read_sweep(file).cells[0].id
    (file.parent / "log.csv").write_text("another log")
    assert read_sweep(file).cells[0].id != before


@pytest.mark.parametrize(
    ("old", "new", "error", "named"),
    [
        ("seeds", "seads", InvalidSetting, "seads"),
        ('preset = "paper"', 'presett = "paper"', InvalidSetting, "presett"),
        ("tau = [0.01, 0.02]", "tau = 0.01", InvalidSetting, "grid.tau"),
        ("tau", "tao", UnknownName, "tau"),
        ('"bc-safe"', '"magic"', UnknownName, "bc-safe"),
        ("[20, 30]", "[]", InvalidSetting, "limits"),
        ("[20, 30]", '["low"]', InvalidSetting, "limits"),
        ("[20, 30]", "[-1]", InvalidSetting, "limit"),
        ("[0, 1]", "[0.5]", InvalidSetting, "seeds"),
        ("steps = 400", "steps = 0", InvalidSetting, "steps"),
        ('log = "log.csv"', "", InvalidSetting, "log"),
        ("log.csv", "nowhere.csv", UnreadableFile, "nowhere.csv"),
        ("steps = 400", "steps = ", UnreadableFile, "grid.toml"),
        ("steps = 400", 'task = "hoper"', UnknownName, "hopper"),
        ("steps = 400", "task = 5", InvalidSetting, "task"),
        ("steps = 400", "steps = 3_000_000_000", InvalidSetting, "steps"),
        ("[0, 1]", "[true]", InvalidSetting, "seeds"),
        ("[0, 1]", "[4294967296]", InvalidSetting, "seeds"),
        ("steps = 400", "log_seed = 1.5", InvalidSetting, "log_seed"),
        ("steps = 400", 'log_seed = "x"', InvalidSetting, "log_seed"),
        ("steps = 400", 'horizon = "x"', InvalidSetting, "horizon"),
        ("steps = 400", "horizon = true", InvalidSetting, "horizon"),
        ("steps = 400", 'limit_kind = "step"', InvalidSetting, "horizon"),  # `train` would take the log's
        ("steps = 400", 'name = "../elsewhere"', InvalidSetting, "name"),
        ("steps = 400", 'name = ""', InvalidSetting, "name"),
        ("log.csv", "log\\u0000.csv", InvalidSetting, "log"),
        ("steps = 400", 'columns = { rewads = "profit" }', InvalidSetting, "rewards"),
        ("steps = 400", "columns = { rewards = 5 }", InvalidSetting, "rewards"),
        ("steps = 400", "action_low = [nan, 1]", InvalidSetting, "action_low"),
        ("steps = 400", "csv_decimal = 5", InvalidSetting, "csv_decimal"),
        ("steps = 400", 'csv_decimal = "x"', InvalidSetting, "decimal point"),
        ("settings = { hidden = [8, 8] }", "settings = 5", InvalidSetting, "settings"),
        ("settings = { hidden = [8, 8] }", "settings = { limit = 3 }", InvalidSetting, "limits"),
        ("grid = { tau = [0.01, 0.02] }", "grid = 5", InvalidSetting, "grid"),
        ("[20, 30]", f"[1{'0' * 400}]", InvalidSetting, "'limits' holds a whole number"),
        ("steps = 400", f'limit_kind = "step"\nhorizon = 1{"0" * 400}', InvalidSetting, "'horizon' holds a whole"),
        ("[8, 8]", f"[0x{'f' * 5000}]", InvalidSetting, "'methods' holds a whole number"),
        ("[20, 30]", "[" * 5000, UnreadableFile, "nested too deeply"),
        ("steps = 400", "log_seed = 1", InvalidSetting, "'log_seed' is for built-in logs"),
        ("steps = 400", "rows = 1", InvalidSetting, "'rows' is for built-in logs"),
        ("steps = 400", "horizon = 1000", InvalidSetting, "'horizon' is for limits per step"),
        ('preset = "paper"', 'label = ""', InvalidSetting, "label"),
        ('preset = "paper"', 'label = "  "', InvalidSetting, "label"),
        ('preset = "paper"', 'label = "a\\nb"', InvalidSetting, "label"),
        ('preset = "paper"', "label = 5", InvalidSetting, "label"),
        ('preset = "paper"', "settings = { limits = [25, 60] }", InvalidSetting, "limit 20.0 lies outside"),
        *(
            ('"log.csv"', f'"hopper-torque"\n{key} = {value}', InvalidSetting, f"'{key}' is for a log in a file")
            for key, value in (
                ("columns", '{ rewards = "profit" }'),
                ("action_low", "0"),
                ("action_high", "1"),
                ("csv_delimiter", '";"'),
                ("csv_decimal", '","'),
            )
        ),
    ],
)
def test_a_mistake_in_a_grid_is_named(file, old, new, error, named):
    file.write_text(GRID.replace(old, new))
    with pytest.raises(error, match=named) as raised:
        read_sweep(file)
    assert len(str(raised.value).splitlines()) == 1
