"""Theorem 1 on hundreds of random CMDPs, and the readings of its alpha that fail."""

from dataclasses import replace

import numpy as np
import pytest

from ringfence.tabular import counterexamples
from ringfence.tabular.cmdp import action_values, pair_transition
from ringfence.tabular.cpq import cost_fixed_point, push_ratio
from ringfence.tabular.examples import random_policy
from ringfence.tabular.theorems import (
    Case,
    fixed_point_error,
    leak,
    least_pushed_value,
    ood_action_set,
    pairwise_alpha,
    printed_alpha,
    smallest_alpha,
    stationary_alpha,
    sufficient_alpha,
)

from .random_cmdps import make_cmdp


def random_case(seed):
    rng, cmdp = make_cmdp(seed)
    behaviour = 0.98 * random_policy(rng, cmdp, 0.5) + 0.02 / cmdp.n_actions
    return Case(cmdp, random_policy(rng, cmdp, 0.5), behaviour, random_policy(rng, cmdp, 0.5))


CASES = [random_case(seed) for seed in range(300)]
EPSILON = 0.5
WITH_OOD = [case for case in CASES if ood_action_set(case, EPSILON).any()]


def test_there_are_hundreds_of_cases_with_out_of_distribution_actions():
    assert len(WITH_OOD) > 200


def test_iterating_the_cost_objective_reaches_the_fixed_point_of_theorem_1():
    assert max(fixed_point_error(case, alpha=0.7) for case in CASES[:100]) < 1e-12


def test_the_closed_form_adds_up_the_pushed_cost_of_every_later_pair():
    """A forward sum: the distribution over pairs t steps on, times c + alpha/2 nu / pi_beta, discounted."""
    for case in CASES[:40]:
        cmdp, paid = case.cmdp, case.cmdp.cost + 0.35 * case.nu / case.behaviour
        for s, a in ((0, 0), (1, 1)):
            now, total = np.zeros(paid.shape), 0.0
            now[s, a] = 1.0
            for step in range(int(np.log(1e-12) / np.log(cmdp.discount))):
                total += cmdp.discount**step * (now * paid).sum()
                arrived = sum(now[i, j] * cmdp.transition[i, j] for i, j in np.ndindex(now.shape))
                now = arrived[:, None] * case.policy
            assert (case.true_cost + 0.7 * case.push_per_alpha)[s, a] == pytest.approx(total)


def test_the_inverse_has_no_negative_entry_but_the_matrix_the_paper_names_has():
    for case in CASES:
        matrix = np.eye(case.nu.size) - case.cmdp.discount * pair_transition(case.cmdp, case.policy)
        assert matrix.min() < 0
        assert np.linalg.inv(matrix).min() >= -1e-12
        assert np.diag(np.linalg.inv(matrix)).min() >= 1 - 1e-12


def test_our_alpha_lifts_every_out_of_distribution_pair_to_the_limit():
    for case in WITH_OOD:
        pairs = ood_action_set(case, EPSILON)
        assert least_pushed_value(case, pairs, sufficient_alpha(case, pairs)) >= case.cmdp.limit - 1e-9


def test_twice_epsilon_times_the_limit_is_enough_whatever_the_policy():
    for case in WITH_OOD:
        pairs = ood_action_set(case, EPSILON)
        assert least_pushed_value(case, pairs, 2 * EPSILON * case.cmdp.limit) >= case.cmdp.limit - 1e-9


def test_the_smallest_alpha_just_suffices_and_a_little_less_does_not():
    for case in WITH_OOD:
        pairs = ood_action_set(case, EPSILON)
        alpha = smallest_alpha(case, pairs)
        assert alpha <= sufficient_alpha(case, pairs) * (1 + 1e-9)
        assert least_pushed_value(case, pairs, alpha) >= case.cmdp.limit - 1e-9
        if alpha > 0:
            assert least_pushed_value(case, pairs, 0.99 * alpha) < case.cmdp.limit


def test_our_alpha_is_the_smallest_where_all_pushed_pairs_have_one_ratio_and_are_not_played():
    case = counterexamples.printed_alpha_too_small(epsilon=0.1)
    pairs = ood_action_set(case, 0.1)
    assert sufficient_alpha(case, pairs) == pytest.approx(smallest_alpha(case, pairs)) == pytest.approx(0.2)


def test_with_unequal_ratios_one_epsilon_asks_for_four_times_too_much():
    case = counterexamples.unequal_ratios()
    pairs = case.nu > 0
    # epsilon = 0.08 / 0.5 and the largest lack is 1; pair by pair 0.1 * 0.08 / 0.5 and 1 * 0.02 / 0.5.
    assert sufficient_alpha(case, pairs) == pytest.approx(2 * 0.16 * 1.0)
    assert smallest_alpha(case, pairs) == pytest.approx(2 * max(0.1 * 0.16, 1.0 * 0.04))
    assert pairwise_alpha(case, pairs) == pytest.approx(0.08)


def test_pair_by_pair_the_bound_is_never_larger_and_always_enough():
    for case in WITH_OOD:
        pairs = ood_action_set(case, EPSILON)
        alpha = pairwise_alpha(case, pairs)
        assert alpha <= sufficient_alpha(case, pairs) * (1 + 1e-9)
        assert least_pushed_value(case, pairs, alpha) >= case.cmdp.limit - 1e-9


def test_the_diagonal_reading_counts_how_often_the_policy_returns_to_the_pair():
    """One free state: P(x,x) = pi(a). The rarest return, 0.25, gives 2 epsilon l (1 - 0.9 * 0.25)."""
    case = counterexamples.printed_alpha_too_small()
    often = replace(case, policy=np.array([[0.75, 0.25]]))
    assert printed_alpha(often, 0.1, "diagonal") == pytest.approx(2 * 0.1 * 1.0 * (1 - 0.9 * 0.25))


