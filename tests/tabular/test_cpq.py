"""CPQ's three steps on tables, each against a loop, a brute force or a rebuilt CMDP."""

import numpy as np
import pytest
from scipy.optimize import minimize

from ringfence.errors import InvalidSetting
from ringfence.tabular import counterexamples
from ringfence.tabular.cmdp import (
    Cmdp,
    action_values,
    expected_cost,
    expected_return,
    mixture_policy,
    state_values,
    stirred,
    uniform_policy,
)
from ringfence.tabular.cpq import (
    Settings,
    cost_backup,
    cost_fixed_point,
    cost_objective,
    critics,
    improved_policy,
    improved_policy_in_place,
    iterate,
    out_of_distribution,
    penalized_backup,
    penalized_fixed_point,
    push_ratio,
    run_cpq,
    uniform_over,
)
from ringfence.tabular.examples import corridor, random_policy, stitching
from ringfence.tabular.logs import counted_model, sample_log
from ringfence.tabular.lp import optimal_policy

# Step 1


def test_the_cost_backup_minimises_the_cost_objective(random_cmdp):
    """Equation (6) against a numerical minimum of Equation (1)."""
    rng, cmdp = random_cmdp
    policy, behaviour, nu = (random_policy(rng, cmdp, 2.0) for _ in range(3))
    states = rng.dirichlet(np.full(cmdp.n_states, 5.0))
    q, alpha = rng.random(cmdp.cost.shape), 0.3
    target = np.empty_like(q)
    for s, a in np.ndindex(q.shape):
        expected_next = sum(cmdp.transition[s, a, t] * policy[t] @ q[t] for t in range(cmdp.n_states))
        target[s, a] = cmdp.cost[s, a] + cmdp.discount * expected_next
    found = cost_backup(cmdp, policy, q, push_ratio(nu, behaviour), alpha)
    numeric = minimize(
        lambda x: cost_objective(x.reshape(q.shape), target, nu, behaviour, states, alpha), target.ravel()
    )
    at_found = cost_objective(found, target, nu, behaviour, states, alpha)
    assert at_found <= numeric.fun + 1e-9
    for s, a in np.ndindex(q.shape):  # and any step away from it is worse
        nudged = found.copy()
        nudged[s, a] += 1e-2
        assert cost_objective(nudged, target, nu, behaviour, states, alpha) > at_found


def test_the_cost_objective_falls_without_end_at_a_pair_the_log_never_holds():
    behaviour, nu, states = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), np.ones(1)
    values = [cost_objective(np.array([[0.0, q]]), np.zeros((1, 2)), nu, behaviour, states, 1.0) for q in (1, 10, 100)]
    assert values == [-1, -10, -100]
    with pytest.raises(InvalidSetting, match="never holds"):
        push_ratio(nu, behaviour)


def test_the_cost_fixed_point_is_left_alone_by_the_backup(random_cmdp):
    rng, cmdp = random_cmdp
    policy, behaviour, nu = (random_policy(rng, cmdp, 2.0) for _ in range(3))
    ratio = push_ratio(nu, behaviour)
    fixed = cost_fixed_point(cmdp, policy, ratio, 0.5)
    np.testing.assert_allclose(cost_backup(cmdp, policy, fixed, ratio, 0.5), fixed)
    assert (fixed >= action_values(cmdp, policy, cmdp.cost)).all()


