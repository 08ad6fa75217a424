"""The penalized operator: contraction, pessimism, the floor, and where its limit is not continuous."""

import numpy as np
import pytest

from ringfence.tabular import counterexamples
from ringfence.tabular.cmdp import action_values, expected_cost, pair_transition, uniform_policy
from ringfence.tabular.cpq import Settings, cost_backup, penalized_backup, penalized_fixed_point, run_cpq
from ringfence.tabular.examples import random_policy
from ringfence.tabular.theorems import contraction_modulus, weighted_expansion

from .random_cmdps import make_cmdp

SEEDS = range(200)


def random_penalized(seed):
    rng, cmdp = make_cmdp(seed)
    return rng, cmdp, random_policy(rng, cmdp, 0.5), rng.random(cmdp.cost.shape) < 0.6


def test_with_fixed_safe_pairs_the_operator_contracts_by_the_discount_in_the_maximum_norm():
    for seed in SEEDS:
        rng, cmdp, policy, safe = random_penalized(seed)
        one, other = rng.normal(size=(2, *cmdp.cost.shape))
        apart = penalized_backup(cmdp, policy, one, safe) - penalized_backup(cmdp, policy, other, safe)
        assert np.abs(apart).max() <= cmdp.discount * np.abs(one - other).max() + 1e-12


def test_the_modulus_is_reached_so_it_cannot_be_smaller():
    for seed in SEEDS:
        _, cmdp, policy, safe = random_penalized(seed)
        modulus = contraction_modulus(cmdp, policy, safe)
        one, zero = np.ones(cmdp.cost.shape), np.zeros(cmdp.cost.shape)
        apart = penalized_backup(cmdp, policy, one, safe) - penalized_backup(cmdp, policy, zero, safe)
        assert np.abs(apart).max() == pytest.approx(modulus, abs=1e-12)
        assert modulus <= cmdp.discount + 1e-12


def test_iterating_the_operator_from_anywhere_reaches_its_fixed_point():
    for seed in range(50):
        rng, cmdp, policy, safe = random_penalized(seed)
        q = 100 * rng.normal(size=cmdp.cost.shape)
        for _ in range(400):
            q = penalized_backup(cmdp, policy, q, safe, floor=-1.0)
        np.testing.assert_allclose(q, penalized_fixed_point(cmdp, policy, safe, floor=-1.0), atol=1e-10)


def test_in_the_norm_of_the_log_the_operator_may_expand():
    """Equation (3) measures in the log's norm. An error at an action of share 0.01 that pi plays grows ninefold."""
    cmdp = counterexamples.one_state(reward=[0.0, 0.0], cost=[0.0, 0.0], limit=1.0)
    policy, log = np.array([[0.0, 1.0]]), np.array([[0.99, 0.01]])
    error = np.array([[0.0, 1.0]])
    safe = np.ones((1, 2), bool)
    before = np.sqrt((log * error**2).sum())
    backed_up = penalized_backup(cmdp, policy, error, safe)
    after = np.sqrt((log * backed_up**2).sum())
    assert after / before == pytest.approx(0.9 / 0.1)
    assert weighted_expansion(cmdp, policy, safe, log) == pytest.approx(9.0)


def test_in_the_norm_of_the_policys_own_stationary_visits_it_contracts_by_the_discount():
    for seed in range(50):
        _, cmdp, policy, safe = random_penalized(seed)
        policy = 0.9 * policy + 0.1 * uniform_policy(cmdp)
        lazy = 0.5 * pair_transition(cmdp, policy) + 0.5 * np.eye(cmdp.cost.size)  # same visits, no periods
        stationary = np.linalg.matrix_power(lazy, 2**14).mean(0)
        if stationary.min() < 1e-9:
            continue  # transient pairs have no weight, so this norm does not see them
        expansion = weighted_expansion(cmdp, policy, safe, stationary.reshape(cmdp.cost.shape))
        assert expansion <= cmdp.discount + 1e-9


