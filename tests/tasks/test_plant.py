"""The reactor against its equations, and what its two controllers do with it."""

import math

import gymnasium
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from ringfence import tasks
from ringfence.behaviour import controllers
from ringfence.behaviour.collect import collect_dataset
from ringfence.behaviour.shipped import shipped_policy
from ringfence.evaluation import evaluate
from ringfence.tasks import plant


def test_the_textbook_operating_point_is_a_steady_state():
    """Example 2.5: the jacket at 300 K holds the reactor at 0.5 mol/L and 350 K (to the digits the book prints)."""
    concentration, coolant = plant.resting_coolant(350.0, feed=350.0)
    assert concentration == pytest.approx(0.5, abs=2e-3)
    assert coolant == pytest.approx(300.0, abs=0.1)
    np.testing.assert_allclose(plant.derivatives(concentration, 350.0, coolant, 350.0), 0.0, atol=1e-9)


@pytest.mark.parametrize("temperature", [340.0, 365.0, 420.0])  # the last two run away
def test_an_interval_is_integrated_as_an_independent_solver_does(temperature):
    def equations(_, state):
        c, t = state
        k = 7.2e10 * math.exp(-8750 / t)
        return [100 / 100 * (1 - c) - k * c, 100 / 100 * (350 - t) + 5e4 / 239 * k * c + 5e4 / (100 * 239) * (299 - t)]

    exact = solve_ivp(equations, (0.0, 0.05), [0.5, temperature], method="LSODA", rtol=1e-10, atol=1e-10).y[:, -1]
    np.testing.assert_allclose(plant.advance(0.5, temperature, 299.0, 350.0), exact, rtol=1e-3)


def test_a_step_earns_the_share_converted_and_costs_the_degrees_above_the_limit():
    env = tasks.make("reactor")
    observation, _ = env.reset(seed=1)
    cost, observations = [], []
    for _ in range(120):
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, info = env.step(np.array([3.0], np.float32))
        assert reward == pytest.approx(1 - observation[0], abs=1e-6)
        cost.append(info["cost"])
        observations.append(observation)
    np.testing.assert_allclose(cost, np.maximum(np.array(observations)[:, 1] - 345, 0) / 10, atol=1e-4)
    assert max(cost) > 1  # full heating runs away
    assert (terminated, truncated) == (False, True)


def test_an_episode_depends_on_its_seed_and_on_nothing_before_it():
    env = tasks.make("reactor")
    first = [env.reset(seed=5)[0], *(env.step([0.5])[0] for _ in range(10))]
    again = [env.reset(seed=5)[0], *(env.step([0.5])[0] for _ in range(10))]
    np.testing.assert_array_equal(first, again)


def test_a_hotter_feed_heats_and_a_drifting_sensor_hides_it():
    def last(**options):
        env = tasks.make("reactor", **options)
        env.reset(seed=2)
        return [env.step([0.0]) for _ in range(10)][-1]

    usual, hot, blind = last(), last(hotter_feed=5.0), last(sensor_drift=0.1)
    assert hot[0][4] == pytest.approx(usual[0][4] + 5, abs=1e-3)
    assert hot[0][1] > usual[0][1]
    assert blind[0][1] == pytest.approx(usual[0][1] - 10 * 0.1, abs=1e-3)
    assert (blind[1], blind[4]["cost"]) == (usual[1], usual[4]["cost"])


def test_the_controllers_know_the_plants_interval_and_largest_move():
    assert (controllers.INTERVAL, controllers.LARGEST_MOVE) == (plant.INTERVAL, plant.LARGEST_MOVE)


def test_the_cautious_controller_stays_inside_the_limit_and_the_other_earns_more_outside():
    safe, unsafe = (
        evaluate(shipped_policy("reactor", b), "reactor", episodes=30, deterministic=False) for b in ("safe", "unsafe")
    )
    assert safe.discounted_costs.mean() < 10 < 20 < unsafe.discounted_costs.min()
    assert unsafe.returns.mean() > safe.returns.mean() + 10


def test_its_log_is_collected_like_a_robots():
    log = collect_dataset("reactor", 480, seed=3, workers=1)
    assert log.source_names == ("unsafe", "safe")
    assert (log.episode_ends - log.episode_starts).tolist() == [120] * 4
    assert log.truncations.sum() == 4
    assert not log.terminations.any()
    assert len(plant.OBSERVATIONS) == log.observations.shape[1]


def test_it_passes_gymnasiums_own_check():
    from gymnasium.utils.env_checker import check_env

    with pytest.warns(UserWarning, match="normalized space"):
        check_env(gymnasium.make("ringfence.tasks.plant:Reactor-v1").unwrapped, skip_render_check=True)


def test_the_log_has_the_plants_own_names_and_units(tmp_path):
    from ringfence.data import load_file, save
    from ringfence.tasks.plant import ACTIONS, OBSERVATIONS

    save(collect_dataset("reactor", 240, seed=3, workers=1), tmp_path / "reactor.parquet")
    log = load_file(tmp_path / "reactor.parquet")
    assert log.observation_names == OBSERVATIONS
    assert log.action_names == ACTIONS
    assert log.units["temperature [K]"] == "K"
