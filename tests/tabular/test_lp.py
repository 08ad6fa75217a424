import itertools
from dataclasses import replace

import numpy as np
import pytest

from ringfence.tabular.cmdp import (
    Cmdp,
    action_values,
    deterministic_policy,
    expected_cost,
    expected_return,
    state_values,
)
from ringfence.tabular.examples import garnet, hand_made, random_policy, stitching
from ringfence.tabular.lp import best_deterministic, frontier, least_cost, optimal_policy


def all_deterministic(cmdp, allowed=None):
    """Every deterministic policy that uses allowed pairs only."""
    mask = np.ones(cmdp.reward.shape, bool) if allowed is None else allowed
    for actions in itertools.product(*(np.flatnonzero(row) for row in mask)):
        yield deterministic_policy(actions, cmdp.n_actions)


def brute_force_optimum(cmdp, allowed=None):
    """The best mixture of two deterministic policies: where a CMDP's optimum lies, found without a linear program."""
    points = [(expected_cost(cmdp, p), expected_return(cmdp, p)) for p in all_deterministic(cmdp, allowed)]
    best = -np.inf
    for (c1, r1), (c2, r2) in itertools.product(points, repeat=2):
        if c1 <= cmdp.limit:
            best = max(best, r1)
            if c2 > cmdp.limit:
                best = max(best, r1 + (r2 - r1) * (cmdp.limit - c1) / (c2 - c1))
    return best


@pytest.fixture(params=range(10))
def small(request):
    """Brute force is quadratic in the number of policies: four states and two or three actions give at most 81."""
    rng = np.random.default_rng(100 + request.param)
    return rng, garnet(rng, states=4, actions=2 + request.param % 2, limit_share=0.5)


def test_the_optimum_is_the_best_mixture_of_two_deterministic_policies(small):
    _, cmdp = small
    solution = optimal_policy(cmdp)
    expected = brute_force_optimum(cmdp)
    if solution is None:
        assert expected == -np.inf
    else:
        assert solution.expected_return == pytest.approx(expected)


def test_the_optimum_on_a_support_is_the_best_mixture_on_it(small):
    rng, cmdp = small
    allowed = rng.random(cmdp.reward.shape) < 0.5
    allowed[:, 0] = True
    solution = optimal_policy(cmdp, allowed)
    expected = brute_force_optimum(cmdp, allowed)
    if solution is None:
        assert expected == -np.inf
    else:
        assert solution.expected_return == pytest.approx(expected)
        assert not solution.policy[~allowed].any()


def test_the_policy_earns_and_pays_what_the_program_says(random_cmdp):
    _, cmdp = random_cmdp
    solution = optimal_policy(cmdp)
    assert solution is not None
    assert expected_return(cmdp, solution.policy) == pytest.approx(solution.expected_return)
    assert expected_cost(cmdp, solution.policy) == pytest.approx(solution.expected_cost)
    assert solution.expected_cost <= cmdp.limit + 1e-9


def test_no_random_policy_inside_the_limit_earns_more(random_cmdp):
    rng, cmdp = random_cmdp
    solution = optimal_policy(cmdp)
    for _ in range(200):
        policy = random_policy(rng, cmdp, concentration=0.3)
        if expected_cost(cmdp, policy) <= cmdp.limit:
            assert expected_return(cmdp, policy) <= solution.expected_return + 1e-9


def test_the_price_is_the_slope_of_the_return_in_the_limit():
    for example in hand_made():
        cmdp, step = example.cmdp, 1e-4
        below, above = frontier(cmdp, np.array([cmdp.limit - step, cmdp.limit + step]))
        assert optimal_policy(cmdp).price == pytest.approx((above - below) / (2 * step), rel=1e-4)