def test_stochastic_gradients_on_logged_rows_find_the_same_cost_critic():
    """Algorithm 1's way: one row at a time, one action of nu at a time, the target held fixed."""
    cmdp = stitching().cmdp
    rng = np.random.default_rng(0)
    log = sample_log(cmdp, {"noisy": uniform_policy(cmdp)}, 4000, rng)
    model = counted_model(log, 3, cmdp.discount, cmdp.limit)
    policy, alpha = random_policy(rng, cmdp), 0.5
    nu = uniform_over(np.broadcast_to([False, False, True], cmdp.cost.shape))
    exact = cost_fixed_point(model.cmdp, policy, push_ratio(nu, model.behaviour), alpha)
    states, following = log.observations.argmax(1), log.next_observations.argmax(1)
    actions = np.floor((log.actions[:, 0] + 1) / 2 * 3).astype(int)
    q = np.zeros(cmdp.cost.shape)
    average, taken = np.zeros_like(q), 0
    for epoch in range(60):
        rate = 0.1 / (1 + epoch / 4)
        for i in rng.permutation(len(states)):
            s, a = states[i], actions[i]
            target = log.costs[i] + cmdp.discount * policy[following[i]] @ q[following[i]]
            q[s, a] -= rate * 2 * (q[s, a] - target)
            q[s, 2] += rate * alpha  # nu's only action
        if epoch >= 30:
            average, taken = average + q, taken + 1
    np.testing.assert_allclose(average / taken, exact, rtol=0.05)


# Step 2


def test_the_penalized_backup_follows_its_definition_pair_by_pair(random_cmdp):
    rng, cmdp = random_cmdp
    policy, q = random_policy(rng, cmdp), rng.normal(size=cmdp.cost.shape)
    safe, floor = rng.random(cmdp.cost.shape) < 0.5, -3.0
    backup = penalized_backup(cmdp, policy, q, safe, floor)
    for s, a in np.ndindex(q.shape):
        expected = cmdp.reward[s, a]
        for t, b in np.ndindex(q.shape):
            value = q[t, b] if safe[t, b] else floor
            expected += cmdp.discount * cmdp.transition[s, a, t] * policy[t, b] * value
        assert backup[s, a] == pytest.approx(expected)


def test_the_papers_floor_is_multiplication_by_the_indicator(random_cmdp):
    rng, cmdp = random_cmdp
    policy, q = random_policy(rng, cmdp), rng.random(cmdp.cost.shape)
    safe = rng.random(cmdp.cost.shape) < 0.5
    np.testing.assert_allclose(
        penalized_backup(cmdp, policy, q, safe),
        cmdp.reward + cmdp.discount * np.einsum("sat,tb,tb,tb->sa", cmdp.transition, policy, safe, q),
    )


def test_the_penalized_fixed_point_is_the_value_of_a_process_stopped_at_unsafe_pairs(random_cmdp):
    """Rebuild the stopped process as pairs plus an end that has paid the floor, and solve that."""
    rng, cmdp = random_cmdp
    policy, safe, floor = random_policy(rng, cmdp), rng.random(cmdp.cost.shape) < 0.6, -2.0
    pairs = list(np.ndindex(cmdp.cost.shape))
    matrix, paid = np.zeros((len(pairs), len(pairs))), np.zeros(len(pairs))
    for i, (s, a) in enumerate(pairs):
        paid[i] = cmdp.reward[s, a]
        for j, (t, b) in enumerate(pairs):
            chance = cmdp.transition[s, a, t] * policy[t, b]
            if safe[t, b]:
                matrix[i, j] = chance
            else:
                paid[i] += cmdp.discount * chance * floor
    expected = np.linalg.solve(np.eye(len(pairs)) - cmdp.discount * matrix, paid)
    np.testing.assert_allclose(penalized_fixed_point(cmdp, policy, safe, floor).ravel(), expected, atol=1e-12)


# Step 3


def test_improvement_takes_the_best_safe_action():
    q_reward, q_cost = np.array([[1.0, 2.0, 3.0]]), np.array([[0.0, 0.5, 2.0]])
    np.testing.assert_array_equal(improved_policy(q_reward, q_cost, limit=1.0), [[0, 1, 0]])


def test_a_cost_equal_to_the_limit_is_safe():
    q_reward, q_cost = np.array([[1.0, 2.0]]), np.array([[0.0, 1.0]])
    np.testing.assert_array_equal(improved_policy(q_reward, q_cost, limit=1.0), [[0, 1]])


