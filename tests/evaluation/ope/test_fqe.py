"""Fitted Q evaluation against exact values: in a finite problem with one feature per pair it is dynamic programming in
the model that the log counts."""

import numpy as np
import pytest

from ringfence.data import Dataset
from ringfence.evaluation.ope.fqe import FittedQ
from ringfence.tabular.examples import hazard_grid
from ringfence.tabular.logs import action_indices, counted_model, embed_actions, sample_log

GRID = hazard_grid()
ACTIONS = GRID.cmdp.n_actions
DISCOUNT, HORIZON = 0.9, 12


def one_hot_pairs(observations, actions):
    pairs = observations.argmax(1) * ACTIONS + action_indices(actions, ACTIONS)
    return np.eye(observations.shape[1] * ACTIONS, dtype=np.float32)[pairs]


def log_of(rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    stirred = {name: 0.7 * table + 0.3 / ACTIONS for name, table in (("safe", GRID.safe), ("unsafe", GRID.unsafe))}
    return sample_log(GRID.cmdp, stirred, rows, rng)


def fitted(log, **options):
    q = FittedQ(log, one_hot_pairs, DISCOUNT, HORIZON, ridge=1e-7, **options)
    q.most_leverage = np.inf  # every pair is known: nothing to limit
    return q


def moves(table, observations):
    return embed_actions(table.argmax(1)[observations.argmax(1)], ACTIONS).astype(np.float32)


def evaluate(q, table, **options):
    log = q.log
    starts = log.observations[log.episode_starts]
    return q.evaluate(moves(table, log.next_observations), moves(table, starts), **options)


def exact_moments(log, table):
    """E[sum r], E[sum c] and the variance of sum c over the horizon, by loops in the counted model."""
    model = counted_model(log, ACTIONS, DISCOUNT, 1.0).cmdp
    policy = table.argmax(1)
    ended = GRID.cmdp.terminal
    reward, cost, square = (np.zeros(model.n_states) for _ in range(3))
    for _ in range(HORIZON):
        new = [np.zeros(model.n_states) for _ in range(3)]
        for s in np.flatnonzero(~ended):
            a = policy[s]
            p = model.transition[s, a]
            r, c = model.reward[s, a], model.cost[s, a]
            new[0][s] = r + DISCOUNT * p @ reward
            new[1][s] = c + DISCOUNT * p @ cost
            new[2][s] = c * c + 2 * DISCOUNT * c * (p @ cost) + DISCOUNT**2 * p @ square
        reward, cost, square = new
    start = model.start
    return start @ reward, start @ cost, np.sqrt(start @ square - (start @ cost) ** 2)


@pytest.mark.parametrize("table", [GRID.safe, GRID.unsafe], ids=["safe", "unsafe"])
def test_values_over_the_horizon_are_those_of_the_counted_model(table):
    log = log_of()
    assert log.terminations.any()  # the goal ends an episode: masked
    assert log.truncations.any()  # a cut does not
    values = evaluate(fitted(log), table)
    returned, cost, spread = exact_moments(log, table)
    assert values.returned == pytest.approx(returned, abs=1e-4)
    assert values.cost == pytest.approx(cost, abs=1e-4)
    assert values.cost_spread == pytest.approx(spread, abs=1e-3)


def test_the_estimate_comes_near_the_true_value_as_the_log_grows():
    errors = []
    for rows in (500, 20_000):
        log = log_of(rows, seed=3)
        truth = GRID.cmdp.start @ finite_values(GRID.unsafe)
        errors.append(abs(evaluate(fitted(log), GRID.unsafe).cost - truth))
    assert errors[1] < 0.03 < errors[0] + 0.03


def finite_values(table):
    """The true cost over the horizon: powers of the transition matrix."""
    moved = np.einsum("sa,sat->st", table, GRID.cmdp.transition)
    step = (table * GRID.cmdp.cost).sum(1)
    return sum(DISCOUNT**t * np.linalg.matrix_power(moved, t) @ step for t in range(HORIZON))


def test_the_weights_of_the_rows_give_the_values_back():
    log = log_of()
    values = evaluate(fitted(log), GRID.unsafe)
    assert values.weights @ log.rewards == pytest.approx(values.returned, abs=1e-4)
    assert values.weights @ log.costs == pytest.approx(values.cost, abs=1e-4)
    assert 0 < values.effective_rows < len(log)


def test_weights_of_a_policy_that_is_logged_amplify_nothing_and_those_of_an_extrapolation_do():
    """Critics linear in one action, logged at 0 and 1: the value at 3 is that at 1, three times, less twice that at 0."""
    assert evaluate(fitted(log_of()), GRID.unsafe).amplification == pytest.approx(1.0, abs=1e-3)
    actions = np.tile([0.0, 1.0], 50)
    log = Dataset.from_arrays(
        observations=np.zeros((100, 1)),
        actions=actions[:, None],
        rewards=actions,
        costs=1 + actions,
        next_observations=np.zeros((100, 1)),
        terminations=np.ones(100, bool),
        truncations=np.zeros(100, bool),
        action_low=[0],
        action_high=[3],
    )
    q = FittedQ(log, lambda o, a: np.concatenate([np.ones_like(a), a], 1), DISCOUNT, 1, ridge=1e-9)
    for action, expected in ((0.5, 1), (3.0, 3 + 2)):
        at = np.full((100, 1), action, np.float32)
        values = q.evaluate(at, at)
        assert values.cost == pytest.approx(1 + action, rel=1e-4)
        assert values.amplification == pytest.approx(expected, rel=1e-4)


def test_the_influence_of_a_group_is_what_a_little_more_of_its_episodes_would_change():
    """By refitting with the group counted 1.001 and 0.999 times."""
    log = log_of(600)
    q = fitted(log, groups=5)
    q.ridge = 1e-3
    following = q.following(moves(GRID.unsafe, log.next_observations))
    cross = q._by_group(following)
    firsts = one_hot_pairs(
        log.observations[log.episode_starts], moves(GRID.unsafe, log.observations[log.episode_starts])
    )

    def refitted(weights):
        backup, once, _ = q._solve(weights, cross)
        critics = np.zeros_like(once[:, :2])
        for _ in range(HORIZON):
            critics = once[:, :2] + DISCOUNT * backup @ critics
        of_episode = weights[q.group_of_episode]
        return of_episode @ firsts @ critics / of_episode.sum()

    influences = evaluate(q, GRID.unsafe).influences
    for group in range(5):
        little = 1e-3 * np.eye(5)[group]
        slope = (refitted(1 + little) - refitted(1 - little)) / 2e-3
        np.testing.assert_allclose(influences[group], slope, atol=1e-5, rtol=1e-3)
    np.testing.assert_allclose(influences.sum(0), 0, atol=1e-6)  # counting every group twice changes nothing


def test_the_sampling_spread_is_how_estimates_from_fresh_logs_scatter():
    fresh = [evaluate(fitted(log_of(800, seed)), GRID.unsafe).cost for seed in range(40)]
    spreads = [evaluate(fitted(log_of(800, seed)), GRID.unsafe).sampling_spread[1] for seed in range(5)]
    assert np.mean(spreads) == pytest.approx(np.std(fresh), rel=0.4)


def test_a_value_that_no_logged_steps_could_add_up_to_is_noticed():
    q = fitted(log_of(500))
    assert q._possible(np.array([1.0, 1.0]))
    assert not q._possible(np.array([1.0, -1.0]))
    assert not q._possible(np.array([1.0, 1e3]))
    assert not q._possible(np.array([np.nan, 1.0]))


def test_leverage_is_the_inverse_of_how_often_a_pair_was_logged_and_limits_what_was_hardly_seen():
    log = log_of(2000)
    q = FittedQ(log, one_hot_pairs, DISCOUNT, HORIZON, ridge=1e-9)
    pairs = one_hot_pairs(log.observations, log.actions)
    counts = pairs.sum(0)[pairs.argmax(1)]
    np.testing.assert_allclose(q.leverage(pairs), len(log) / counts, rtol=1e-2)
    rare = int(np.argmin(counts))
    q.most_leverage = len(log) / (2.0 * counts[rare])  # as if a pair had to be logged twice as often as the rarest
    limited = q.following(log.actions)
    unlike = q.leverage(one_hot_pairs(log.next_observations, log.actions)) > q.most_leverage
    mean = pairs.mean(0)
    deviations = (limited - mean)[unlike & ~log.terminations]
    assert len(deviations)
    size = ((one_hot_pairs(log.next_observations, log.actions) - mean) ** 2).sum(1)[unlike & ~log.terminations]
    assert ((deviations**2).sum(1) < size).all()


@pytest.mark.parametrize("terminated", [True, False])
def test_a_termination_ends_the_sums_and_a_truncation_does_not(terminated):
    """One state, one action, a reward of 1 and a cost of 2 a step; a quarter of the steps end the episode. The next
    observation is then the same state, so that only the mask tells the end of an episode from a cut."""
    ends = np.arange(400) % 4 == 3
    log = Dataset.from_arrays(
        observations=np.ones((400, 1)),
        actions=np.zeros((400, 1)),
        rewards=np.ones(400),
        costs=np.full(400, 2.0),
        next_observations=np.ones((400, 1)),
        terminations=ends if terminated else np.zeros(400, bool),
        truncations=np.zeros(400, bool) if terminated else ends,
        action_low=[-1],
        action_high=[1],
    )
    q = FittedQ(log, lambda o, a: np.ones((len(o), 1), np.float32), DISCOUNT, HORIZON)
    values = q.evaluate(log.actions, log.actions[log.episode_starts])
    lasting = DISCOUNT * (0.75 if terminated else 1.0)
    expected = sum(lasting**t for t in range(HORIZON))
    assert values.returned == pytest.approx(expected, rel=1e-5)
    assert values.cost == pytest.approx(2 * expected, rel=1e-5)
