"""Theorem 2: both of its claims, where they fail as printed, and the bound that holds."""

from functools import cache

import numpy as np
import pytest

from ringfence.tabular import counterexamples
from ringfence.tabular.cmdp import Cmdp, action_values, log_states, state_values, uniform_policy
from ringfence.tabular.cpq import Settings, penalized_fixed_point, run_cpq
from ringfence.tabular.examples import garnet, random_policy
from ringfence.tabular.lp import optimal_policy
from ringfence.tabular.theorems import theorem2


@cache
def runs():
    """CPQ on random CMDPs whose limit can be met on the log's support, whether it converged or not."""
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        cmdp = garnet(rng, states=5)
        behaviour = random_policy(rng, cmdp)
        best = optimal_policy(cmdp, behaviour >= 0.05)
        if best is not None:
            outcome = run_cpq(cmdp, behaviour, Settings(2.02 * 0.15 * cmdp.limit, 0.05))
            found.append((rng, cmdp, behaviour, outcome, best))
    return found


# Claim 1: the limit of Vc-hat is at most l


def test_where_no_action_is_safe_the_limit_of_vc_is_above_l():
    cmdp = counterexamples.no_safe_action()
    outcome = run_cpq(cmdp, uniform_policy(cmdp), Settings(0.0, 0.0))
    assert outcome.converged
    assert (outcome.policy * outcome.last.q_cost).sum() == pytest.approx(10.0)
    assert cmdp.limit == 2.0


def test_where_cpq_goes_round_there_is_no_limit_of_vc():
    cmdp = counterexamples.greedy_cycle()
    outcome = run_cpq(cmdp, uniform_policy(cmdp), Settings(0.0, 0.0))
    costs = [state_values(cmdp, policy, cmdp.cost)[0] for policy in outcome.cycle]
    assert max(costs) > cmdp.limit > min(costs)


def test_at_a_fixed_point_every_state_with_a_safe_action_is_truly_safe():
    """What is left of claim 1: CPQ has converged, a safe action exists, Qr > 0 there. Then Vc <= Vc-hat <= l."""
    checked = 0
    for _, cmdp, _, outcome, _ in runs():
        if not outcome.converged:
            continue
        some_safe = (outcome.last.q_cost <= cmdp.limit).any(1)
        truth = state_values(cmdp, outcome.policy, cmdp.cost)
        assert (truth[some_safe] <= cmdp.limit + 1e-9).all()
        checked += some_safe.all()
    assert checked > 30


# Claim 2: |V* - V-hat| is bounded


def two_islands():
    """Two states that never meet, one action each, r = 1: V* = 2. Shares 0.8 and 0.2 of the log."""
    cmdp = Cmdp(np.eye(2)[:, None, :], np.ones((2, 1)), np.zeros((2, 1)), np.array([0.8, 0.2]), 0.5, 1.0)
    only = np.ones((2, 1))
    return {"cmdp": cmdp, "behaviour": only, "states": cmdp.start, "policy": only, "best": only, "safe": only > 0}


def test_the_gap_is_that_of_the_worst_state_of_the_log():
    """Qr-hat is 1 too high in the first state and 0.25 in the second; a constant error e leaves a residual of e / 2."""
    sides = theorem2(**two_islands(), q_reward=np.array([[3.0], [2.25]]))
    assert sides.gap == pytest.approx(1.0)
    residual = np.sqrt(0.8 * 0.5**2 + 0.2 * 0.125**2)
    assert sides.corrected == pytest.approx(residual / np.sqrt(0.2) / (1 - 0.5))


def test_every_logged_state_counts_as_a_place_to_start_from():
    sides = theorem2(**two_islands(), q_reward=np.full((2, 1), 2.0))
    assert sides.g == pytest.approx(0.2)


def test_with_exact_operators_the_printed_bound_is_zero_but_the_gap_is_not():
    """Qr-hat solves the penalized equation, checked pair by pair; so delta is 0. V* comes from the linear program."""
    broken = 0
    for _, cmdp, behaviour, outcome, best in runs():
        if not outcome.converged:
            continue
        safe, q, policy = outcome.last.q_cost <= cmdp.limit, outcome.last.q_reward, outcome.policy
        for s, a in np.ndindex(q.shape):
            following = sum(cmdp.transition[s, a, t] * policy[t] @ (safe[t] * q[t]) for t in range(cmdp.n_states))
            assert q[s, a] == pytest.approx(cmdp.reward[s, a] + cmdp.discount * following)
        gap = np.abs(state_values(cmdp, best.policy, cmdp.reward) - (policy * q).sum(1)).max()
        sides = theorem2(cmdp, behaviour, log_states(cmdp, behaviour), policy, q, safe, best.policy)
        assert sides.gap == pytest.approx(gap)
        broken += sides.as_stated < 1e-9 < 1e-3 < gap
    assert broken > 0


