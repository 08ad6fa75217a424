"""A simulator of the user's own: by id, class or function, with a cost from info or a function, with Gymnasium or not."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from tests.logs import narrow_log

import ringfence
from ringfence import tasks
from ringfence.behaviour.collect import collect_dataset
from ringfence.cli import main
from ringfence.deploy import Policy
from ringfence.errors import InvalidSetting, SimulatorError, UnknownName
from ringfence.evaluation import evaluate
from ringfence.reports.html.again import command_of

# A tank whose level rises by the action; each step costs the level. No Gymnasium in sight.
TANK = """
    import numpy as np

    class Box:
        def __init__(self, low, high):
            self.low, self.high, self.shape = np.float32(low), np.float32(high), np.shape(low)

    class Tank:
        observation_space, action_space = Box([0.0], [9.0]), Box([-1.0], [1.0])
        reports_cost, ends_after = True, 5

        def reset(self, *, seed=None, options=None):
            self.level, self.steps = 1.0, 0
            return np.array([self.level]), {}

        def step(self, action):
            self.level, self.steps = self.level + float(action[0]), self.steps + 1
            info = {"cost": self.level} if self.reports_cost else {}
            return np.array([self.level]), 1.0, False, self.steps == self.ends_after, info

    class Silent(Tank):
        reports_cost = False

    class Endless(Tank):
        ends_after = None

    class Broken(Tank):
        def step(self, action):
            raise RuntimeError("valve stuck")

    class Leaving(Tank):
        def step(self, action):
            raise SystemExit(0)

    class LeavingAtOnce(Tank):
        def __init__(self):
            raise SystemExit(0)

    class Negative(Tank):
        def step(self, action):
            return np.array([1.0]), 1.0, False, True, {"cost": -1.0}

    class OldInterface(Tank):
        def step(self, action):
            return np.array([1.0]), 1.0, True, {"cost": 0.0}

    class WithoutOptions(Tank):
        def reset(self, seed=None):
            return Tank.reset(self, seed=seed)

    class Giving(Tank):
        entries = {}  # what its steps give instead of a tank's own, by position

        def step(self, action):
            return tuple(self.entries.get(i, entry) for i, entry in enumerate(Tank.step(self, action)))

    class Drowned(Giving):
        entries = {0: np.array([np.nan])}

    class Wordy(Giving):
        entries = {0: "warm"}

    class Wide(Giving):
        entries = {0: np.zeros(3)}

    class Undecided(Giving):
        entries = {2: np.array([False, False])}

    class WithoutInfo(Giving):
        entries = {4: None}

    class Labelled(Tank):
        def reset(self, *, seed=None, options=None):
            return {"level": 1.0}, {}

    class Reusing(Tank):
        def reset(self, *, seed=None, options=None):
            self.buffer = np.float32(Tank.reset(self)[0])
            return self.buffer, {}

        def step(self, action):
            self.buffer[:], *rest = Tank.step(self, action)
            return self.buffer, *rest

    class HalfBounded(Tank):
        action_space = type("Space", (), {"low": np.array([-1.0]), "shape": (1,)})()

    def small_tank():
        return Tank()

    def broken_cost(observation, action, next_observation, info):
        return info["price"]

    def level_cost(observation, action, next_observation, info):
        return 10 * next_observation[0]

    def rise_cost(observation, action, next_observation, info):
        return next_observation[0] - observation[0]
