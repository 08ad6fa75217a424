"""When Algorithm 1 settles, by tie rule, and how far a slow policy hovers from the limit."""

from itertools import islice, pairwise

import numpy as np
import pytest

from ringfence.tabular import counterexamples
from ringfence.tabular.cmdp import Cmdp, expected_cost, state_values, uniform_policy
from ringfence.tabular.cpq import Settings, critics, improved_policy, iterate, run_cpq
from ringfence.tabular.examples import corridor, garnet, random_policy
from ringfence.tabular.guarantees import cost_ceiling
from ringfence.tabular.planning import best_values
from ringfence.tabular.settling import hover, is_trap, rounds_without_return, verdict_is_fixed

PLAIN = {"alpha": 0.0, "ood_threshold": 0.0}


def random_one_way(seed, states=6, actions=3):
    """Every pair leads to two later states; the last state is the end."""
    rng = np.random.default_rng(seed)
    transition = np.zeros((states, actions, states))
    for s, a in np.ndindex(states - 1, actions):
        later = rng.integers(s + 1, states, size=2)
        np.add.at(transition[s, a], later, rng.dirichlet(np.ones(2)))
    transition[-1, :, -1] = 1.0
    reward, cost = rng.random((2, states, actions)) * (np.arange(states) < states - 1)[:, None]
    cmdp = Cmdp(transition, reward, cost * (rng.random(cost.shape) < 0.6), np.eye(states)[0], 0.9, limit=0.0)
    return rng, cmdp.with_limit(0.7 * expected_cost(cmdp, uniform_policy(cmdp)))


def one_state(seed):
    rng = np.random.default_rng(seed)
    actions = int(rng.integers(2, 5))
    cmdp = counterexamples.one_state(list(rng.random(actions)), list(rng.random(actions)), 1.0)
    return rng, cmdp.with_limit(float(rng.uniform(0.0, 8.0)))


@pytest.mark.parametrize("ties", ["least cost", "stay"])
def test_where_no_state_is_entered_twice_greedy_cpq_settles_within_the_longest_way(ties):
    for seed in range(200):
        rng, cmdp = random_one_way(seed)
        behaviour = random_policy(rng, cmdp)
        rounds = rounds_without_return(cmdp, behaviour > 0)
        outcome = run_cpq(cmdp, behaviour, Settings(**PLAIN, ties=ties))
        assert outcome.converged
        assert outcome.rounds <= rounds + 1


def test_on_the_way_it_settles_the_recovery_rule_is_under_the_ceiling_and_staying_often_is_not():
    above = {"least cost": 0, "stay": 0}
    for seed in range(200):
        rng, cmdp = random_one_way(seed)
        behaviour = random_policy(rng, cmdp)
        ceiling = cost_ceiling(cmdp, behaviour > 0)
        for ties in above:
            outcome = run_cpq(cmdp, behaviour, Settings(**PLAIN, ties=ties))
            above[ties] += (state_values(cmdp, outcome.policy, cmdp.cost) > ceiling + 1e-9).any()
    assert above["least cost"] == 0
    assert above["stay"] > 5


def test_the_longest_way_is_counted_in_steps_and_a_return_is_noticed():
    transition = np.zeros((4, 1, 4))
    transition[0, 0, 1] = transition[1, 0, 2] = transition[2, 0, 3] = transition[3, 0, 3] = 1.0
    chain = Cmdp(transition, np.eye(4)[:, :1], np.zeros((4, 1)), np.eye(4)[0], 0.9, 1.0)
    assert rounds_without_return(chain, np.ones((4, 1), bool)) == 3
    cells = corridor().cmdp  # creeping may stay in the cell
    assert rounds_without_return(cells, np.ones(cells.cost.shape, bool)) is None
    only_running = np.zeros(cells.cost.shape, bool)
    only_running[:, 0] = True
    assert rounds_without_return(cells, only_running) == 6


def test_where_safety_does_not_depend_on_the_policy_cpq_is_policy_iteration_on_the_safe_pairs():
    settled = mixed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        cmdp = garnet(rng, states=4, discount=0.2, limit_share=rng.uniform(0.5, 2.5))
        everything = np.ones(cmdp.cost.shape, bool)
        if not verdict_is_fixed(cmdp, everything):
            continue
        settled += 1
        outcome = run_cpq(cmdp, random_policy(rng, cmdp), Settings(**PLAIN))
        assert outcome.converged
        safe = outcome.last.q_cost <= cmdp.limit
        mixed += not safe.all()
        best, _ = best_values(cmdp, cmdp.reward, safe)
        np.testing.assert_allclose(state_values(cmdp, outcome.policy, cmdp.reward), best, atol=1e-9)
    assert settled > 40
    assert mixed > 10


