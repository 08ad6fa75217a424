"""What the ideas of the default promise on hundreds of random CMDPs, and the smallest ones on which they fail."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ringfence.tabular import counterexamples, default_counterexamples
from ringfence.tabular.cmdp import (
    action_values,
    expected_cost,
    expected_return,
    log_states,
    state_transition,
    state_values,
    uniform_policy,
)
from ringfence.tabular.cpq import Settings, penalized_fixed_point, run_cpq
from ringfence.tabular.default import (
    DefaultSettings,
    going_on_costing,
    price_of_ending,
    respond,
    run_default,
    safe_anchor,
)
from ringfence.tabular.examples import corridor, garnet, random_policy
from ringfence.tabular.guarantees import (
    best_among_safe,
    cost_ceiling,
    hinge_gap,
    hinge_slack,
    multiplier_gap,
    own_suboptimality,
    slow_pace_exists,
    value_gap,
)
from ringfence.tabular.lp import optimal_policy
from ringfence.tabular.planning import best_values, least_costs


def with_an_end(cmdp):
    """The last state becomes the end of the episode."""
    transition, reward, cost = cmdp.transition.copy(), cmdp.reward.copy(), cmdp.cost.copy()
    transition[-1], reward[-1], cost[-1] = np.eye(cmdp.n_states)[-1], 0.0, 0.0
    return replace(cmdp, transition=transition, reward=reward, cost=cost)


@cache
def cases():
    """200 CMDPs, half with an end, with a behaviour and its support."""
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        cmdp = garnet(rng, states=5, discount=float(rng.choice([0.5, 0.8, 0.9])))
        cmdp = with_an_end(cmdp) if seed % 2 else cmdp
        behaviour = random_policy(rng, cmdp)
        found.append((rng, cmdp, behaviour, (behaviour >= 0.05) | cmdp.terminal[:, None]))
    return found


@cache
def optima():
    """The linear program on the support of each case, None where the limit cannot be met."""
    return [optimal_policy(cmdp, support) for _, cmdp, _, support in cases()]


@cache
def hinge_runs():
    return [
        (cmdp, going_on_costing(cmdp), support, run_default(cmdp, behaviour, support, DefaultSettings(iterations=40)))
        for _, cmdp, behaviour, support in cases()
    ]


# Termination that goes on costing


def test_going_on_costing_adds_the_limit_times_the_discount_at_the_end():
    for rng, cmdp, _, _ in cases()[1::8]:
        policy = random_policy(rng, cmdp)
        following, now, added = state_transition(cmdp, policy), np.eye(cmdp.n_states), np.zeros(cmdp.n_states)
        ended = now @ cmdp.terminal
        for step in range(1, 400):
            added += cmdp.limit * cmdp.discount ** (step - 1) * ended * (1 if step == 1 else 0)
            now = now @ following
            added += cmdp.limit * cmdp.discount**step * (now @ cmdp.terminal - ended)
            ended = now @ cmdp.terminal
        np.testing.assert_allclose(price_of_ending(cmdp, policy), added, atol=1e-9)
        costing = going_on_costing(cmdp)
        total = state_values(costing, policy, costing.cost)
        np.testing.assert_allclose(total - state_values(cmdp, policy, cmdp.cost), added, atol=1e-9)


def test_inside_the_limit_with_the_end_costing_means_inside_the_limits_pace_while_the_episode_lasts():
    """V + l E[discount^T] <= l exactly where the cost per discounted step before the end is at most (1 - discount) l."""
    both = set()
    for rng, cmdp, _, _ in cases()[1::2]:
        policy, costing = random_policy(rng, cmdp, 0.3), going_on_costing(cmdp)
        alive = state_values(cmdp, policy, np.where(cmdp.terminal[:, None], 0.0, 1.0) * np.ones_like(cmdp.cost))
        pace = state_values(cmdp, policy, cmdp.cost)[:-1] / alive[:-1]
        inside = state_values(costing, policy, costing.cost)[:-1] <= cmdp.limit
        np.testing.assert_array_equal(inside, pace <= (1 - cmdp.discount) * cmdp.limit)
        both |= set(inside.tolist())
    assert both == {True, False}


def test_without_a_cost_after_the_end_stopping_is_the_cheap_way_out():
    cmdp = default_counterexamples.ending_is_cheap()
    everything = np.ones((2, 2), bool)
    values, policy = best_values(cmdp, -cmdp.cost, everything)
    assert -values[0] == pytest.approx(1.0)
    assert policy[0].tolist() == [0.0, 1.0]
    costing = going_on_costing(cmdp)
    values, policy = best_values(costing, -costing.cost, everything)
    assert -values[0] == pytest.approx(0.3 / (1 - 0.9))
    assert policy[0].tolist() == [1.0, 0.0]


def test_the_end_that_costs_makes_a_safe_way_through_the_corridor_look_unsafe():
    """Running two hot cells costs 1.54 discounted; with a limit of 2 that is safe, but the end adds 2 * 0.9^8 or so."""
    example = corridor(limit=2.0)
    best = optimal_policy(example.cmdp)
    dearer = optimal_policy(going_on_costing(example.cmdp))
    assert best.expected_cost == pytest.approx(2.0)
    assert expected_cost(example.cmdp, dearer.policy) < 2.0
    assert dearer.expected_return < best.expected_return


# The anchor and the objective


def test_the_anchor_is_the_behaviour_given_that_it_was_safe_or_least_costly():
    behaviour = np.array([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
    q_cost = np.array([[0.5, 0.9, 2.0], [3.0, 2.0, 4.0]])
    anchor = safe_anchor(behaviour, q_cost, limit=1.0, support=np.ones((2, 3), bool))
    np.testing.assert_allclose(anchor, [[0.4, 0.6, 0.0], [0.0, 1.0, 0.0]])


def test_the_objective_is_the_return_less_the_penalised_excess_plus_the_anchor():
    """pi = (1, 0) has Vr = Vc = 10, so Qr = (10, 9.1), Qc = (10, 9); size 10, penalty 3 * 10 / 2, anchor on action 1."""
    cmdp = counterexamples.greedy_cycle()
    support, behaviour = np.ones((1, 2), bool), np.array([[0.5, 0.5]])
    response = respond(cmdp, behaviour, np.ones(1), support, np.array([[1.0, 0.0]]), DefaultSettings(anchor_weight=0.5))
    np.testing.assert_allclose(response.objective, [[10 - 15 * 8, 9.1 - 15 * 7 + 5]], rtol=1e-5)
    assert response.regret[0] == pytest.approx(9.1 - 105 + 5 - (10 - 120), rel=1e-5)
    # Excess 8 against the cheapest action's 7, so a slack of 1: (10 - (9.1 + 5) + regret 19.1) / 15.
    assert hinge_slack(response, support)[0] == pytest.approx(1.0, rel=1e-5)


# A ceiling on the cost


def test_every_policy_of_the_hinge_stays_under_its_ceiling():
    for _, costing, support, response in hinge_runs():
        ceiling = cost_ceiling(costing, support, hinge_slack(response, support))
        assert (state_values(costing, response.policy, costing.cost) <= ceiling + 1e-9).all()


def test_a_heavier_penalty_lowers_the_ceiling_towards_the_one_without_slack():
    heavier = 0
    for _, cmdp, behaviour, support in cases()[::4]:
        costing, states = going_on_costing(cmdp), log_states(cmdp, behaviour)
        ceilings = []
        for weight in (3.0, 300.0):
            settings = DefaultSettings(penalty_weight=weight, iterations=40)
            response = run_default(cmdp, behaviour, support, settings)
            response = respond(costing, behaviour, states, support, response.policy, settings)
            ceilings.append(cost_ceiling(costing, support, hinge_slack(response, support)).max())
        assert cost_ceiling(costing, support).max() <= min(ceilings) + 1e-9
        heavier += ceilings[1] < ceilings[0]
    assert heavier > 25


def test_with_an_action_at_the_limits_pace_in_every_state_the_ceiling_is_the_limit():
    held = 0
    for _, cmdp, _, support in cases():
        if slow_pace_exists(going_on_costing(cmdp), support):
            held += 1
            np.testing.assert_allclose(cost_ceiling(going_on_costing(cmdp), support), cmdp.limit)
    assert held > 50


def test_every_fixed_point_of_cpq_with_recovery_is_under_the_ceiling_without_slack():
    settled = 0
    for _, cmdp, behaviour, _ in cases():
        outcome = run_cpq(cmdp, behaviour, Settings(0.0, 0.0))
        if outcome.converged:
            settled += 1
            cost = state_values(cmdp, outcome.policy, cmdp.cost)
            assert (cost <= cost_ceiling(cmdp, behaviour > 0) + 1e-9).all()
    assert settled > 50


def test_where_ties_stay_no_ceiling_holds():
    """CPQ rests at the behaviour, (0.5, 0.5), whose cost 5 leaves nothing safe; the free action would cost nothing."""
    cmdp = counterexamples.greedy_cycle()
    outcome = run_cpq(cmdp, uniform_policy(cmdp), Settings(0.0, 0.0, ties="stay"))
    assert outcome.converged
    assert expected_cost(cmdp, outcome.policy) == pytest.approx(5.0)
    np.testing.assert_allclose(cost_ceiling(cmdp, np.ones((1, 2), bool)), cmdp.limit)


def hinge_response(weight, policy):
    cmdp = counterexamples.greedy_cycle()
    settings = DefaultSettings(penalty_weight=weight * cmdp.limit / expected_return(cmdp, policy), anchor_weight=0.0)
    return respond(cmdp, policy, np.ones(1), np.ones((1, 2), bool), policy, settings)


@pytest.mark.parametrize("weight", [1.0, 1.1, 1.2, 10.0])
def test_a_hinge_rests_above_the_limit_by_the_reward_difference_over_its_weight(weight):
    """At rest Qc(costly) = l + 0.9 / weight = 1 + 0.9 Vc; so Vc is above l = 2 for every weight below 1.125."""
    cost = (2 + 0.9 / weight - 1) / 0.9
    policy = np.array([[cost * 0.1, 1 - cost * 0.1]])
    response = hinge_response(weight, policy)
    assert response.regret[0] == pytest.approx(0.0, abs=1e-4)  # size carries a 1e-6 against division by 0
    assert response.q_cost[0, 0] == pytest.approx(2 + 0.9 / weight)
    assert (expected_cost(counterexamples.greedy_cycle(), policy) > 2.0) == (weight < 1.125)


def test_a_hinge_lighter_than_the_reward_difference_pays_for_ever():
    """Both actions are over the limit, so the costly one is penalised by weight * 1 more and earns 0.9 more."""
    assert hinge_response(0.89, np.array([[1.0, 0.0]])).regret[0] == pytest.approx(0.0)
    assert hinge_response(0.91, np.array([[1.0, 0.0]])).regret[0] > 0.005


def test_a_limit_from_each_state_does_not_chain():
    """From every state some policy costs at most 1, yet CPQ with recovery and a heavy hinge cost 1.9 from the start."""
    cmdp, behaviour = default_counterexamples.limit_does_not_chain(), np.full((3, 2), 0.5)
    np.testing.assert_allclose(least_costs(cmdp), [1.0, 0.0, 0.0])
    greedy = run_cpq(cmdp, behaviour, Settings(0.0, 0.0))
    hinge = run_default(
        cmdp, behaviour, np.ones((3, 2), bool), DefaultSettings(penalty_weight=100.0, anchor_weight=0.0)
    )
    assert greedy.converged
    assert expected_cost(cmdp, greedy.policy) == pytest.approx(1.9)
    assert expected_cost(cmdp, hinge.policy) == pytest.approx(1.9, abs=0.01)
    assert optimal_policy(cmdp).expected_cost <= 1 + 1e-9
    np.testing.assert_allclose(cost_ceiling(cmdp, np.ones((3, 2), bool)), [1.9, 1.0, 1.0])


def test_a_multiplier_measured_on_the_log_misses_a_cost_that_only_the_start_pays():
    cmdp, behaviour = default_counterexamples.log_hides_the_start(), np.full((2, 2), 0.5)
    everything = np.ones((2, 2), bool)
    shared = {"kind": "multiplier", "anchor_weight": 0.0, "penalty_weight": 0.5, "iterations": 2000}
    on_log = run_default(cmdp, behaviour, everything, DefaultSettings(measured_at="log", **shared))
    at_start = run_default(cmdp, behaviour, everything, DefaultSettings(measured_at="start", rate=0.02, **shared))
    assert on_log.penalty == 0.0
    assert expected_cost(cmdp, on_log.policy) == pytest.approx(2.0, abs=1e-6)
    assert expected_cost(cmdp, at_start.policy) == pytest.approx(1.0, abs=0.1)


# Distance from the optimum


def test_the_policys_own_advantages_bound_what_it_gives_away():
    checked = 0
    for (rng, cmdp, _, support), best in zip(cases(), optima(), strict=True):
        if best is None:
            continue
        checked += 1
        for concentration in (0.2, 2.0):
            policy = random_policy(rng, cmdp, concentration)
            found = own_suboptimality(cmdp, policy, support)
            assert best.expected_return - expected_return(cmdp, policy) <= found.bound + 1e-7
    assert checked > 150


def test_at_the_optimum_the_bound_is_zero():
    for (_, cmdp, _, support), best in zip(cases(), optima(), strict=True):
        if best is not None:
            assert own_suboptimality(cmdp, best.policy, support).bound == pytest.approx(0.0, abs=1e-6)


def test_the_bound_holds_with_critics_that_err_by_a_known_amount():
    for (rng, cmdp, _, support), best in zip(cases(), optima(), strict=True):
        if best is None:
            continue
        policy = random_policy(rng, cmdp)
        noise = rng.uniform(-0.2, 0.2, (2, *cmdp.cost.shape))
        found = own_suboptimality(
            cmdp,
            policy,
            support,
            action_values(cmdp, policy, cmdp.reward) + noise[0],
            action_values(cmdp, policy, cmdp.cost) + noise[1],
            reward_error=0.2,
            cost_error=0.2,
        )
        assert best.expected_return - expected_return(cmdp, policy) <= found.bound + 1e-7


def test_critics_whose_errors_hide_an_advantage_are_allowed_for():
    """Q = (0, 1), discount 0.5, pi earns 0 and the best 2. Critics off by 0.5 may say (0.5, 0.5): no advantage at all."""
    cmdp = counterexamples.one_state(reward=[0.0, 1.0], cost=[0.0, 0.0], limit=1.0, discount=0.5)
    policy, everything = np.array([[1.0, 0.0]]), np.ones((1, 2), bool)
    found = own_suboptimality(cmdp, policy, everything, q_reward=np.full((1, 2), 0.5), reward_error=0.5)
    assert found.bound == pytest.approx(2.0)


def test_the_bound_is_the_least_over_all_prices():
    for (rng, cmdp, _, support), best in zip(cases()[:40], optima()[:40], strict=True):
        if best is None:
            continue
        policy, horizon = random_policy(rng, cmdp), 1 / (1 - cmdp.discount)
        q_r, q_c = action_values(cmdp, policy, cmdp.reward), action_values(cmdp, policy, cmdp.cost)
        a_r, a_c = (q - (policy * q).sum(1)[:, None] for q in (q_r, q_c))
        found = own_suboptimality(cmdp, policy, support, reward_error=0.1, cost_error=0.2)

        def promised(price, a_r=a_r, a_c=a_c, cmdp=cmdp, policy=policy, support=support, horizon=horizon):
            unused = cmdp.limit - expected_cost(cmdp, policy) + 0.2 + 2 * 0.2 * horizon
            return price * unused + horizon * max((a_r - price * a_c)[support].max(), 0.0) + 2 * 0.1 * horizon

        assert promised(found.price) == pytest.approx(found.bound)
        assert min(promised(price) for price in np.linspace(0, 2 * found.price + 1, 200)) >= found.bound - 1e-7


def test_where_nothing_on_the_support_meets_the_limit_there_is_nothing_to_give_away():
    cmdp = counterexamples.no_safe_action()
    assert own_suboptimality(cmdp, uniform_policy(cmdp), np.ones((1, 2), bool)).bound == -np.inf


def test_theorem_2_becomes_a_guarantee_from_quantities_of_the_policy_alone():
    """|R* - V-hat| <= own suboptimality + value gap, for any policy inside the limit, any safe set and any error."""
    checked = 0
    for (rng, cmdp, _, support), best in zip(cases(), optima(), strict=True):
        policy = random_policy(rng, cmdp)
        safe = rng.random(support.shape) < 0.8
        q_reward = penalized_fixed_point(cmdp, policy, safe) + 0.3 * rng.normal(size=safe.shape)
        gap = value_gap(cmdp, policy, q_reward, safe)
        values = state_values(cmdp, policy, cmdp.reward)
        assert (np.abs(values - (policy * q_reward).sum(1)) <= gap + 1e-9).all()
        if best is not None and expected_cost(cmdp, policy) <= cmdp.limit and support[policy > 0].all():
            checked += 1
            promised = own_suboptimality(cmdp, policy, support).bound + cmdp.start @ gap
            assert abs(best.expected_return - cmdp.start @ (policy * q_reward).sum(1)) <= promised + 1e-7
    assert checked > 10


def test_the_value_gap_is_exact_for_a_constant_error():
    """One state, r = 1, discount 0.5: V = 2. Qr-hat = 3 has a residual of 0.5, which pi meets at every step: 0.5 / 0.5."""
    cmdp, only = counterexamples.one_state(reward=[1.0], cost=[0.0], limit=1.0, discount=0.5), np.ones((1, 1))
    assert value_gap(cmdp, only, np.array([[3.0]]), only > 0)[0] == pytest.approx(1.0)
    # If the only pair counts as unsafe, Qr-hat = 1 solves the equation and the value 2 is lost from the second step on.
    assert value_gap(cmdp, only, np.array([[1.0]]), only < 0)[0] == pytest.approx(0.5 * 2 / (1 - 0.5))


def test_the_hinge_gives_the_optimum_no_more_than_its_own_terms_say():
    for cmdp, costing, support, response in hinge_runs():
        best = optimal_policy(costing, support)
        if best is not None:
            given = best.expected_return - expected_return(cmdp, response.policy)
            assert given <= hinge_gap(costing, response, best.policy) + 1e-7


def test_the_multiplier_is_parted_from_the_optimum_by_its_anchor_and_the_unused_limit():
    for _, cmdp, behaviour, support in cases()[::4]:
        costing = going_on_costing(cmdp)
        best = optimal_policy(costing, support)
        if best is not None:
            settings = DefaultSettings(kind="multiplier", anchor_weight=0.02, measured_at="start", iterations=60)
            response = run_default(cmdp, behaviour, support, settings)
            given = best.expected_return - expected_return(cmdp, response.policy)
            assert given <= multiplier_gap(costing, response) + 1e-7


def test_converged_cpq_is_the_best_among_policies_that_play_what_is_safe_against_it():
    checked = 0
    for _, cmdp, behaviour, _ in cases():
        outcome = run_cpq(cmdp, behaviour, Settings(0.0, 0.0))
        safe = outcome.last.q_cost <= cmdp.limit
        if outcome.converged and safe[outcome.policy > 0].all():
            checked += 1
            earned = state_values(cmdp, outcome.policy, cmdp.reward)
            np.testing.assert_allclose(earned, best_among_safe(cmdp, outcome.last.q_cost), atol=1e-9)
    assert checked > 50