"""
REGISTERED = """
    import gymnasium
    from gymnasium.spaces import Box

    class Pump(gymnasium.Env):
        observation_space, action_space = Box(-9.0, 9.0, (1,)), Box(-1.0, 1.0, (1,))

        def reset(self, *, seed=None, options=None):
            return self.observation_space.low, {}

        def step(self, action):
            return self.observation_space.low, 0.0, False, False, {"cost": 2.0}

    def dry():
        raise ValueError("no water")

    gymnasium.register("Pump-v0", entry_point=Pump, max_episode_steps=7)
    gymnasium.register("Dry-v0", entry_point=dry)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A directory with the user's modules, which is where they call ringfence."""
    (tmp_path / "own_tank.py").write_text(textwrap.dedent(TANK))
    (tmp_path / "own_pump.py").write_text(textwrap.dedent(REGISTERED))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("own_tank", "own_pump"):
        sys.modules.pop(name, None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


def fill(observations):
    return np.ones((len(observations), 1))


@pytest.mark.parametrize("name", ["own_tank:Tank", "own_tank:small_tank"])
def test_a_class_or_a_function_makes_the_environment(name):
    result = evaluate(fill, name, episodes=2, discount=0.5)
    assert result.lengths.tolist() == [5, 5]
    assert result.costs.tolist() == [2 + 3 + 4 + 5 + 6] * 2  # the level after each step
    assert result.discounted_costs[0] == 2 + 3 / 2 + 4 / 4 + 5 / 8 + 6 / 16


def test_a_module_that_registers_an_environment_is_imported_as_gymnasium_does():
    assert tasks.find("own_pump:Pump-v0").horizon == 7
    assert evaluate(fill, "own_pump:Pump-v0", episodes=1).costs.tolist() == [14]


def test_the_cost_can_come_from_a_function():
    with pytest.raises(InvalidSetting, match=r"own_tank:Silent does not report info\[\"cost\"\]; give a cost function"):
        evaluate(fill, "own_tank:Silent", episodes=1)
    by_name = evaluate(fill, "own_tank:Silent", episodes=1, cost="own_tank:level_cost")
    assert by_name.costs.tolist() == [10 * 20]
    in_python = evaluate(fill, "own_tank:Silent", episodes=1, cost=lambda *step: abs(step[1][0]))
    assert in_python.costs.tolist() == [5]


def test_an_environment_that_never_ends_is_cut_off_or_refused(monkeypatch):
    assert evaluate(fill, "own_tank:Endless", episodes=1, horizon=8).lengths.tolist() == [8]
    monkeypatch.setattr("ringfence.evaluation.episodes.LONGEST_EPISODE", 30)
    with pytest.raises(SimulatorError, match="has not ended after 30 steps; cut it off with a horizon"):
        evaluate(fill, "own_tank:Endless", episodes=1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_tank:Broken", r"a step of own_tank:Broken failed \(RuntimeError: valve stuck\)"),
        ("own_tank:Leaving", r"a step of own_tank:Leaving failed \(SystemExit: 0\)"),  # or we would end with status 0
        ("own_tank:LeavingAtOnce", r"own_tank:LeavingAtOnce could not be made \(SystemExit: 0\)"),
        ("own_tank:Negative", "gave the cost -1.0"),
        ("own_tank:Drowned", "own_tank:Drowned gave an observation that is not finite"),
        ("own_tank:Wordy", "own_tank:Wordy gave an observation that is no array of numbers"),
        ("own_tank:Labelled", "own_tank:Labelled gave an observation that is no array of numbers"),
        ("own_tank:Wide", r"own_tank:Wide gave an observation of shape \(3,\), its space has \(1,\)"),
        ("own_tank:Undecided", "a step of own_tank:Undecided failed"),
        ("own_tank:WithoutInfo", "own_tank:WithoutInfo gave None as info"),
        ("own_pump:Dry-v0", r"own_pump:Dry-v0 could not be made \(ValueError: no water\)"),
        ("own_tank:OldInterface", "must return .observation, reward, terminated, truncated, info"),
    ],
)
def test_what_is_wrong_with_the_simulator_is_said(name, said):
    with pytest.raises(SimulatorError, match=said):
        evaluate(fill, name, episodes=1)


def test_a_cost_function_that_fails_is_not_taken_for_the_simulator():
    with pytest.raises(SimulatorError, match=r"the cost function failed \(KeyError: 'price'\)"):
        evaluate(fill, "own_tank:Tank", episodes=1, cost="own_tank:broken_cost")


def test_an_action_space_needs_both_bounds():
    with pytest.raises(InvalidSetting, match=r"own_tank:HalfBounded has the action space .* needs a Box"):
        evaluate(fill, "own_tank:HalfBounded", episodes=1)


def test_a_reset_need_not_take_options():
    assert evaluate(fill, "own_tank:WithoutOptions", episodes=1).lengths.tolist() == [5]


@pytest.mark.parametrize(
    ("name", "said"),
    [("own_tenk:Tank", "no module 'own_tenk'"), ("own_tank:Tonk", "own_tank has nothing called 'Tonk'")],
)
def test_a_name_that_leads_nowhere_says_which_part_does(name, said):
    with pytest.raises(UnknownName, match=said):
        tasks.find(name)


def test_a_module_that_fails_when_it_is_imported_says_why(here):
    (here / "own_mistake.py").write_text("1 / 0")
    with pytest.raises(InvalidSetting, match=r"own_mistake cannot be imported \(ZeroDivisionError"):
        tasks.find("own_mistake:Tank")


TINY = {"hidden": (4,), "batch_size": 8}


def simulated_while_training(task, log, **options):
    """The last line of evaluation of a run of ten steps."""
    method = ringfence.BC(limit=5.0, **TINY)
    return ringfence.train(log, method, steps=10, task=task, episodes=2, progress=False, **options).evaluations[-1]


