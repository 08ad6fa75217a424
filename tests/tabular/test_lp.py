import itertools
from dataclasses import replace

import numpy as np
import pytest

from ringfence.tabular.cmdp import Cmdp, deterministic_policy, expected_cost, expected_return, state_values
from ringfence.tabular.examples import garnet, hand_made, random_policy, stitching
from ringfence.tabular.lp import best_deterministic, frontier, least_cost, optimal_policy
from ringfence.tabular.planning import least_costs, viable_pairs


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


def best_by_value_iteration(cmdp, signal, allowed):
    values = np.zeros(cmdp.n_states)
    for _ in range(350):
        values = np.where(allowed, signal + cmdp.discount * cmdp.transition @ values, -np.inf).max(1)
    return values


def test_the_price_makes_the_optimum_optimal_without_the_limit(random_cmdp):
    """Strong duality: where it goes, the optimum is also the best policy for reward - price * cost."""
    _, cmdp = random_cmdp
    solution = optimal_policy(cmdp)
    priced = cmdp.reward - solution.price * cmdp.cost
    best = best_by_value_iteration(cmdp, priced, np.ones(priced.shape, bool))
    assert cmdp.start @ state_values(cmdp, solution.policy, priced) == pytest.approx(cmdp.start @ best)
    np.testing.assert_allclose(solution.values, best, atol=1e-9)


def test_in_states_the_optimum_never_visits_its_policy_is_the_best_one_at_its_price():
    """One start and one successor per pair leave states unvisited; there the program's duals are not unique."""
    unvisited = 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        cmdp = replace(garnet(rng, states=6, branching=1), start=np.eye(6)[0])
        allowed = rng.random(cmdp.reward.shape) < 0.7
        allowed[:, 0] = True
        solution = optimal_policy(cmdp, allowed)
        if solution is None:
            continue
        unvisited += (solution.occupancy.sum(1) < 1e-9).sum()
        priced = cmdp.reward - solution.price * cmdp.cost
        best = best_by_value_iteration(cmdp, priced, allowed)
        np.testing.assert_allclose(state_values(cmdp, solution.policy, priced), best, atol=1e-7)
    assert unvisited > 100


def test_a_limit_that_only_rounding_puts_out_of_reach_is_met():
    """The one policy costs 0.1 + 0.5 * 0.4 = 0.3. A limit below that by less than 1e-9 counts as met."""
    transition = np.zeros((3, 1, 3))
    transition[0, :, 1] = transition[1:, :, 2] = 1.0
    cost = np.array([[0.1], [0.4], [0.0]])
    cmdp = Cmdp(transition, np.zeros((3, 1)), cost, np.eye(3)[0], discount=0.5, limit=0.3 - 1e-10)
    assert optimal_policy(cmdp) is not None
    assert best_deterministic(cmdp, np.ones((3, 1), bool), from_each_state=False) is not None
    assert optimal_policy(cmdp.with_limit(0.3 - 1e-6)) is None


def test_from_each_state_means_each_state_that_the_policy_visits():
    """State 1 costs 5 whatever is done there, but the start never leads to it."""
    transition = np.zeros((2, 1, 2))
    transition[0, 0, 0] = transition[1, 0, 1] = 1.0
    cmdp = Cmdp(transition, np.zeros((2, 1)), np.array([[0.0], [0.5]]), np.eye(2)[0], discount=0.9, limit=1.0)
    assert best_deterministic(cmdp, np.ones((2, 1), bool), from_each_state=True) is not None


def test_the_least_cost_of_each_state_averages_to_the_least_cost_from_the_start(random_cmdp):
    _, cmdp = random_cmdp
    values = -best_by_value_iteration(cmdp, -cmdp.cost, np.ones(cmdp.cost.shape, bool))
    np.testing.assert_allclose(least_costs(cmdp), values, atol=1e-9)
    assert least_cost(cmdp) == pytest.approx(cmdp.start @ values, abs=1e-9)


def test_the_least_cost_from_the_start_can_hide_a_state_that_has_no_safe_action():
    """Two states of equal start share, costs 0 and 1.5 for ever: 0.75 from the start, 1.5 from the second."""
    transition = np.eye(2)[:, None, :]
    cost = np.array([[0.0], [0.15]])
    cmdp = Cmdp(transition, np.zeros((2, 1)), cost, np.full(2, 0.5), discount=0.9, limit=1.0)
    assert least_cost(cmdp) == pytest.approx(0.75)
    np.testing.assert_allclose(least_costs(cmdp), [0.0, 1.5], atol=1e-12)


def test_states_that_cannot_avoid_a_dead_end_have_no_least_cost():
    cmdp = stitching().cmdp
    allowed = np.ones(cmdp.reward.shape, bool)
    allowed[3] = False  # the broken machine, which only leaping leads to
    assert viable_pairs(cmdp, allowed).tolist() == [[True, True, False]] * 3 + [[False] * 3]
    np.testing.assert_allclose(least_costs(cmdp, allowed), [0.0, 0.0, 0.0, np.inf])


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


@pytest.mark.parametrize(("chance", "earned"), [(0.0, 20.0), (0.1, 10.0)])
def test_the_best_deterministic_policy_stays_out_of_states_without_an_allowed_action(chance, earned):
    """State 0 earns 1 or 2 a step for ever; the better action leads to state 1 by chance, where nothing is allowed."""
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 0] = 1.0
    transition[0, 1] = [1 - chance, chance]
    transition[1, :, 1] = 1.0
    reward = np.array([[1.0, 2.0], [0.0, 0.0]])
    cmdp = Cmdp(transition, reward, np.zeros((2, 2)), np.array([1.0, 0.0]), discount=0.9, limit=1.0)
    allowed = np.array([[True, True], [False, False]])
    for from_each_state in (True, False):
        policy = best_deterministic(cmdp, allowed, from_each_state)
        assert expected_return(cmdp, policy) == pytest.approx(earned)
    assert optimal_policy(cmdp, allowed).expected_return == pytest.approx(earned)


def test_tossing_a_coin_can_only_help(small):
    _, cmdp = small
    everything = np.ones(cmdp.cost.shape, bool)
    best = best_deterministic(cmdp, everything, from_each_state=False)
    if best is not None:
        assert expected_cost(cmdp, best) <= cmdp.limit + 1e-9
        assert expected_return(cmdp, best) <= optimal_policy(cmdp).expected_return + 1e-9