def test_the_price_makes_the_optimum_optimal_without_the_limit(random_cmdp):
    """Strong duality: no deterministic improvement exists for reward - price * cost."""
    _, cmdp = random_cmdp
    solution = optimal_policy(cmdp)
    priced = cmdp.reward - solution.price * cmdp.cost
    values = state_values(cmdp, solution.policy, priced)
    advantages = action_values(cmdp, solution.policy, priced) - values[:, None]
    assert advantages.max() < 1e-7
    np.testing.assert_allclose(solution.values, values, atol=1e-7)


def test_states_the_optimum_never_visits_still_get_their_best_action_at_its_price():
    unvisited = 0
    for seed in range(20):
        chain = garnet(np.random.default_rng(seed), states=6, branching=1)
        cmdp = replace(chain, start=np.eye(6)[0])
        solution = optimal_policy(cmdp)
        if solution is None:
            continue
        unvisited += (solution.occupancy.sum(1) < 1e-9).sum()
        priced = cmdp.reward - solution.price * cmdp.cost
        one_step = priced + cmdp.discount * cmdp.transition @ solution.values
        played = (solution.policy * one_step).sum(1)
        np.testing.assert_allclose(played, one_step.max(1), atol=1e-7)
    assert unvisited > 10


def test_an_impossible_limit_has_no_policy_and_the_least_cost_says_why(random_cmdp):
    _, cmdp = random_cmdp
    values = np.zeros(cmdp.n_states)
    for _ in range(500):  # value iteration on the cost
        values = (cmdp.cost + cmdp.discount * cmdp.transition @ values).min(1)
    least = cmdp.start @ values
    assert least_cost(cmdp) == pytest.approx(least, abs=1e-9)
    assert optimal_policy(cmdp.with_limit(least - 1e-3)) is None
    assert optimal_policy(cmdp.with_limit(least + 1e-3)) is not None


def test_a_support_that_leads_into_a_state_without_actions_has_no_policy():
    cmdp = stitching().cmdp
    allowed = np.ones(cmdp.reward.shape, bool)
    allowed[1] = False  # every round passes stage 1
    assert optimal_policy(cmdp, allowed) is None
    assert least_cost(cmdp, allowed) == np.inf
    assert np.isnan(frontier(cmdp, np.array([1.0]), allowed)).all()


def test_the_optimum_is_random_in_at_most_one_state_it_visits(random_cmdp):
    _, cmdp = random_cmdp
    solution = optimal_policy(cmdp)
    visited = solution.occupancy.sum(1) > 1e-9
    random_states = ((solution.policy > 1e-9).sum(1) > 1) & visited
    assert random_states.sum() <= 1


def test_a_limit_from_each_state_forbids_what_discounting_hides_from_the_start():
    """State 0 leads to state 1, where paying 1 earns 1. Seen from the start that is 0.9, inside a limit of 0.95."""
    transition = np.zeros((3, 2, 3))
    transition[0, :, 1] = transition[1:, :, 2] = 1.0
    payment = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    cmdp = Cmdp(transition, payment, payment, np.array([1.0, 0.0, 0.0]), discount=0.9, limit=0.95)
    everything = np.ones((3, 2), bool)
    assert best_deterministic(cmdp, everything, from_each_state=False)[1].tolist() == [1.0, 0.0]
    assert best_deterministic(cmdp, everything, from_each_state=True)[1].tolist() == [0.0, 1.0]


def test_the_best_deterministic_policy_is_none_where_no_limit_can_be_met():
    cmdp = stitching().cmdp.with_limit(-1.0)
    assert best_deterministic(cmdp, np.ones(cmdp.cost.shape, bool), from_each_state=False) is None


def test_tossing_a_coin_can_only_help(small):
    _, cmdp = small
    everything = np.ones(cmdp.cost.shape, bool)
    best = best_deterministic(cmdp, everything, from_each_state=False)
    if best is not None:
        assert expected_cost(cmdp, best) <= cmdp.limit + 1e-9
        assert expected_return(cmdp, best) <= optimal_policy(cmdp).expected_return + 1e-9