def test_the_verdict_is_not_fixed_where_cpq_cycles():
    cycled = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        cmdp = garnet(rng, states=5)
        if len(run_cpq(cmdp, random_policy(rng, cmdp), Settings(**PLAIN)).cycle) > 1:
            cycled += 1
            assert not verdict_is_fixed(cmdp, np.ones(cmdp.cost.shape, bool))
    assert cycled > 20


def test_a_policy_under_which_nothing_is_safe_is_a_trap_where_ties_stay():
    trapped = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        cmdp = garnet(rng, states=5, limit_share=0.6)
        behaviour = random_policy(rng, cmdp)
        if is_trap(critics(cmdp, behaviour, behaviour, Settings(**PLAIN))[0], cmdp.limit):
            trapped += 1
            outcome = run_cpq(cmdp, behaviour, Settings(**PLAIN, ties="stay"))
            np.testing.assert_allclose(outcome.policy, behaviour)
    assert trapped > 20


def test_printed_cpq_may_have_no_fixed_point_at_all():
    """On `greedy_cycle` no mixture of the two actions is what improvement returns for it, with either tie rule."""
    cmdp = counterexamples.greedy_cycle()
    for share in np.linspace(0, 1, 1001):
        policy = np.array([[share, 1 - share]])
        q_cost, q_reward = critics(cmdp, uniform_policy(cmdp), policy, Settings(**PLAIN))
        assert np.abs(improved_policy(q_reward, q_cost, cmdp.limit) - policy).max() > 0


def test_in_one_state_a_slow_policy_under_the_ceiling_never_leaves_it_and_from_above_comes_down():
    """With a step of at most 1 - discount."""
    started_above = 0
    for seed in range(200):
        rng, cmdp = one_state(seed)
        ceiling = cost_ceiling(cmdp, np.ones(cmdp.cost.shape, bool))[0]
        settings = Settings(**PLAIN, step=0.1)
        costs = [
            float((r.policy * r.q_cost).sum()) for r in islice(iterate(cmdp, random_policy(rng, cmdp), settings), 25)
        ]
        started_above += costs[0] > ceiling
        for now, following in pairwise(costs):
            assert following <= max(ceiling, now) + 1e-9
            if now > ceiling:
                # The gap to the least costly action shrinks by step / (1 - discount) * (1 - discount) = step each round.
                assert following - ceiling <= 0.9 * (now - ceiling) + 1e-9
    assert started_above > 30


def test_a_larger_step_can_jump_over_the_ceiling():
    cmdp = counterexamples.greedy_cycle()
    nearly_free = np.array([[0.05, 0.95]])
    rounds = islice(iterate(cmdp, nearly_free, Settings(**PLAIN, step=0.5)), 2)
    costs = [expected_cost(cmdp, r.policy) for r in rounds]
    assert costs == pytest.approx([0.5, (0.5 * 0.05 + 0.5) * 10])
    assert max(costs) > cost_ceiling(cmdp, np.ones((1, 2), bool))[0]


def test_averaged_over_rounds_a_slow_policy_pays_no_more_than_the_limit_and_a_remainder():
    """On every CMDP: the cost at the states it visits, against max(l, the least Qc there)."""
    for seed in range(150):
        rng = np.random.default_rng(seed)
        cmdp = garnet(rng, states=4)
        rounds = list(islice(iterate(cmdp, random_policy(rng, cmdp), Settings(**PLAIN, step=0.05)), 20))
        found = hover(cmdp, rounds, 0.05)
        assert found.cost <= found.allowance + found.remainder + 1e-9


def test_the_hover_bound_is_an_equality_where_recovery_always_plays_the_allowance():
    """Two actions with the same cost 1 and a limit out of reach: Vc = 10 = min Qc, nothing moves."""
    cmdp = counterexamples.no_safe_action()
    found = hover(cmdp, list(islice(iterate(cmdp, uniform_policy(cmdp), Settings(**PLAIN, step=0.1)), 20)), 0.1)
    assert found.cost == pytest.approx(10.0)
    assert found.allowance == pytest.approx(10.0)
    assert found.remainder == pytest.approx(0.0, abs=1e-9)
