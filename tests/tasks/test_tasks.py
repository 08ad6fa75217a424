"""Environments with a cost and a limit."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from ringfence import tasks
from ringfence.errors import InvalidSetting, UnknownName


@pytest.mark.parametrize("name", tasks.ROBOTS)
def test_a_built_in_task_costs_the_mean_torque_of_the_executed_action(name):
    env = tasks.make(name)
    env.reset(seed=0)
    action = np.linspace(-2.0, 0.5, env.action_space.shape[0])
    executed = [max(-1.0, a) for a in action]
    cost = env.step(action)[4]["cost"]
    assert cost == pytest.approx(sum(abs(a) for a in executed) / len(executed))


def test_the_summed_cost_is_the_mean_times_the_number_of_joints():
    mean, total = tasks.make("walker2d-torque"), tasks.make("walker2d-torque", cost="sum")
    action = np.array([0.1, -0.2, 0.3, -0.4, 0.5, -0.6])
    costs = [(env.reset(seed=0), env.step(action))[1][4]["cost"] for env in (mean, total)]
    assert costs[1] == pytest.approx(6 * costs[0]) == pytest.approx(2.1)


def test_an_action_outside_the_bounds_has_the_reward_of_the_action_that_is_executed():
    results = []
    for size in (1.0, 5.0):
        env = tasks.make("halfcheetah-torque")
        env.reset(seed=3)
        results.append(env.step(np.full(6, size))[1])
    assert results[0] == results[1]


def test_an_episode_is_cut_off_after_a_thousand_steps():
    env = tasks.make("halfcheetah-torque")
    env.reset(seed=0)
    steps = [env.step(np.zeros(6))[2:4] for _ in range(1000)]
    assert not any(terminated or truncated for terminated, truncated in steps[:-1])
    assert steps[-1] == (False, True)


def test_any_gymnasium_environment_works_with_a_cost_function():
    env = tasks.make("Pendulum-v1", cost=lambda observation, action, following, info: abs(following[2]))
    env.reset(seed=0)
    observation, *_, info = env.step(np.array([1.0]))
    assert info["cost"] == pytest.approx(abs(observation[2]))


def test_the_cost_function_sees_the_observation_before_and_after_the_step():
    seen = []
    env = tasks.make("Pendulum-v1", cost=lambda *step: seen.append(step[0:3:2]) or 0.0)
    first, _ = env.reset(seed=0)
    second = env.step(np.array([1.0]))[0]
    third = env.step(np.array([1.0]))[0]
    np.testing.assert_array_equal(seen, [(first, second), (second, third)])


def test_torque_of_other_action_ranges_is_a_share_of_the_full_torque():
    env = tasks.make("Pendulum-v1", cost="mean")  # its actions reach from -2 to 2
    env.reset(seed=0)
    assert env.step(np.array([-1.0]))[4]["cost"] == pytest.approx(0.5)


def test_an_environment_without_a_cost_says_what_to_do_at_the_first_step():
    env = tasks.make("Pendulum-v1")
    env.reset(seed=0)
    with pytest.raises(InvalidSetting, match=r"Pendulum-v1 does not report info\[\"cost\"\]; give a cost function"):
        env.step(np.array([0.0]))


def test_an_environment_that_reports_its_cost_keeps_it():
    class Costly(gymnasium.Wrapper):
        def step(self, action):
            *rest, info = self.env.step(action)
            return *rest, info | {"cost": 7.0}

    gymnasium.register("Costly-v0", lambda: Costly(gymnasium.make("Pendulum-v1")), max_episode_steps=20)
    env = tasks.make("Costly-v0")
    env.reset(seed=0)
    assert env.step(np.array([0.0]))[4]["cost"] == 7.0
    assert tasks.find("Costly-v0").horizon == 20
    assert tasks.find("Costly-v0").limit is None


@pytest.mark.parametrize("name", ["hopper", "Hopper-v99", "no/such/thing"])
def test_an_unknown_name_lists_the_tasks_there_are(name):
    with pytest.raises(UnknownName, match="hopper-torque, halfcheetah-torque, walker2d-torque"):
        tasks.make(name)


def test_discrete_actions_are_refused():
    with pytest.raises(InvalidSetting, match="Box"):
        tasks.make("CartPole-v1")


def test_a_cost_of_another_name_is_refused():
    with pytest.raises(InvalidSetting, match="'mean', 'sum', a function or MODULE:FUNCTION"):
        tasks.make("hopper-torque", cost="max")


def test_making_a_robot_leaves_no_warning_and_no_log_file(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    tasks.make("halfcheetah-torque")
    assert not list(Path(tmp_path).iterdir())
    assert capfd.readouterr().err == ""
