"""Theorem 2: both of its claims, where they fail as printed, and the bound that holds."""

from functools import cache

import numpy as np
import pytest

from ringfence.tabular import counterexamples
from ringfence.tabular.cmdp import (
    action_values,
    expected_cost,
    expected_return,
    log_states,
    state_values,
    uniform_policy,
)
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


def test_a_policy_safe_from_every_state_never_beats_the_linear_program():
    for _, cmdp, _, outcome, best in runs():
        if (state_values(cmdp, outcome.policy, cmdp.cost) <= cmdp.limit).all():
            assert expected_cost(cmdp, outcome.policy) <= cmdp.limit
            assert expected_return(cmdp, outcome.policy) <= best.expected_return + 1e-9


def test_with_exact_operators_the_printed_bound_is_zero_but_the_gap_is_not():
    broken = 0
    for _, cmdp, behaviour, outcome, best in runs():
        if outcome.converged:
            safe = outcome.last.q_cost <= cmdp.limit
            sides = theorem2(
                cmdp, behaviour, log_states(cmdp, behaviour), outcome.policy, outcome.last.q_reward, safe, best.policy
            )
            assert sides.as_stated < 1e-9
            broken += sides.gap > 1e-3
    assert broken > 0


def test_the_first_step_escapes_every_error_the_printed_bound_counts():
    sides = theorem2(**vars(counterexamples.first_step_uncounted()))
    assert sides.gap == pytest.approx(1.0)
    assert sides.as_stated == sides.as_sketched == 0.0
    assert sides.corrected >= 1.0


@pytest.mark.parametrize("share", [1e-2, 1e-4, 1e-6])
def test_for_a_rare_action_the_printed_bound_vanishes_and_ours_is_exact(share):
    sides = theorem2(**vars(counterexamples.rare_action_uncounted(share)))
    # Qr-hat is 1 too high; the residual 0.5 at the rare pair has norm 0.5 sqrt(share); epsilon = share, g = 1.
    printed = 4 * 0.5 / 0.5**3 * (1 + np.sqrt(share)) * 0.5 * np.sqrt(share)
    assert sides.gap == pytest.approx(1.0)
    assert sides.as_stated == pytest.approx(printed)
    assert sides.corrected == pytest.approx(0.5 * np.sqrt(share) / np.sqrt(share) / (1 - 0.5))
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