def test_improvement_maximises_equation_4_over_every_action(random_cmdp):
    rng, cmdp = random_cmdp
    q_reward, q_cost = rng.random(cmdp.cost.shape), rng.random(cmdp.cost.shape)
    policy = improved_policy(q_reward, q_cost, limit=0.5)
    for s in range(cmdp.n_states):
        objective = [(q_cost[s, a] <= 0.5) * q_reward[s, a] for a in range(cmdp.n_actions)]
        assert policy[s] @ objective == max(objective)


def test_where_nothing_is_safe_the_least_costly_action_is_taken():
    q_reward, q_cost = np.array([[9.0, 1.0, 2.0]]), np.array([[5.0, 3.0, 3.0]])
    np.testing.assert_array_equal(improved_policy(q_reward, q_cost, limit=1.0), [[0, 0, 1]])


def test_where_nothing_is_safe_the_printed_gradient_leaves_the_policy_as_it_is():
    policy = np.array([[0.2, 0.3, 0.5]])
    q_reward, q_cost = np.array([[9.0, 1.0, 2.0]]), np.array([[5.0, 3.0, 3.0]])
    np.testing.assert_allclose(improved_policy_in_place(policy, q_reward, q_cost, limit=1.0), policy)


def test_where_one_action_is_best_both_tie_rules_take_it(random_cmdp):
    rng, cmdp = random_cmdp
    q_reward, q_cost = 0.1 + rng.random(cmdp.cost.shape), rng.random(cmdp.cost.shape)
    q_cost[:, 0] = 0.0
    taken = improved_policy(q_reward, q_cost, limit=0.5)
    np.testing.assert_array_equal(
        improved_policy_in_place(random_policy(rng, cmdp), q_reward, q_cost, limit=0.5), taken
    )


def test_among_actions_that_tie_the_gradient_keeps_the_proportions_or_has_none_to_keep():
    q_reward, q_cost = np.array([[1.0, 1.0, 0.5]]), np.zeros((1, 3))
    kept = improved_policy_in_place(np.array([[0.1, 0.3, 0.6]]), q_reward, q_cost, limit=1.0)
    np.testing.assert_allclose(kept, [[0.25, 0.75, 0.0]])
    fresh = improved_policy_in_place(np.array([[0.0, 0.0, 1.0]]), q_reward, q_cost, limit=1.0)
    np.testing.assert_allclose(fresh, [[0.5, 0.5, 0.0]])


def test_a_tie_does_not_depend_on_rounding():
    """0.1 + 0.2 and 0.3 are the same return: the lower cost decides; and the same cost: the higher return decides."""
    assert 0.1 + 0.2 > 0.3
    by_cost = improved_policy(np.array([[0.1 + 0.2, 0.3]]), np.array([[0.5, 0.0]]), limit=1.0)
    np.testing.assert_array_equal(by_cost, [[0, 1]])
    by_return = improved_policy(np.array([[0.0, 1.0]]), np.array([[0.3, 0.1 + 0.2]]), limit=0.2, floor=0.0)
    np.testing.assert_array_equal(by_return, [[0, 1]])


def test_an_action_logged_just_as_often_as_the_threshold_is_in_distribution():
    np.testing.assert_array_equal(out_of_distribution(np.array([[0.05, 0.95, 0.0]]), 0.05), [[False, False, True]])


def test_pushing_what_the_policy_plays_weighs_each_rare_pair_by_the_policy_given_that_it_plays_one():
    """pi plays the rare actions with 0.3 and 0.2, so nu is 0.6 and 0.4; the push is an extra cost alpha/2 nu / pi_beta."""
    cmdp = counterexamples.one_state(reward=[0.0] * 3, cost=[0.0] * 3, limit=1.0)
    behaviour, policy = np.array([[0.95, 0.04, 0.01]]), np.array([[0.5, 0.3, 0.2]])
    q_cost, _ = critics(cmdp, behaviour, policy, Settings(0.2, 0.05, nu="policy"))
    extra = 0.1 * np.array([0.0, 0.6 / 0.04, 0.4 / 0.01])
    np.testing.assert_allclose(q_cost[0], extra + 0.9 * (policy[0] @ extra) / (1 - 0.9))


