"""Bounds on the true cost from a finite log: the intervals, the worst model inside them, and a thousand logs."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.optimize import linprog

from ringfence.data.dataset import Dataset
from ringfence.tabular.cmdp import Cmdp, expected_cost, state_transition, state_values, stirred
from ringfence.tabular.cpq import Settings, run_cpq
from ringfence.tabular.examples import corridor, garnet, random_policy, stitching
from ringfence.tabular.logs import cloned_policy, counted_model, embed_actions, sample_log
from ringfence.tabular.samples import (
    any_policy_radius,
    error_for,
    fixed_policy_radius,
    judged_costs,
    transition_intervals,
    upper_costs,
    worst_expectation,
)

DELTA, LOGS = 0.1, 1000


@cache
def sampled():
    """A thousand logs of 40 to 300 rows, each of a CMDP of its own: the truth, a fixed policy, and the counted model."""
    found = []
    for seed in range(LOGS):
        rng = np.random.default_rng(seed)
        cmdp = garnet(rng, states=3, actions=2, discount=0.8)
        behaviour, fixed = random_policy(rng, cmdp), random_policy(rng, cmdp)
        log = sample_log(cmdp, {"only": behaviour}, int(rng.integers(40, 300)), rng)
        found.append((cmdp, fixed, counted_model(log, 2, cmdp.discount, cmdp.limit, worst_cost=1.0)))
    return found


def learned(model):
    return run_cpq(model.cmdp, model.behaviour, Settings(0.0, 0.0, iterations=20)).policy


def broken(bounds, cmdp, policy):
    """Whether the true cost of some state is above its bound."""
    return bool((state_values(cmdp, policy, cmdp.cost) > bounds + 1e-9).any())


def test_a_next_state_never_seen_in_n_rows_has_at_most_the_probability_that_would_hide_it():
    """(1 - p)^n = delta / (2 * 8 numbers * 5 rows)."""
    counts = np.zeros((2, 2, 2))
    counts[0, 0] = [0, 5]
    low, high = transition_intervals(counts, DELTA)
    share = DELTA / (2 * 8 * 5)
    assert (1 - high[0, 0, 0]) ** 5 == pytest.approx(share)
    assert low[0, 0, 1] ** 5 == pytest.approx(share)
    assert (low[0, 0, 0], high[0, 0, 1]) == (0.0, 1.0)
    assert (low[1].min(), high[1].max()) == (0.0, 1.0)  # without rows anything is possible


def test_the_worst_expectation_is_that_of_a_linear_program():
    rng = np.random.default_rng(0)
    for _ in range(50):
        centre, width, values = rng.dirichlet(np.ones(5)), rng.random(5) * 0.3, rng.normal(size=5)
        low, high = np.maximum(centre - width, 0), np.minimum(centre + width, 1)
        found, probabilities = worst_expectation(low, high, values)
        program = linprog(-values, A_eq=np.ones((1, 5)), b_eq=[1.0], bounds=list(zip(low, high, strict=True)))
        assert found == pytest.approx(-program.fun)
        assert probabilities.sum() == pytest.approx(1.0)


def test_the_upper_cost_is_the_limit_of_backups_in_the_worst_model():
    for cmdp, fixed, model in sampled()[:10]:
        low, high = transition_intervals(model.counts, DELTA)
        cost, values = np.where(model.known, model.cmdp.cost, 1.0), np.zeros(3)
        for _ in range(200):
            values = (fixed * (cost + cmdp.discount * worst_expectation(low, high, values)[0])).sum(1)
        np.testing.assert_allclose(upper_costs(model, fixed, DELTA, 1.0), values, atol=1e-8)


def test_a_policy_learned_from_the_log_costs_more_than_the_log_says_but_not_more_than_the_bound():
    """Coverage over a thousand logs, every state at once. The bound for a fixed policy is not meant for this."""
    plain = bound = rough = 0
    for cmdp, _, model in sampled():
        policy = learned(model)
        plain += broken(state_values(model.cmdp, policy, model.cmdp.cost), cmdp, policy)
        bound += broken(upper_costs(model, policy, DELTA, 1.0), cmdp, policy)
        rough += broken(judged_costs(model, policy, any_policy_radius(model, DELTA, 1.0), 1.0), cmdp, policy)
    assert plain > 0.3 * LOGS
    assert bound <= DELTA * LOGS
    assert rough <= DELTA * LOGS


def test_a_judge_with_a_log_of_its_own_covers_the_true_cost():
    assert (
        sum(
            broken(judged_costs(model, fixed, fixed_policy_radius(model, DELTA, 1.0), 1.0), cmdp, fixed)
            for cmdp, fixed, model in sampled()
        )
        <= DELTA * LOGS
    )


def test_the_radius_is_hoeffdings_with_a_union_over_pairs_and_numbers_of_rows():
    """Costs up to 1 and discount 0.8: values up to 5. For all policies at once, 2^S sets of next states more."""
    for _, _, model in sampled()[:20]:
        rows, n = model.rows, model.rows.sum()
        for s, a in np.ndindex(rows.shape):
            fixed = np.sqrt(np.log(6 * n / DELTA) / (2 * rows[s, a])) if rows[s, a] else np.inf
            every = np.sqrt(np.log(2**3 * 6 * n / DELTA) / (2 * rows[s, a])) if rows[s, a] else np.inf
            assert fixed_policy_radius(model, DELTA, 1.0)[s, a] == pytest.approx(5 * min(fixed, 1))
            assert any_policy_radius(model, DELTA, 1.0)[s, a] == pytest.approx(5 * min(every, 1))
        policy = learned(model)
        doubt = (policy * fixed_policy_radius(model, DELTA, 1.0)).sum(1)
        visits = np.linalg.inv(np.eye(3) - 0.8 * state_transition(model.cmdp, policy))
        expected = state_values(model.cmdp, policy, model.cmdp.cost) + 0.8 * visits @ doubt
        found = judged_costs(model, policy, fixed_policy_radius(model, DELTA, 1.0), 1.0)
        np.testing.assert_allclose(found, np.minimum(expected, 5.0))


def test_counted_as_free_states_that_the_log_only_arrives_in_break_the_bound():
    """Short logs of the machine: one that broke at the last row was never seen being mended, which costs 15."""
    example = stitching()
    leaping = {"leap": stirred(np.eye(3)[[2, 2, 2, 2]], 0.1)}
    broken_free = broken_worst = 0
    for seed in range(200):
        log = sample_log(example.cmdp, leaping, 2, np.random.default_rng(seed))
        model = counted_model(log, 3, 0.9, 1.0, worst_cost=15.0)
        free = replace(model, cmdp=replace(model.cmdp, cost=np.where(model.known, model.cmdp.cost, 0.0)))
        policy = cloned_policy(model)
        truth = expected_cost(example.cmdp, policy)
        broken_worst += truth > example.cmdp.start @ upper_costs(model, policy, DELTA, 15.0) + 1e-9
        optimistic = state_values(free.cmdp, policy, free.cmdp.cost)
        broken_free += truth > example.cmdp.start @ optimistic + 1e-9
    assert broken_worst == 0
    assert broken_free > 150


def test_after_the_end_of_an_episode_nothing_is_in_doubt():
    """Running through a corridor whose middle cell costs 1: the end is free, and next to nothing can precede it."""
    example = corridor(length=3)
    log = sample_log(example.cmdp, {"run": example.unsafe}, 4000, np.random.default_rng(0))
    model = counted_model(log, 3, 0.9, 1.5, worst_cost=1.0)
    bound = upper_costs(model, example.unsafe, DELTA, 1.0)
    assert bound[3] == 0.0
    assert 0.0 < bound[2] < 0.2
    assert 1.0 < bound[1] < 1.2


def test_a_state_that_has_only_ever_stayed_for_nothing_is_not_taken_for_the_end():
    """Both actions of the only state were logged, free and without reward; what a rare next state would cost is in doubt."""
    cmdp = Cmdp(np.eye(2)[:, None, :].repeat(2, 1), np.zeros((2, 2)), np.zeros((2, 2)), np.eye(2)[0], 0.8, 1.0)
    states, actions = np.zeros(20, int), np.arange(20) % 2
    log = Dataset.from_arrays(
        observations=np.eye(2)[states],
        actions=embed_actions(actions, 2),
        rewards=np.zeros(20),
        costs=np.zeros(20),
        next_observations=np.eye(2)[states],
        terminations=np.zeros(20, bool),
        truncations=np.arange(20) == 19,
    )
    model = counted_model(log, 2, cmdp.discount, cmdp.limit, worst_cost=1.0)
    policy = np.full((2, 2), 0.5)
    assert model.cmdp.terminal[0]
    assert upper_costs(model, policy, DELTA, 1.0)[0] > 0.5
    assert judged_costs(model, policy, fixed_policy_radius(model, DELTA, 1.0), 1.0)[0] > 0.5


def test_the_error_shrinks_with_the_root_of_the_rows_and_bounds_the_log_dependent_one():
    shape, checked = (3, 2), 0
    assert error_for(400, 1000, shape, 0.8, DELTA, 1.0) == pytest.approx(
        0.5 * error_for(100, 1000, shape, 0.8, DELTA, 1.0)
    )
    for cmdp, _, model in sampled():
        policy, rows = learned(model), model.rows
        if (rows[policy > 0] == 0).any():
            continue
        checked += 1
        error = error_for(rows[policy > 0].min(), rows.sum(), shape, cmdp.discount, DELTA, 1.0)
        counted = state_values(model.cmdp, policy, model.cmdp.cost)
        rough = judged_costs(model, policy, any_policy_radius(model, DELTA, 1.0), 1.0)
        assert (rough <= counted + error + 1e-9).all()
    assert checked > 500
