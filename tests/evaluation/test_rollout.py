"""Evaluation measures exactly the episodes it was asked for."""

import json
import re
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from rich.console import Console

from ringfence.deploy import Guard, Policy
from ringfence.errors import InvalidSetting, MissingExtra, NonFiniteValue, RingfenceError, WrongShape
from ringfence.evaluation import Evaluation, Evaluator, evaluate, record_video, rollout
from ringfence.evaluation.statistics import bootstrap_interval


class Countdown(gymnasium.Env):
    """Each step earns the action and costs 1; episode s ends after 3 + s % 4 steps, terminated if s is odd."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed=None, options=None):
        self.seed, self.left = seed, 3 + seed % 4
        return np.array([float(seed)]), {}

    def step(self, action):
        self.left -= 1
        ended = self.left == 0
        odd = self.seed % 2 == 1
        observation = np.array([float(self.seed)])
        return observation, float(action[0]), ended and odd, ended and not odd, {"cost": 1.0}


def half(observations):
    return np.full((len(observations), 1), 0.5)


def noisy_policy(observation_dim=1, action_dim=1):
    tensors = {
        "actor.0.weight": np.full((observation_dim, action_dim), 0.01),
        "actor.0.bias": np.zeros(action_dim),
        "log_std": np.full(action_dim, -1.0),
    }
    zeros, ones = np.zeros(observation_dim), np.ones(observation_dim)
    return Policy.from_tensors("clipped-gaussian", tensors, zeros, ones, -np.ones(action_dim), np.ones(action_dim))


def test_episode_i_is_seeded_with_seed_plus_i_and_summed_by_hand():
    result = evaluate(half, Countdown, episodes=5, seed=2, discount=0.5, limit=1.8)
    lengths = [3 + s % 4 for s in (2, 3, 4, 5, 6)]
    assert result.lengths.tolist() == lengths
    assert result.returns.tolist() == [0.5 * n for n in lengths]
    assert result.costs.tolist() == lengths
    assert result.discounted_costs.tolist() == [sum(0.5**t for t in range(n)) for n in lengths]
    assert result.discounted_returns.tolist() == [sum(0.5 * 0.5**t for t in range(n)) for n in lengths]
    assert result.share_over_limit == 4 / 5  # 1 + 1/2 + 1/4 = 1.75 is inside, longer episodes are not


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_result_does_not_depend_on_how_many_run_at_once(deterministic):
    results = [
        evaluate(noisy_policy(11, 3), "hopper-torque", episodes=6, parallel=n, deterministic=deterministic)
        for n in (1, 4, 6, 10)
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result.returns, results[0].returns)
        np.testing.assert_array_equal(result.discounted_costs, results[0].discounted_costs)
    assert len(set(results[0].returns)) == 6


def test_a_sampled_policy_repeats_itself_for_the_same_seed_only():
    first, again = (evaluate(noisy_policy(), Countdown, episodes=3, deterministic=False) for _ in range(2))
    other = evaluate(noisy_policy(), Countdown, episodes=3, deterministic=False, seed=4)
    np.testing.assert_array_equal(first.returns, again.returns)
    assert (first.returns != other.returns).all()


def test_recorded_episodes_hold_the_executed_actions_and_how_they_ended():
    result = evaluate(lambda o: np.full((len(o), 1), 9.0), Countdown, episodes=2, record=True)
    assert [e.actions.tolist() for e in result.episodes] == [[[2.0]] * 3, [[2.0]] * 4]
    assert [(e.terminated, e.truncated) for e in result.episodes] == [(False, True), (True, False)]
    assert [len(e.observations) for e in result.episodes] == [4, 5]


class Counting:
    """A policy with memory: its action is how many steps of the episode it has seen, in tenths."""

    def reset(self):
        self.seen = 0

    def __call__(self, observations):
        assert len(observations) == 1
        self.seen += 1
        return np.full((1, 1), self.seen / 10)


def test_a_policy_with_memory_is_reset_before_each_episode():
    result = evaluate(Counting(), Countdown, episodes=4, seed=2, discount=0.5)
    assert result.returns.tolist() == pytest.approx([n * (n + 1) / 20 for n in (5, 6, 3, 4)])


def test_a_guard_is_evaluated_with_the_cost_of_each_step():
    """At cost 1 and discount 0.5 the budget of 1.6 is spent after three steps: the fallback acts from the fourth on."""
    policy = noisy_policy()
    guard = Guard(Policy(replace(policy.artifact, discount=0.5)), 1.0, limit=1.6)
    result = evaluate(guard, Countdown, episodes=2, seed=2)
    assert (result.limit, result.discount) == (1.6, 0.5)
    by_policy = [3 * float(policy(np.array([seed]))[0]) for seed in (2.0, 3.0)]
    assert result.returns.tolist() == pytest.approx([by_policy[0] + 2, by_policy[1] + 3])
    with pytest.raises(WrongShape, match="trained for another task"):
        evaluate(Guard(noisy_policy(3), 0.0), Countdown, episodes=1, discount=0.5)


def known_range(low, high, bounds=2.0):
    """A policy whose log had this range of its one observation."""
    artifact = replace(
        noisy_policy().artifact,
        observation_low=np.array([low]),
        observation_high=np.array([high]),
        action_low=np.array([-bounds]),
        action_high=np.array([bounds]),
    )
    return Policy(artifact)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (known_range(0.0, 4.0), None),
        (known_range(-4.0, 1.5), None),  # 3 and 4 lie outside, not far
        (known_range(270.0, 290.0), "the median, 270 to 290 in the log"),
        (known_range(0.0, 4.0, bounds=1.0), None),  # a log need not show all of a range
        (known_range(0.0, 4.0, bounds=4.0), r"\[-4, 4\] / \[-2, 2\]"),
    ],
)
def test_a_task_in_other_units_or_with_other_bounds_is_doubted(policy, said):
    evaluator = Evaluator(Countdown)
    found = evaluator(policy, 3, seed=2, discount=0.5, record=True)
    told = evaluator.doubts(policy, found)
    assert len(told) == (0 if said is None else 1)
    assert all(re.search(said, sentence) for sentence in told)
    assert evaluator.doubts(half, found) == []


def test_an_evaluator_keeps_its_environments():
    made = []

    def make():
        made.append(1)
        return Countdown()

    evaluator = Evaluator(make, parallel=3)
    for _ in range(4):
        evaluator(half, 7)
    assert len(made) == 3


def test_task_defaults_give_limit_and_discount():
    result = evaluate(lambda o: np.zeros((len(o), 3)), "hopper-torque", episodes=1)
    assert (result.limit, result.discount) == (30.0, 0.99)
    assert evaluate(half, Countdown, episodes=1).share_over_limit is None


def test_a_policy_of_another_robot_is_refused_before_it_runs():
    with pytest.raises(WrongShape, match="trained for another task"):
        evaluate(noisy_policy(17, 6), "hopper-torque", episodes=1)


def test_a_callable_that_gives_nonsense_is_refused():
    with pytest.raises(WrongShape, match="actions of shape"):
        evaluate(lambda o: np.zeros((len(o), 4)), "hopper-torque", episodes=2)
    with pytest.raises(NonFiniteValue):
        evaluate(lambda o: np.full((len(o), 3), np.nan), "hopper-torque", episodes=2)
    for wrong in ({"episodes": 0}, {"parallel": 0}):
        with pytest.raises(InvalidSetting):
            evaluate(half, Countdown, **wrong)


def test_the_bootstrap_interval_agrees_with_the_normal_approximation():
    values = np.random.default_rng(1).normal(5.0, 2.0, 400)
    low, high = bootstrap_interval(values)
    half_width = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half_width, abs=0.03)
    assert high == pytest.approx(values.mean() + half_width, abs=0.03)


def an_evaluation() -> Evaluation:
    return evaluate(half, Countdown, episodes=5, limit=4.5, discount=0.99)


def test_the_result_can_be_stored_as_json():
    stored = json.loads(json.dumps(an_evaluation().to_dict()))
    assert stored["summary"]["return"]["mean"] == pytest.approx(np.mean([1.5, 2.0, 2.5, 3.0, 1.5]))
    assert stored["per episode"]["length"] == [3, 4, 5, 6, 3]


def test_the_table_and_the_picture_are_written(tmp_path):
    console = Console(record=True, width=100, quiet=False, file=open(tmp_path / "out", "w"))  # noqa: SIM115
    an_evaluation().print(console)
    text = console.export_text()
    assert "over the limit of 4.5 (discounted at 0.99): 40% of episodes" in text
    picture = an_evaluation().plot(tmp_path / "scatter.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


class Filmed(Countdown):
    metadata = {"render_fps": 10}  # noqa: RUF012

    def render(self):
        return np.full((16, 16, 3), 40 * self.left, np.uint8)


def test_a_video_has_a_frame_per_step(tmp_path, monkeypatch):
    imageio = pytest.importorskip("imageio.v3")
    monkeypatch.setattr(rollout.tasks, "make", lambda task, cost, render_mode: Filmed())
    path = record_video(half, "hopper-torque", tmp_path / "film.gif", seed=2)
    assert len(imageio.imread(path)) == 3 + 2


def test_a_video_is_of_the_simulation_that_was_evaluated(tmp_path, monkeypatch):
    """With its cost and its horizon; and what is wrong with them is not blamed on the graphics."""
    asked = []

    def make(task, cost, render_mode):
        asked.append((task.horizon, cost))
        return Filmed()

    monkeypatch.setattr(rollout.tasks, "make", make)
    record_video(half, "hopper-torque", tmp_path / "film.gif", cost="sum", horizon=7)
    assert asked == [(7, "sum")]
    monkeypatch.undo()
    with pytest.raises(RingfenceError, match="no_such_module"):
        record_video(half, "hopper-torque", tmp_path / "film.gif", cost="no_such_module:cost")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the plugins that imageio looks through
def test_a_video_format_without_a_writer_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout.tasks, "make", lambda task, cost, render_mode: Filmed())
    with pytest.raises(MissingExtra, match=r"write a \.gif"):
        record_video(half, "hopper-torque", tmp_path / "film.unknown")


def test_a_machine_that_cannot_render_says_what_to_install(tmp_path, monkeypatch):
    def no_graphics(task, cost, render_mode):
        raise RuntimeError("no such driver")

    monkeypatch.setattr(rollout.tasks, "make", no_graphics)
    with pytest.raises(MissingExtra, match=r"cannot render here \(no such driver\); set MUJOCO_GL"):
        record_video(half, "hopper-torque", tmp_path / "film.gif")