def test_no_bound_on_alpha_is_negative():
    """Where Qc is above the limit already, alpha = 0 is enough."""
    case = counterexamples.printed_alpha_too_small()
    dear = replace(case, cmdp=replace(case.cmdp, cost=np.full((1, 2), 1.0)))
    pairs = ood_action_set(dear, 0.1)
    assert sufficient_alpha(dear, pairs) == pairwise_alpha(dear, pairs) == smallest_alpha(dear, pairs) == 0.0
    assert printed_alpha(dear, 0.1, "diagonal") == 0.0


def test_the_printed_alpha_read_along_the_diagonal_suffices():
    for case in WITH_OOD:
        pairs = ood_action_set(case, EPSILON)
        alpha = printed_alpha(case, EPSILON, "diagonal")
        assert least_pushed_value(case, pairs, alpha) >= case.cmdp.limit - 1e-9


@pytest.mark.parametrize("reading", ["operator", "row sum"])
def test_the_printed_alpha_read_otherwise_leaves_the_rare_action_at_a_tenth_of_the_limit(reading):
    case = counterexamples.printed_alpha_too_small(epsilon=0.1)
    alpha = printed_alpha(case, 0.1, reading)
    assert alpha == pytest.approx(2 * 0.1 * (1 - 0.9) * 1.0)
    pairs = ood_action_set(case, 0.1)
    assert least_pushed_value(case, pairs, alpha) == pytest.approx((1 - 0.9) * case.cmdp.limit)


def test_reaching_the_limit_is_not_enough_for_the_indicator():
    """Theorem 1 asks for Qc-hat >= l, but CPQ calls Qc-hat <= l safe: alpha must be strictly larger."""
    case = counterexamples.printed_alpha_too_small(epsilon=0.1)
    pairs = ood_action_set(case, 0.1)
    alpha = sufficient_alpha(case, pairs)
    assert cost_fixed_point(case.cmdp, case.policy, case.ratio, alpha)[0, 1] <= case.cmdp.limit
    assert cost_fixed_point(case.cmdp, case.policy, case.ratio, 1.01 * alpha)[0, 1] > case.cmdp.limit


def test_a_policy_that_plays_no_pushed_pair_leaves_all_others_exact():
    for seed in range(100):
        rng, cmdp = make_cmdp(seed)
        pushed = np.zeros(cmdp.cost.shape, bool)
        pushed[:, -1] = True
        nu = pushed * 1.0
        policy = random_policy(rng, cmdp) * ~pushed
        policy /= policy.sum(1, keepdims=True)
        case = Case(cmdp, policy, random_policy(rng, cmdp, 3.0), nu)
        assert leak(case, alpha=5.0) < 1e-12
        expected = action_values(cmdp, policy, cmdp.cost) + 5.0 / 2 * push_ratio(nu, case.behaviour)
        np.testing.assert_allclose(cost_fixed_point(cmdp, policy, case.ratio, 5.0), expected)


def test_while_the_policy_plays_pushed_pairs_no_alpha_may_separate_them_from_safe_ones():
    case = counterexamples.no_alpha_separates()
    pairs = ood_action_set(case, 0.02)
    pushed = cost_fixed_point(case.cmdp, case.policy, case.ratio, smallest_alpha(case, pairs))
    assert case.true_cost[0, 0] == pytest.approx(0.9)  # truly safe, half of the log, not pushed
    # The rare action must gain l = 1 and passes 0.9 of it back one step.
    assert pushed[0, 0] == pytest.approx(0.9 + 0.9 * 1.0)
    assert pushed[0, 0] > case.cmdp.limit


def test_the_automatic_alpha_meets_its_average_and_may_leave_a_pair_below_the_limit():
    case = counterexamples.average_hides_a_pair()
    alpha = stationary_alpha(case, np.ones(1), target=1.5)
    pushed = cost_fixed_point(case.cmdp, case.policy, case.ratio, alpha)
    assert (case.nu * pushed).sum() == pytest.approx(1.5)
    # Ratios 50 and 12.5 average 31.25: the pushes are 1.5 * 50 / 31.25 and 1.5 * 12.5 / 31.25.
    np.testing.assert_allclose(pushed[0, 1:], [2.4, 0.6])


def test_the_automatic_alpha_rests_where_its_gradient_is_zero_or_at_zero():
    for seed, case in enumerate(CASES[:50]):
        states = np.random.default_rng(seed).dirichlet(np.ones(case.cmdp.n_states))
        target = 1.5 * case.cmdp.limit
        alpha = stationary_alpha(case, states, target)
        pushed = cost_fixed_point(case.cmdp, case.policy, case.ratio, alpha)
        average = states @ (case.nu * pushed).sum(1)
        if alpha > 0:
            assert average == pytest.approx(target)
        else:
            assert average >= target - 1e-9


def test_the_automatic_alpha_averages_over_the_states_that_have_something_to_push():
    case = counterexamples.no_alpha_separates()  # nu is empty in state 0
    alpha = stationary_alpha(case, np.array([0.3, 0.7]), target=1.5)
    assert cost_fixed_point(case.cmdp, case.policy, case.ratio, alpha)[1, 1] == pytest.approx(1.5)


def test_definition_1_as_a_set_of_actions_for_all_states_is_mostly_empty():
    def qualifies_everywhere(case):
        return ((case.nu > 0) & (case.behaviour <= EPSILON * case.nu)).all(0).any()

    share = np.mean([qualifies_everywhere(case) for case in WITH_OOD])
    assert share < 0.25
    assert not any(ood_action_set(case, EPSILON).all(1).any() for case in CASES)  # not all actions can be rare