def test_the_first_step_escapes_every_error_the_printed_bound_counts():
    """CPQ itself ends with the policy and the critic of this example. The coin's 0.505 against 0.01."""
    case = counterexamples.first_step_uncounted()
    outcome = run_cpq(case.cmdp, case.behaviour, Settings(0.0, 0.0))
    assert outcome.converged
    np.testing.assert_array_equal(outcome.policy[0], case.policy[0])
    np.testing.assert_allclose(outcome.last.q_reward, case.q_reward)
    np.testing.assert_array_equal(outcome.last.q_cost <= case.cmdp.limit, case.safe)
    assert optimal_policy(case.cmdp).expected_return == pytest.approx(0.5 * 0.01 + 0.5 * 1.0)
    sides = theorem2(**vars(case))
    assert sides.gap == pytest.approx(0.505 - 0.01)
    assert sides.as_stated == sides.as_sketched == 0.0
    assert sides.corrected >= 0.495


def test_the_sketchs_error_is_that_of_the_optimal_critic_under_the_learned_policy():
    """pi earns 0 for ever, pi* 1: Q* = (1, 2), T^pi Q* = r + 0.5 Q*(0) = (0.5, 1.5), so the residual is 0.5 at each pair.

    epsilon = 0.5 / 1 and g = 1 in the printed constant."""
    cmdp = counterexamples.one_state(reward=[0.0, 1.0], cost=[0.0, 0.0], limit=1.0, discount=0.5)
    policy, best = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    q_reward = action_values(cmdp, policy, cmdp.reward)
    sides = theorem2(cmdp, np.full((1, 2), 0.5), np.ones(1), policy, q_reward, np.ones((1, 2), bool), best)
    assert sides.as_stated == 0.0
    assert sides.as_sketched == pytest.approx(4 * 0.5 / 0.5**3 * (1 + np.sqrt(0.5)) * 0.5)


def test_the_end_of_an_episode_needs_no_log_as_long_as_its_value_is_right():
    """The gap is 0.9 if Qr-hat is 1 too high at the end, where the log has no rows: no bound can be finite."""
    case = counterexamples.first_step_uncounted()
    right = theorem2(**vars(case))
    assert right.g == 1.0
    assert np.isfinite(right.corrected)
    assert np.isfinite(right.concentrated)
    raised = case.q_reward + np.array([[0.9, 0.9], [1.0, 1.0]])
    wrong = theorem2(**{**vars(case), "q_reward": raised, "best": case.policy})
    assert wrong.gap == pytest.approx(0.9)
    assert wrong.corrected == wrong.concentrated == np.inf


@pytest.mark.parametrize("share", [1e-2, 1e-4, 1e-6])
def test_for_a_rare_action_the_printed_bound_vanishes_and_ours_is_exact(share):
    sides = theorem2(**vars(counterexamples.rare_action_uncounted(share)))
    # Qr-hat is 1 too high; the residual 0.5 at the rare pair has norm 0.5 sqrt(share); epsilon = share, g = 1.
    printed = 4 * 0.5 / 0.5**3 * (1 + np.sqrt(share)) * 0.5 * np.sqrt(share)
    assert sides.gap == pytest.approx(1.0)
    assert sides.as_stated == pytest.approx(printed)
    # pi / pi_beta = 1 / share is the exact ratio too.
    assert sides.corrected == pytest.approx(0.5 * np.sqrt(share) / np.sqrt(share) / (1 - 0.5))
    assert sides.concentrated == pytest.approx(1.0)
    assert sides.as_stated < sides.gap


def test_the_corrected_bound_holds_for_every_policy_and_every_error():
    """Not only CPQ's: any policy, any set of safe pairs, any error in Qr-hat."""
    for rng, cmdp, behaviour, outcome, best in runs():
        safe = rng.random(cmdp.cost.shape) < 0.7
        for policy in (outcome.policy, random_policy(rng, cmdp)):
            q_reward = penalized_fixed_point(cmdp, policy, safe) + rng.normal(size=safe.shape)
            sides = theorem2(cmdp, behaviour, log_states(cmdp, behaviour), policy, q_reward, safe, best.policy)
            assert sides.gap <= sides.concentrated * (1 + 1e-9) <= sides.corrected * (1 + 1e-6)


def test_playing_an_unsafe_pair_costs_what_the_penalty_term_says():
    """pi = pi* earns 1 for ever, but its only action counts as unsafe: V* = 2, V-hat = 1, with no other error."""
    cmdp = counterexamples.one_state(reward=[1.0], cost=[1.0], limit=1.0, discount=0.5)
    policy, unsafe = np.ones((1, 1)), np.zeros((1, 1), bool)
    q_reward = penalized_fixed_point(cmdp, policy, unsafe)
    sides = theorem2(cmdp, policy, np.ones(1), policy, q_reward, unsafe, policy)
    assert sides.gap == pytest.approx(1.0)
    assert sides.as_stated == sides.as_sketched == 0.0
    assert sides.corrected == pytest.approx(2.0 / (1 - 0.5))  # |Q* - 0| / (1 - discount)


def test_where_the_log_does_not_cover_the_policy_the_bound_says_nothing():
    cmdp = counterexamples.one_state(reward=[0.0, 1.0], cost=[0.0, 0.0], limit=1.0)
    policy, behaviour = np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]])
    values = action_values(cmdp, policy, cmdp.reward)
    sides = theorem2(cmdp, behaviour, np.ones(1), policy, values + 1, np.ones((1, 2), bool), policy)
    assert sides.epsilon == 0.0
    assert sides.corrected == np.inf