def test_a_floor_below_every_value_makes_the_operator_pessimistic():
    for seed in SEEDS:
        rng, cmdp, policy, safe = random_penalized(seed)
        signed = counterexamples.Cmdp(
            cmdp.transition, cmdp.reward - rng.random(), cmdp.cost, cmdp.start, cmdp.discount, cmdp.limit
        )
        truth = action_values(signed, policy, signed.reward)
        floor = signed.reward.min() / (1 - signed.discount)
        assert (penalized_fixed_point(signed, policy, safe, floor) <= truth + 1e-9).all()


def test_with_negative_rewards_a_floor_of_zero_is_optimistic():
    for seed in SEEDS:
        _, cmdp, policy, safe = random_penalized(seed)
        negative = counterexamples.Cmdp(cmdp.transition, -cmdp.reward, cmdp.cost, cmdp.start, cmdp.discount, cmdp.limit)
        truth = action_values(negative, policy, negative.reward)
        assert (penalized_fixed_point(negative, policy, safe) >= truth - 1e-9).all()


def test_with_negative_rewards_cpq_as_printed_chooses_the_unsafe_action_and_a_floor_cures_it():
    cmdp = counterexamples.negative_rewards()
    behaviour = np.array([[0.5, 0.5], [0.5, 0.5]])
    printed = run_cpq(cmdp, behaviour, Settings(0.0, 0.0))
    floored = run_cpq(cmdp, behaviour, Settings(0.0, 0.0, floor=-5.0 / (1 - 0.9)))
    assert printed.converged
    assert floored.converged
    assert printed.policy[0].tolist() == [0.0, 1.0]
    assert expected_cost(cmdp, printed.policy) == pytest.approx(10 * cmdp.limit)
    assert floored.policy[0].tolist() == [1.0, 0.0]
    assert expected_cost(cmdp, floored.policy) == 0.0


def test_where_qc_equals_the_limit_the_result_depends_on_where_qc_started():
    """The indicator follows the iterates of Qc: they stay on the side of l from which they came."""
    cmdp = counterexamples.cost_exactly_at_limit()
    policy = np.ones((1, 1))

    def limit_of_qr(q_cost):
        q_reward = np.zeros((1, 1))
        for _ in range(40):  # 2^-40 is still told apart from 0, so Qc has not yet rounded to l
            q_reward = penalized_backup(cmdp, policy, q_reward, q_cost <= cmdp.limit)
            q_cost = cost_backup(cmdp, policy, q_cost, np.zeros((1, 1)), alpha=0.0)
        return float(q_reward[0, 0])

    assert limit_of_qr(np.array([[0.0]])) == pytest.approx(1 / (1 - 0.5))  # from below: safe all the way
    assert limit_of_qr(np.array([[4.0]])) == pytest.approx(1.0)  # from above: never safe


def test_away_from_the_limit_the_indicator_settles_and_so_does_qr():
    for seed in range(100):
        rng, cmdp = make_cmdp(seed)
        policy = random_policy(rng, cmdp)
        truth = action_values(cmdp, policy, cmdp.cost)
        margin = np.abs(truth - cmdp.limit).min()
        if margin < 1e-9:
            continue  # nothing costs anything here, and Qc = l = 0
        q_cost, q_reward = 50 * rng.random(cmdp.cost.shape), np.zeros(cmdp.cost.shape)
        settled = int(np.ceil(np.log(margin / np.abs(q_cost - truth).max()) / np.log(cmdp.discount)))
        for step in range(max(settled, 0) + 400):
            q_reward = penalized_backup(cmdp, policy, q_reward, q_cost <= cmdp.limit)
            q_cost = cost_backup(cmdp, policy, q_cost, np.zeros(cmdp.cost.shape), alpha=0.0)
            if step > settled:
                np.testing.assert_array_equal(q_cost <= cmdp.limit, truth <= cmdp.limit)
        expected = penalized_fixed_point(cmdp, policy, truth <= cmdp.limit)
        np.testing.assert_allclose(q_reward, expected, atol=1e-9)
