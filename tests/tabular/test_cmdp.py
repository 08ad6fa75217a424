import numpy as np
import pytest

from ringfence.errors import InvalidSetting
from ringfence.tabular.cmdp import (
    Cmdp,
    action_values,
    deterministic_policy,
    even_mixture,
    expected_cost,
    expected_return,
    log_states,
    mixture_policy,
    occupancy,
    pair_transition,
    state_values,
    stirred,
    uniform_policy,
)
from ringfence.tabular.examples import corridor, hand_made, hazard_grid, random_policy, stitching


def test_action_values_are_the_limit_of_looped_bellman_backups(random_cmdp):
    rng, cmdp = random_cmdp
    policy = random_policy(rng, cmdp)
    q = np.zeros_like(cmdp.reward)
    for _ in range(400):
        backed_up = np.empty_like(q)
        for s, a in np.ndindex(q.shape):
            expected = sum(cmdp.transition[s, a, t] * policy[t, b] * q[t, b] for t, b in np.ndindex(q.shape))
            backed_up[s, a] = cmdp.reward[s, a] + cmdp.discount * expected
        if np.abs(backed_up - q).max() < 1e-13:
            break
        q = backed_up
    np.testing.assert_allclose(action_values(cmdp, policy, cmdp.reward), q, rtol=1e-9)


def test_action_values_solve_the_system_over_pairs(random_cmdp):
    rng, cmdp = random_cmdp
    policy = random_policy(rng, cmdp)
    matrix = np.eye(cmdp.cost.size) - cmdp.discount * pair_transition(cmdp, policy)
    np.testing.assert_allclose(
        action_values(cmdp, policy, cmdp.cost).ravel(), np.linalg.solve(matrix, cmdp.cost.ravel())
    )


def test_state_values_average_action_values_over_the_policy(random_cmdp):
    rng, cmdp = random_cmdp
    policy = random_policy(rng, cmdp)
    averaged = (policy * action_values(cmdp, policy, cmdp.reward)).sum(1)
    np.testing.assert_allclose(state_values(cmdp, policy, cmdp.reward), averaged)


def test_return_and_cost_are_what_the_occupancy_collects(random_cmdp):
    rng, cmdp = random_cmdp
    policy = random_policy(rng, cmdp)
    visits = occupancy(cmdp, policy) / (1 - cmdp.discount)
    assert expected_return(cmdp, policy) == pytest.approx(visits @ (policy * cmdp.reward).sum(1))
    assert expected_cost(cmdp, policy) == pytest.approx(visits @ (policy * cmdp.cost).sum(1))


def test_occupancy_counts_discounted_visits_step_by_step(random_cmdp):
    rng, cmdp = random_cmdp
    policy = random_policy(rng, cmdp)
    now, counted = cmdp.start, np.zeros(cmdp.n_states)
    for step in range(600):
        counted += (1 - cmdp.discount) * cmdp.discount**step * now
        now = np.array(
            [
                sum(now[s] * policy[s, a] * cmdp.transition[s, a, t] for s, a in np.ndindex(cmdp.reward.shape))
                for t in range(cmdp.n_states)
            ]
        )
        if cmdp.discount**step < 1e-14:
            break
    np.testing.assert_allclose(occupancy(cmdp, policy), counted, atol=1e-12)


def test_a_mixture_visits_what_its_parts_visit(random_cmdp):
    rng, cmdp = random_cmdp
    parts = [random_policy(rng, cmdp), random_policy(rng, cmdp)]
    mixed = mixture_policy(cmdp, parts, [0.3, 0.7])
    expected = 0.3 * occupancy(cmdp, parts[0]) + 0.7 * occupancy(cmdp, parts[1])
    np.testing.assert_allclose(occupancy(cmdp, mixed), expected, atol=1e-12)
    shared_return = 0.3 * expected_return(cmdp, parts[0]) + 0.7 * expected_return(cmdp, parts[1])
    assert expected_return(cmdp, mixed) == pytest.approx(shared_return)


def test_a_mixture_is_uniform_where_no_part_goes():
    example = corridor(length=2)
    stay = deterministic_policy([2, 2, 2], 3)  # turning back in the first cell never leaves it
    mixed = mixture_policy(example.cmdp, [stay], [1.0])
    np.testing.assert_allclose(mixed[1:], 1 / 3)


def test_an_even_mixture_holds_as_many_transitions_of_each_policy():
    example = corridor()  # running reaches the end sooner than creeping, so its episodes are shorter
    mixed = even_mixture(example.cmdp, [example.safe, example.unsafe])
    expected = (log_states(example.cmdp, example.safe) + log_states(example.cmdp, example.unsafe)) / 2
    np.testing.assert_allclose(log_states(example.cmdp, mixed), expected, atol=1e-12)


def test_log_states_leave_out_the_end_of_the_episode():
    example = corridor()
    states = log_states(example.cmdp, example.unsafe)
    assert example.cmdp.terminal.tolist() == [False] * 6 + [True]
    # Running visits the cells one after another, each one discount rarer.
    expected = 0.9 ** np.arange(6) / (0.9 ** np.arange(6)).sum()
    np.testing.assert_allclose(states, [*expected, 0.0])


def test_the_unsafe_behaviour_of_every_example_earns_more_and_breaks_the_limit():
    for example in hand_made():
        cmdp = example.cmdp
        assert expected_return(cmdp, example.unsafe) > expected_return(cmdp, example.safe), example.name
        assert expected_cost(cmdp, example.safe) <= cmdp.limit < expected_cost(cmdp, example.unsafe), example.name


def test_the_stitched_policy_beats_both_behaviours_inside_the_limit():
    example = stitching()
    stitched = deterministic_policy([1, 0, 0, 0], 3)
    # One round earns 1 + 0.9 * 1 + 0.81 * 0.3 and a round takes three steps.
    assert expected_return(example.cmdp, stitched) == pytest.approx((1 + 0.9 + 0.81 * 0.3) / (1 - 0.9**3))
    assert expected_cost(example.cmdp, stitched) == pytest.approx(0.0, abs=1e-12)
    for behaviour in (example.safe, example.unsafe):
        assert expected_return(example.cmdp, stitched) > expected_return(example.cmdp, behaviour)


def test_the_grid_without_slips_would_be_crossed_in_four_moves():
    example = hazard_grid()
    # With slips the goal is reached later than after four moves, whose reward would be discounted three times.
    assert 0.8 * 0.95**3 < expected_return(example.cmdp, example.unsafe) < 0.95**3
    assert example.cmdp.cost.sum() == 4 * 6  # four actions in each of six hazardous cells


def test_stirring_keeps_a_policy_and_plays_every_action():
    policy = stirred(deterministic_policy([0, 1], 2), 0.1)
    np.testing.assert_allclose(policy, [[0.95, 0.05], [0.05, 0.95]])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"discount": 1.0}, "discount"),
        ({"cost": -np.ones((2, 2))}, "cost"),
        ({"start": np.array([0.5, 0.4])}, "start"),
        ({"transition": np.ones((2, 2, 2))}, "transition"),
        ({"cost": np.ones((2, 3))}, "cost"),
    ],
)
def test_a_cmdp_that_makes_no_sense_is_refused(change, word):
    good = {
        "transition": np.full((2, 2, 2), 0.5),
        "reward": np.zeros((2, 2)),
        "cost": np.zeros((2, 2)),
        "start": np.array([0.5, 0.5]),
        "discount": 0.9,
        "limit": 1.0,
    }
    assert uniform_policy(Cmdp(**good)).shape == (2, 2)
    with pytest.raises(InvalidSetting, match=word):
        Cmdp(**{**good, **change})
