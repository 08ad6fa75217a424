"""What an experiment says while it runs, and how long it thinks it takes."""

import io
import time

import numpy as np
import pytest
from gymnasium.spaces import Box
from rich.console import Console
from rich.live import Live

from ringfence.experiments.conduct import makespan
from ringfence.experiments.display import Display, duration, time_left
from ringfence.experiments.grid import Cell
from ringfence.experiments.runner import State
from ringfence.experiments.speed import EPISODES, START, Speeds, kind, measured_speeds, settings, time_episode
from tests.experiments.test_grid import a_cell
from tests.experiments.trivial import experiment


def test_the_time_left_is_corrected_by_what_finished_cells_took():
    cells = experiment("plain", seeds=range(4))
    names = [cell.id for cell in cells.cells]
    state = State(cells, done=set(names[:2]), seconds={names[0]: 20.0, names[1]: 20.0})
    # estimated at 10 s each but took 20: the two left take 40 together, on two slots 20
    assert time_left(state, lambda cell: 10.0, 2) == pytest.approx(20.0)
    state.began[names[2]] = time.monotonic() - 15.0
    assert time_left(state, lambda cell: 10.0, 2) == pytest.approx(12.5, abs=0.1)


def test_the_makespan_gives_each_free_slot_the_next_cell():
    assert makespan([4.0, 1.0, 1.0, 1.0], 2) == 4.0
    assert makespan([1.0, 1.0, 1.0, 4.0], 2) == 5.0
    assert makespan([1.0, 2.0], 1) == 3.0


@pytest.mark.parametrize(
    ("seconds", "said"), [(40, "40 s"), (89, "89 s"), (720, "12 min"), (3570, "1 h 00 min"), (7500, "2 h 05 min")]
)
def test_durations_are_for_people(seconds, said):
    assert duration(seconds) == said


def test_lines_without_a_terminal_name_what_failed_once(capsys):
    cells = experiment("plain", "other")
    state = State(cells, failed={cells.cells[0].id: "a fault"}, done={cells.cells[1].id})
    with Display("trivial", lambda cell: 1.0, 1) as display:
        display(state)
        display(state)
    err = capsys.readouterr().err
    assert err.count("failed: a fault") == 1
    assert err.count("1/2 cells done, 1 failed, all have ended") == 1


def test_the_last_line_is_said_once(capsys):
    cells = experiment("plain", "other")
    state = State(cells, done={cell.id for cell in cells.cells})
    with Display("trivial", lambda cell: 1.0, 1) as display:
        display(state)
        display(state)
    assert capsys.readouterr().err == "trivial: 2/2 cells done, all done\n"


def test_the_time_left_grows_with_a_cell_that_takes_longer_than_was_thought():
    cells = experiment("plain", seeds=range(2))
    running, left = cells.cells[0], {}
    for minutes in (20, 40):
        state = State(cells, began={running.id: time.monotonic() - 60.0 * minutes})
        left[minutes] = time_left(state, lambda cell: 600.0, 1)
    # estimated at 10 minutes but took 20 or 40 so far: a tenth of that and the other one as long
    assert left[20] == pytest.approx(60 * (2 + 20), abs=1)
    assert left[40] == pytest.approx(60 * (4 + 40), abs=1)


def test_on_a_terminal_a_table_shows_what_runs_and_how_far_it_is():
    cells = experiment("plain", "other")
    name = cells.cells[0].id
    state = State(cells, began={name: time.monotonic() - 30.0}, steps={name: 12_000})
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(Display("trivial", lambda cell: 200.0, 1).render(state))
    shown = console.export_text()
    assert "0/2 cells done, 1 running" in shown
    assert [name, "12,000", "30", "s", "3", "min"] in [line.split() for line in shown.splitlines()]


def test_on_a_terminal_a_reason_with_brackets_is_said_as_it_is():
    cells = experiment("plain")
    display = Display("trivial", lambda cell: 1.0, 1)
    display.console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    display.live = Live(console=display.console, auto_refresh=False)
    display(State(cells, failed={cells.cells[0].id: "no file [/logs/a.h5]"}))
    assert "failed: no file [/logs/a.h5]" in display.console.file.getvalue()


def test_a_cell_takes_as_long_as_finished_ones_of_its_kind():
    cell, other = a_cell(), a_cell(seed=7)
    assert kind(cell) == kind(other)
    results = [{"cell": Cell.to_dict(other), "threads": 1, "seconds": s} for s in (50.0, 60.0, 1000.0)]
    results.append({"cell": Cell.to_dict(other), "threads": 2, "seconds": 5.0})  # with other threads: says nothing
    assert measured_speeds([cell], results, 1).seconds(cell) == 60.0


def test_an_estimate_adds_stages_evaluations_and_test():
    cell = a_cell()
    speeds = Speeds({settings(cell): {"policy": 0.01}}, {"hopper-torque": 0.2}, {})
    # 50,000 steps, ten evaluations of ten episodes, fifty of the test
    assert speeds.seconds(cell) == pytest.approx(START + 500.0 + 0.2 * (100 + 50))


def test_a_task_without_an_end_and_without_bounds_of_its_actions_is_timed(monkeypatch):
    class Endless:
        observation_space, action_space = Box(-1.0, 1.0, (1,)), Box(-np.inf, np.inf, (1,))
        steps = 0

        def reset(self, *, seed=None):
            return np.zeros(1), {}

        def step(self, action):
            Endless.steps += 1
            return np.zeros(1), 0.0, False, False, {"cost": 0.0}

    monkeypatch.setattr("ringfence.evaluation.episodes.LONGEST_EPISODE", 20)
    monkeypatch.setattr("ringfence.experiments.speed.LONGEST", 10)
    assert time_episode(Endless) > 0
    assert Endless.steps == (1 + EPISODES) * 10