# The algorithm


def behaviour_of(example, noise=0.03):
    parts = [stirred(example.safe, noise), stirred(example.unsafe, noise)]
    return mixture_policy(example.cmdp, parts, [0.5, 0.5])


def test_cpq_never_plays_what_the_log_hardly_holds():
    for example in (corridor(), stitching()):
        behaviour = behaviour_of(example)
        unlikely = out_of_distribution(behaviour, 0.05)
        # 2 epsilon l with epsilon = pi_beta / nu, nu even over the unlikely actions, and a little for the strict sign.
        epsilon = (behaviour * unlikely.sum(1, keepdims=True))[unlikely].max()
        outcome = run_cpq(example.cmdp, behaviour, Settings(2.02 * epsilon * example.cmdp.limit, 0.05))
        for policy in outcome.cycle:
            assert not policy[:3][unlikely[:3]].any()


def test_cpq_is_safe_from_every_state_of_the_corridor_and_pays_for_it_in_return():
    """The limit holds from each state, not only from the start: CPQ earns less than the linear program."""
    example = corridor()
    outcome = run_cpq(example.cmdp, behaviour_of(example), Settings(1.0, 0.05))
    best = optimal_policy(example.cmdp)
    assert outcome.converged
    assert state_values(example.cmdp, outcome.policy, example.cmdp.cost).max() <= example.cmdp.limit
    assert state_values(example.cmdp, best.policy, example.cmdp.cost).max() > example.cmdp.limit
    assert expected_return(example.cmdp, example.safe) < expected_return(example.cmdp, outcome.policy)
    assert expected_return(example.cmdp, outcome.policy) < best.expected_return


def test_a_converged_policy_is_what_improvement_returns_for_its_own_critics():
    example = corridor()
    behaviour, settings = behaviour_of(example), Settings(1.0, 0.05)
    outcome = run_cpq(example.cmdp, behaviour, settings)
    q_cost, q_reward = critics(example.cmdp, behaviour, outcome.policy, settings)
    np.testing.assert_array_equal(improved_policy(q_reward, q_cost, example.cmdp.limit), outcome.policy)


def test_hard_improvement_goes_round_in_circles_where_a_cost_is_safe_once_but_not_for_ever():
    cmdp = counterexamples.greedy_cycle()
    outcome = run_cpq(cmdp, uniform_policy(cmdp), Settings(0.0, 0.0))
    assert len(outcome.cycle) == 2
    costs = sorted(expected_cost(cmdp, policy) for policy in outcome.cycle)
    assert costs == pytest.approx([0.0, 10.0])


def test_a_slow_policy_settles_where_the_costly_action_is_just_safe():
    """Qc(costly) = 1 + 0.9 V = l = 2 at V = 10/9: well inside the limit that the linear program uses up."""
    cmdp = counterexamples.greedy_cycle()
    settings = Settings(0.0, 0.0, step=0.005, iterations=1000)
    outcome = run_cpq(cmdp, uniform_policy(cmdp), settings)
    assert expected_cost(cmdp, outcome.policy) == pytest.approx(10 / 9, abs=0.06)
    assert optimal_policy(cmdp).expected_cost == pytest.approx(2.0)


def test_pushing_only_what_the_policy_plays_brings_the_rare_action_back():
    cmdp, behaviour = counterexamples.rare_but_good()
    by_policy = run_cpq(cmdp, behaviour, Settings(1.0, 0.05, nu="policy"))
    by_detector = run_cpq(cmdp, behaviour, Settings(1.0, 0.05, nu="detector"))
    assert sorted(policy.argmax() for policy in by_policy.cycle) == [0, 1]
    assert by_detector.converged
    assert by_detector.policy.argmax() == 0


