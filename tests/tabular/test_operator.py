"""The penalized operator: contraction, pessimism, the floor, and where its limit is not continuous."""

import numpy as np
import pytest

from ringfence.tabular import counterexamples, default_counterexamples
from ringfence.tabular.cmdp import action_values, expected_cost, occupancy, pair_transition, uniform_policy
from ringfence.tabular.cpq import Settings, cost_backup, penalized_backup, penalized_fixed_point, run_cpq
from ringfence.tabular.examples import random_policy
from ringfence.tabular.operators import (
    contraction_modulus,
    fitted_default,
    fitted_evaluation,
    projected_matrix,
    projected_radius,
    shift_bound,
    weighted_expansion,
)

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
    for seed in range(40):
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


# Projected on a linear critic, in the log's norm


def log_of(rng, cmdp):
    """pi_beta and the log's own weight of each pair, mu^beta pi_beta."""
    behaviour = 0.9 * random_policy(rng, cmdp) + 0.1 * uniform_policy(cmdp)
    return behaviour, occupancy(cmdp, behaviour)[:, None] * behaviour


def covered(seeds):
    """Random cases in which the log visits every state."""
    for seed in seeds:
        rng, cmdp, policy, safe = random_penalized(seed)
        behaviour, weight = log_of(rng, cmdp)
        if weight.min() > 1e-6:
            yield rng, cmdp, policy, safe, behaviour, weight


def test_the_shift_of_the_log_bounds_the_expansion_and_so_does_the_ratio_to_the_behaviour():
    contracting = 0
    for _, cmdp, policy, safe, behaviour, weight in covered(SEEDS):
        bound = shift_bound(cmdp, policy, safe, weight)
        assert weighted_expansion(cmdp, policy, safe, weight) <= bound + 1e-9
        ratio = np.where(safe, policy / behaviour, 0.0).max()
        assert bound <= np.sqrt(cmdp.discount * ratio) + 1e-9
        contracting += ratio < 1 / cmdp.discount
    assert contracting > 10


def test_evaluating_the_behaviour_itself_contracts_by_the_root_of_the_discount():
    for rng, cmdp, _, _, behaviour, weight in covered(SEEDS):
        everything = np.ones(weight.shape, bool)
        assert weighted_expansion(cmdp, behaviour, everything, weight) <= np.sqrt(cmdp.discount) + 1e-9
        features = rng.normal(size=(*weight.shape, 2))
        assert projected_radius(cmdp, behaviour, everything, weight, features) <= np.sqrt(cmdp.discount) + 1e-9


def test_a_projection_in_the_logs_norm_never_adds_to_the_expansion():
    for rng, cmdp, policy, safe, _, weight in covered(SEEDS):
        features = rng.normal(size=(*weight.shape, 2))
        radius = projected_radius(cmdp, policy, safe, weight, features)
        assert radius <= weighted_expansion(cmdp, policy, safe, weight) + 1e-9


def test_one_round_of_least_squares_is_the_projected_matrix():
    for rng, cmdp, policy, safe, _, weight in covered(range(50)):
        features = rng.normal(size=(*weight.shape, 2))
        rounds = fitted_evaluation(cmdp, policy, cmdp.reward, safe, weight, features, 3)
        matrix = projected_matrix(cmdp, policy, safe, weight, features)
        np.testing.assert_allclose(rounds[3] - rounds[2], matrix @ (rounds[2] - rounds[1]), atol=1e-8)


def test_with_a_feature_for_every_pair_fitted_evaluation_finds_the_fixed_point():
    for _, cmdp, policy, safe, _, weight in covered(range(20)):
        features = np.eye(weight.size).reshape(*weight.shape, -1)
        found = fitted_evaluation(cmdp, policy, cmdp.reward, safe, weight, features, 300)[-1]
        np.testing.assert_allclose(found.reshape(weight.shape), penalized_fixed_point(cmdp, policy, safe), atol=1e-6)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5, 0.8])
def test_a_critic_linear_in_the_action_diverges_where_the_log_hardly_holds_what_the_policy_plays(share):
    cmdp, behaviour, features = default_counterexamples.diverging_critic(share)
    large, everything = np.array([[0.0, 1.0]]), np.ones((1, 2), bool)
    factor = 2 * 0.9 * (1 + share) / (1 + 3 * share)
    assert projected_radius(cmdp, large, everything, behaviour, features) == pytest.approx(factor)
    rounds = fitted_evaluation(cmdp, large, cmdp.reward, everything, behaviour, features, 200)[:, 0]
    assert contraction_modulus(cmdp, large, everything) == pytest.approx(0.9)
    if share < 2 / 3:
        assert rounds[-1] > 1e3
    else:
        # r is linear in the action too: Q = w (1, 2) with w = 0.1 + 0.9 * 2 w * (1 + q) / (1 + 3 q).
        assert rounds[-1] == pytest.approx(0.1 / (1 - factor), rel=0.05)


@pytest.mark.parametrize(("anchor_weight", "settles"), [(0.4, False), (0.9, False), (1.0, True), (2.0, True)])
def test_there_the_default_converges_only_with_an_anchor_heavy_enough(anchor_weight, settles):
    """The threshold is discount (1 + q) / ((1 + 3 q) (1 - 2 q)) = 0.9 * 1.1 / (1.3 * 0.8) = 0.952 for q = 0.1."""
    cmdp, behaviour, features = default_counterexamples.diverging_critic(0.1)
    coefficients, policy = fitted_default(cmdp, behaviour, features, anchor_weight, step=0.02, rounds=1500)
    assert (anchor_weight > 0.9 * 1.1 / (1.3 * 0.8)) == settles
    if settles:
        assert np.abs(coefficients).max() < 10
        played = np.clip(1 / (anchor_weight * (1 - 2 * 0.1)) - 1, 0, 1)
        assert policy[0, 1] == pytest.approx(played, abs=0.03)
    else:
        assert coefficients[-1, 0] > 1e3
