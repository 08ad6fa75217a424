import numpy as np
import pytest
from scipy.optimize import minimize

from ringfence.tabular.cmdp import (
    action_values,
    expected_cost,
    expected_return,
    log_states,
    mixture_policy,
    occupancy,
    stirred,
)
from ringfence.tabular.examples import corridor, random_policy, stitching
from ringfence.tabular.lp import least_cost, optimal_policy
from ringfence.tabular.naive import divergence, least_cost_within, naive_lagrangian, tilted_policy


@pytest.fixture(scope="module")
def mixed():
    example = stitching()
    parts = [stirred(example.safe, 0.03), stirred(example.unsafe, 0.03)]
    return example, mixture_policy(example.cmdp, parts, [0.5, 0.5])


def test_the_divergence_is_the_sum_of_p_log_p_over_q():
    policy, behaviour = np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([[0.25, 0.75], [0.5, 0.5]])
    expected = [0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75), np.log(2)]
    np.testing.assert_allclose(divergence(policy, behaviour), expected)
    assert divergence(np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]])) == np.inf


def test_the_tilted_policy_beats_every_other_on_its_objective(random_cmdp):
    rng, cmdp = random_cmdp
    behaviour, advantage = random_policy(rng, cmdp, 2.0), rng.normal(size=cmdp.cost.shape)

    def objective(policy):
        return (policy * advantage).sum(1) - 0.7 * divergence(policy, behaviour)

    found = tilted_policy(behaviour, advantage, 0.7)
    for _ in range(100):
        # The objective is concave, so a step towards any other policy must not improve it.
        nearby = 0.98 * found + 0.02 * random_policy(rng, cmdp)
        assert (objective(nearby) <= objective(found) + 1e-12).all()


@pytest.mark.parametrize("make", [stitching, corridor])
def test_the_least_cost_within_a_divergence_matches_a_general_optimiser(make):
    """SLSQP over the logits of all states knows nothing of duality or soft values."""
    example, xi = make(), 0.1
    cmdp, parts = example.cmdp, [stirred(example.safe, 0.03), stirred(example.unsafe, 0.03)]
    behaviour = mixture_policy(cmdp, parts, [0.5, 0.5])

    def policy_of(logits):
        weights = np.exp(logits.reshape(behaviour.shape))
        return weights / weights.sum(1, keepdims=True)

    def slack(logits):
        policy = policy_of(logits)
        return xi - occupancy(cmdp, policy) @ divergence(policy, behaviour)

    found = minimize(
        lambda logits: expected_cost(cmdp, policy_of(logits)),
        np.log(behaviour).ravel(),
        constraints={"type": "ineq", "fun": slack},
        method="SLSQP",
        options={"maxiter": 500},
    )
    least, policy = least_cost_within(cmdp, behaviour, xi)
    assert least == pytest.approx(found.fun, rel=1e-3)
    assert occupancy(cmdp, policy) @ divergence(policy, behaviour) == pytest.approx(xi, rel=1e-3)


def test_without_room_only_the_behaviour_is_left_and_with_all_room_the_least_cost(mixed):
    example, behaviour = mixed
    assert least_cost_within(example.cmdp, behaviour, 1e-8)[0] == pytest.approx(
        expected_cost(example.cmdp, behaviour), rel=1e-3
    )
    assert least_cost_within(example.cmdp, behaviour, 0.0)[0] == pytest.approx(expected_cost(example.cmdp, behaviour))
    assert least_cost_within(example.cmdp, behaviour, 100.0)[0] == pytest.approx(least_cost(example.cmdp), abs=1e-6)


def test_the_two_constraints_of_the_naive_approach_exclude_each_other_on_a_mixed_log(mixed):
    """Section 3.2: near pi_beta means near its unsafe half. No policy within xi = 0.1 of it meets the limit."""
    example, behaviour = mixed
    least, _ = least_cost_within(example.cmdp, behaviour, 0.1)
    assert least > example.cmdp.limit
    assert least_cost_within(example.cmdp, behaviour, 0.3)[0] < example.cmdp.limit


def test_both_multipliers_rise_together_where_the_constraints_conflict(mixed):
    example, behaviour = mixed
    states = log_states(example.cmdp, behaviour)
    tight = naive_lagrangian(example.cmdp, behaviour, states, xi=0.02)
    half = len(tight.multipliers) // 2
    assert (tight.multipliers[-1] > 1.3 * tight.multipliers[half]).all()
    assert (tight.violations[-1] > 0).all()


def test_with_room_the_naive_approach_meets_both_constraints_and_its_policy_is_the_tilted_one(mixed):
    example, behaviour = mixed
    cmdp, states = example.cmdp, log_states(example.cmdp, behaviour)
    loose = naive_lagrangian(cmdp, behaviour, states, xi=0.3)
    assert (np.abs(loose.violations[-1]) < 1e-6).all()
    price, temperature = loose.multipliers[-1]
    q_reward = action_values(cmdp, loose.policy, cmdp.reward)
    q_cost = action_values(cmdp, loose.policy, cmdp.cost)
    np.testing.assert_allclose(
        loose.policy, tilted_policy(behaviour, q_reward - price * q_cost, temperature), atol=1e-6
    )
    assert expected_return(cmdp, loose.policy) < optimal_policy(cmdp).expected_return