def test_pairs_the_log_never_holds_are_never_played():
    cmdp = counterexamples.one_state(reward=[0.1, 1.0], cost=[0.0, 0.0], limit=1.0)
    outcome = run_cpq(cmdp, np.array([[1.0, 0.0]]), Settings(1.0, 0.05))
    assert outcome.converged
    assert outcome.policy.tolist() == [[1.0, 0.0]]


def test_arriving_at_the_end_is_not_charged_the_floor():
    """The log holds no action of the end, which must not make the end out of distribution."""
    example = corridor()
    log = sample_log(example.cmdp, {"run": example.unsafe, "creep": example.safe}, 400, np.random.default_rng(0))
    model = counted_model(log, 3, 0.9, 1.5)
    assert not model.behaviour[6].any()
    _, q_reward = critics(model.cmdp, model.behaviour, example.safe, Settings(1.0, 0.05, floor=-100.0))
    assert q_reward[5, 0] == pytest.approx(1.0)


def test_with_no_limit_to_speak_of_cpq_is_policy_iteration(random_cmdp):
    _, cmdp = random_cmdp
    free = cmdp.with_limit(1e6)
    outcome = run_cpq(free, uniform_policy(free), Settings(0.0, 0.0))
    values = np.zeros(free.n_states)
    for _ in range(500):  # value iteration on the reward
        values = (free.reward + free.discount * free.transition @ values).max(1)
    assert outcome.converged
    np.testing.assert_allclose(state_values(free, outcome.policy, free.reward), values, rtol=1e-9)


def test_a_small_step_moves_the_policy_by_that_much():
    """From (0.5, 0.5) nothing is safe: Vc = 5, so Qc is 5.5 and 4.5. A tenth of the way to the free action follows."""
    cmdp = counterexamples.greedy_cycle()
    rounds = iterate(cmdp, uniform_policy(cmdp), Settings(0.0, 0.0, step=0.1))
    first, second = next(rounds), next(rounds)
    np.testing.assert_allclose(first.q_cost, [[5.5, 4.5]])
    np.testing.assert_allclose(second.policy, [[0.45, 0.55]])


def test_cpq_starts_from_the_behaviour():
    cmdp = counterexamples.no_safe_action()
    behaviour = np.array([[0.2, 0.8]])
    np.testing.assert_array_equal(next(iterate(cmdp, behaviour, Settings(0.0, 0.0))).policy, behaviour)


def test_in_a_state_without_a_log_the_policy_starts_uniform():
    cmdp = corridor().cmdp
    behaviour = corridor().safe.copy()
    behaviour[6] = 0.0
    np.testing.assert_allclose(next(iterate(cmdp, behaviour, Settings(0.0, 0.0))).policy[6], 1 / 3)


def test_cpq_with_samples_avoids_the_leap_that_the_same_log_makes_look_good():
    """A few logged leaps without an accident look free. Without the push the learner leaps; with it, never."""
    example = stitching()
    cmdp: Cmdp = example.cmdp
    behaviours = {"safe": stirred(example.safe, 0.02), "unsafe": stirred(example.unsafe, 0.02)}
    leapt_without = 0
    for seed in range(8):
        log = sample_log(cmdp, behaviours, 800, np.random.default_rng(seed))
        model = counted_model(log, 3, cmdp.discount, cmdp.limit)
        with_push = run_cpq(model.cmdp, model.behaviour, Settings(1.0, 0.05, step=0.05))
        without = run_cpq(model.cmdp, model.behaviour, Settings(0.0, 0.0, step=0.05))
        visited = model.states > 0
        assert with_push.policy[visited][:3, 2].max() < 0.01
        leapt_without += without.policy[visited][:3, 2].max() > 0.5
    assert leapt_without >= 4