@pytest.mark.usefixtures("quick_compilation")
def test_training_cuts_an_endless_simulation_off_where_the_log_does(monkeypatch):
    monkeypatch.setattr("ringfence.evaluation.episodes.LONGEST_EPISODE", 30)
    log = narrow_log(200, obs=1, act=1, episode_length=20)
    assert simulated_while_training("own_tank:Endless", log)["length"] == 20
    assert simulated_while_training("own_tank:Endless", log, horizon=7)["length"] == 7
    assert simulated_while_training("own_tank:Tank", log)["length"] == 5  # it ends by itself
    assert simulated_while_training("own_pump:Pump-v0", log)["length"] == 7  # it has a horizon of its own
    ends = log.terminations | log.truncations
    terminating = replace(log, terminations=ends, truncations=np.zeros_like(ends))
    with pytest.raises(SimulatorError, match="has not ended after 30 steps"):  # nothing says where it should end
        simulated_while_training("own_tank:Endless", terminating)


@pytest.mark.usefixtures("quick_compilation")
def test_the_horizon_of_the_command_line_cuts_the_simulation_off_and_is_kept(here, capsys):
    ringfence.save(narrow_log(200, obs=1, act=1, episode_length=20), "log.npz")
    words = [
        "--limit",
        "5",
        "--method",
        "bc",
        "--steps",
        "10",
        "--set",
        "hidden=[4]",
        "batch_size=8",
        "--episodes",
        "2",
    ]
    words += ["--task", "own_tank:Endless", "--horizon", "9", "--holdout", "0", "--out", "run"]
    assert main(["train", "log.npz", *words]) == 0
    assert ringfence.Run.load("run").evaluations[-1]["length"] == 9
    assert main(["train", "--resume", "run", "--steps", "20", "--task", "own_tank:Endless"]) == 0
    run = ringfence.Run.load("run")
    assert [(row["step"], row["length"]) for row in run.evaluations] == [(20, 9)]
    assert "--horizon 9" in command_of(run.configuration)
    assert "over episodes of 9 steps on average" in capsys.readouterr().out


@pytest.mark.usefixtures("quick_compilation")
def test_a_simulation_longer_than_the_log_also_says_what_it_got_in_as_many_steps():
    log = narrow_log(200, obs=1, act=1, episode_length=5)
    row = simulated_while_training("own_pump:Pump-v0", log)
    weights = 0.99 ** np.arange(7)
    assert row["discounted_cost"] == pytest.approx(2 * weights.sum())
    assert row["first_steps"] == 5
    assert row["first_discounted_cost"] == pytest.approx(2 * weights[:5].sum())
    assert row["first_share_over_limit"] == 1.0
    assert "first_steps" not in simulated_while_training("own_tank:Tank", log)


def saved_policy(**metadata):
    tensors = {"actor.0.weight": np.zeros((1, 2)), "actor.0.bias": np.ones(2)}
    return Policy.from_tensors("tanh-gaussian", tensors, [0.0], [1.0], [-1.0], [1.0], metadata)


def test_a_policy_is_judged_by_its_own_limit_and_discount():
    result = evaluate(saved_policy(limit=4.0, discount=0.5), "own_tank:Tank", episodes=1)
    assert (result.limit, result.discount) == (4.0, 0.5)
    asked = evaluate(saved_policy(limit=4.0, discount=0.5), "own_tank:Tank", episodes=1, limit=2.0, discount=0.9)
    assert (asked.limit, asked.discount) == (2.0, 0.9)


def test_a_policy_that_was_stopped_early_is_said_to_be_so(here, capsys):
    saved_policy(limit=4.0, discount=0.5, steps_done=20, steps_planned=5000).save(here / "p.safetensors")
    assert main(["evaluate", "p.safetensors", "--task", "own_tank:Tank", "--episodes", "2"]) == 0
    out, err = capsys.readouterr()
    assert "20 of 5,000 planned steps" in err
    assert "over the limit of 4 (discounted at 0.5)" in out.replace("\n", " ")


def test_neither_gymnasium_nor_mujoco_is_needed(here):
    saved_policy(limit=4.0, discount=0.5).save(here / "p.safetensors")
    code = "import sys; sys.modules.update(gymnasium=None, mujoco=None); from ringfence.cli import main\n"
    code += (
        "sys.exit(main(['evaluate', 'p.safetensors', '--task', 'own_tank:Silent', '--cost', 'own_tank:level_cost']))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "own_tank:Silent, 10 episodes" in ran.stdout


def test_an_environment_may_write_all_its_observations_into_one_array():
    task = tasks.find("own_tank:Reusing")
    log = collect_dataset(task, 5, policies=[lambda observations: np.ones((len(observations), 1))])
    assert log.observations[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert log.next_observations[:, 0].tolist() == [2, 3, 4, 5, 6]

    env = tasks.make(task, "own_tank:rise_cost")
    env.reset(seed=0)
    assert [env.step(np.ones(1))[4]["cost"] for _ in range(2)] == [1, 1]
