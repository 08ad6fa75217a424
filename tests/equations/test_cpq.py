"""CPQ's losses and operators against independent calculations, and where their gradients flow."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import CPQ, PaperCPQ, Spec
from ringfence.algorithms.cpq import (
    OODActions,
    all_ood_actions,
    alpha_step,
    cost_bellman_target,
    cost_critic_loss,
    penalized_bellman_target,
    reward_critic_loss,
    safe_value,
)
from ringfence.algorithms.cpq_departures import (
    alpha_step_where_ood,
    averaging_rate,
    cost_target_beyond_the_end,
    one_ood_action,
    penalised_value,
    reward_bellman_target,
    safe_weights,
    smoothed_actions,
)
from ringfence.networks import sample_tanh
from tests.equations import reference
from tests.equations.conftest import ACT, OBS, ROWS, SMALL, small_state

pytestmark = pytest.mark.usefixtures("quick_compilation")
KEY = jax.random.key(5)
DISCOUNT = 0.9


def largest(tree):
    return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def some_ood(kept, seed=0):
    """The OOD actions of a given mask (n, batch)."""
    kept = jnp.asarray(kept)
    actions = jax.random.uniform(jax.random.key(seed), (*kept.shape, ACT), minval=-1, maxval=1)
    return actions, all_ood_actions(actions, kept)


KEPT = np.array([[1, 0, 0, 1, 0, 1], [1, 0, 1, 1, 0, 0], [1, 0, 0, 0, 0, 1], [1, 0, 0, 1, 0, 0]], bool)

# Step 1


def test_the_ood_cost_of_a_state_averages_over_the_kept_actions_and_is_zero_without_any(batch, printed):
    critic = small_state(printed).critics.cost
    actions, ood = some_ood(KEPT)
    expected = []
    for j, s in enumerate(np.asarray(batch.observations)):
        values = [reference.q(critic, s, np.asarray(actions[i, j])) for i in range(len(KEPT)) if KEPT[i, j]]
        expected.append(sum(values) / len(values) if values else 0.0)
    found = ood.mean(critic(batch.observations, ood.actions))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_choosing_one_kept_action_has_the_expectation_of_averaging_all_of_them():
    actions, everything = some_ood(KEPT)
    picks = jax.vmap(lambda key: one_ood_action(actions, jnp.asarray(KEPT), key))(jax.random.split(KEY, 20000))
    chosen = np.asarray(picks.actions[:, 0])  # (draws, batch, act)
    for j in range(ROWS):
        kept = np.flatnonzero(KEPT[:, j])
        assert np.all(np.asarray(picks.weights[:, 0, j]) == (len(kept) > 0))
        for i in kept:  # the mean over all gives each kept action the weight 1/m; so do the draws
            share = np.mean(np.all(chosen[:, j] == np.asarray(actions[i, j]), -1))
            assert share == pytest.approx(float(everything.weights[i, j]), abs=0.015)


def test_the_expected_gradient_of_one_is_the_gradient_of_all(batch, printed):
    """Exactly: the average over every way to choose one action per state, each equally likely."""
    critic = small_state(printed).critics.cost
    kept = np.array([[1, 0, 1, 1, 0, 0], [1, 0, 0, 1, 0, 1]], bool)
    actions, everything = some_ood(kept)
    target = jnp.zeros(ROWS)

    def gradient(ood):
        return jax.grad(lambda c: cost_critic_loss(c, batch, target, ood, jnp.asarray(3.0), jnp.asarray(1.0))[0])(
            critic
        )

    found = jnp.asarray(kept.any(0), jnp.float32)
    sums, ways = None, 0
    for first in (0, 1):
        for fourth in (0, 1):  # states 0 and 3 have two kept actions; the others one or none
            index = np.array([first, 0, 0, fourth, 0, 1])
            picked = jnp.take_along_axis(actions, jnp.asarray(index)[None, :, None], 0)
            one = gradient(OODActions(picked, found[None]))
            sums = one if sums is None else jax.tree.map(jnp.add, sums, one)
            ways += 1
    mean = jax.tree.map(lambda x: x / ways, sums)
    for a, b in zip(jax.tree.leaves(mean), jax.tree.leaves(gradient(everything)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_cost_target_is_the_bellman_backup_of_the_target_critic_and_stops_at_termination(batch, printed):
    target_critic = small_state(printed).targets.cost
    following = reference.q_each(target_critic, batch.next_observations, batch.actions)
    expected = np.asarray(batch.costs) + DISCOUNT * np.array([1, 0, 1, 1, 0, 1]) * following
    got = cost_bellman_target(target_critic, batch, batch.actions, DISCOUNT)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("meaning", "limits_paid"), [("ends", 0.0), ("neutral", 1.0), ("failure", 1.7)])
def test_the_end_of_an_episode_costs_nothing_or_the_limit_or_what_an_ood_action_costs(
    batch, departed, meaning, limits_paid
):
    method = replace(departed, episode_end=meaning, ood_limit_ratio=1.7)
    state = small_state(method, limit=30.0)
    following = reference.q_each(state.targets.cost, batch.next_observations, batch.actions)
    expected = [
        float(batch.costs[i]) + method.discount * (following[i] if goes_on else limits_paid * 30.0)
        for i, goes_on in enumerate([1, 0, 1, 1, 0, 1])
    ]
    np.testing.assert_allclose(method.cost_target(state, batch, batch.actions), expected, rtol=1e-4, atol=1e-6)


def test_with_a_neutral_end_an_episode_at_the_limits_pace_costs_the_limit_wherever_it_ends(departed):
    """Backwards over an episode that pays l (1 - discount) a step and terminates: every step is worth l. If the end is a
    failure every step is above l, and the more so the nearer the end."""
    limit, steps = 30.0, 50
    for meaning in ("neutral", "failure"):
        method = replace(departed, episode_end=meaning)
        values = [float(method.cost_of_end(jnp.asarray(limit)))]
        for _ in range(steps):
            values.append(limit * (1 - method.discount) + method.discount * values[-1])
        if meaning == "neutral":
            np.testing.assert_allclose(values, limit, rtol=1e-6)
        else:
            assert min(values) > limit
            assert np.all(np.diff(values) < 0)


def test_the_cost_of_an_end_moves_the_cost_critic_at_terminated_rows_only(batch, departed):
    """The gradient of the loss with a costly end, less that without, is that of the terminated rows' errors."""
    state = small_state(departed, limit=30.0)
    _, none = some_ood(np.zeros((1, ROWS), bool))

    def gradient(end, rows):
        target = cost_target_beyond_the_end(state.targets.cost, batch, batch.actions, 0.99, jnp.asarray(end))

        def loss(critic):
            values = critic(batch.observations, batch.actions)
            return jnp.sum(jnp.asarray(rows) * (values - target) ** 2) / ROWS

        whole = jax.grad(lambda c: cost_critic_loss(c, batch, target, none, jnp.asarray(0.0), jnp.asarray(0.0))[0])
        return jax.grad(loss)(state.critics.cost), whole(state.critics.cost)

    terminated = [0, 1, 0, 0, 1, 0]
    (costly, costly_whole), (free, free_whole) = gradient(30.0, terminated), gradient(0.0, terminated)
    for a, b, c, d in zip(*map(jax.tree.leaves, (costly, free, costly_whole, free_whole)), strict=True):
        np.testing.assert_allclose(np.asarray(a) - np.asarray(b), np.asarray(c) - np.asarray(d), rtol=1e-3, atol=1e-4)
    assert largest(jax.tree.map(jnp.subtract, costly, free)) > 0


def test_the_cost_loss_is_squared_bellman_error_minus_alpha_times_the_ood_excess(batch, printed):
    critic = small_state(printed).critics.cost
    actions, ood = some_ood(KEPT)
    target, alpha, ood_limit = np.linspace(-1, 1, ROWS), 2.5, 1.2
    errors = (reference.q_each(critic, batch.observations, batch.actions) - target) ** 2
    pushed = []
    for j, s in enumerate(np.asarray(batch.observations)):
        values = [reference.q(critic, s, np.asarray(actions[i, j])) for i in range(len(KEPT)) if KEPT[i, j]]
        pushed.append(np.mean(values) if values else 0.0)
    expected = errors.mean() - alpha * (np.mean(pushed) - ood_limit)
    loss, _ = cost_critic_loss(critic, batch, jnp.asarray(target), ood, jnp.asarray(alpha), jnp.asarray(ood_limit))
    assert loss == pytest.approx(expected, rel=1e-4)


def test_the_ood_push_has_the_gradient_of_the_live_cost_critic(batch, printed):
    """Against finite differences of the NumPy loss, in the parameters of the cost critic."""
    critic = small_state(printed).critics.cost
    actions, ood = some_ood(KEPT)
    alpha = 3.0
    zero = jnp.zeros(ROWS)

    def loss(c, a):
        return cost_critic_loss(c, batch, zero, ood, jnp.asarray(a), jnp.asarray(1.0))[0]

    push = jax.tree.map(jnp.subtract, jax.grad(loss)(critic, alpha), jax.grad(loss)(critic, 0.0))
    copy = reference.float64_copy(critic.mlp)

    def pushed():
        total = 0.0
        for j, s in enumerate(np.asarray(batch.observations, np.float64)):
            values = [
                reference.mlp(copy, np.concatenate([s, actions[i, j]]))[0] for i in range(len(KEPT)) if KEPT[i, j]
            ]
            total += np.mean(values) if values else 0.0
        return -alpha * total / ROWS

    for layer, index in [(0, (0, 1)), (0, (3, 2)), (1, (2, 5)), (2, (1, 0))]:
        expected = reference.numerical_gradient(pushed, copy.layers[layer].weight, index)
        got = np.asarray(push.mlp.layers[layer].weight)[index]
        assert got == pytest.approx(expected, rel=1e-2, abs=1e-5)
    assert largest(push) > 0


def test_alpha_rises_while_ood_costs_are_below_their_limit_and_falls_above_but_never_below_zero():
    low, high = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([60.0, 70.0, 80.0])
    limit = jnp.asarray(45.0)
    for step in (alpha_step, lambda alpha, q, limit, rate: alpha_step_where_ood(alpha, q, jnp.ones(3), limit, rate)):
        assert step(jnp.asarray(1.0), low, limit, 0.1) == pytest.approx(1 + 0.1 * 43)
        assert step(jnp.asarray(9.0), high, limit, 0.1) == pytest.approx(9 - 0.1 * 25)
        assert step(jnp.asarray(0.5), high, limit, 0.1) == 0


def test_as_printed_alpha_rises_when_nothing_is_ood_and_over_ood_states_it_rests():
    nothing, limit = jnp.zeros(4), jnp.asarray(45.0)
    assert alpha_step(jnp.asarray(1.0), nothing, limit, 0.1) == pytest.approx(1 + 0.1 * 45)
    assert alpha_step_where_ood(jnp.asarray(1.0), nothing, nothing, limit, 0.1) == 1
    one_of_four = jnp.asarray([0.0, 1.0, 0.0, 0.0])
    assert alpha_step_where_ood(jnp.asarray(1.0), 25 * one_of_four, one_of_four, limit, 0.1) == pytest.approx(
        1 + 0.1 * 20 / 4
    )


def test_a_fixed_alpha_stays_fixed_and_a_tuned_one_moves(batch, printed):
    for method, moves in [(replace(printed, alpha=2.0), False), (printed, True)]:
        before = small_state(method, limit=1000.0)
        after, _ = method.update(before, batch, KEY)
        assert (float(after.alpha) != float(before.alpha)) == moves


# Step 2


@pytest.mark.parametrize("penalized", [True, False])
def test_the_penalized_target_backs_up_only_from_safe_pairs_and_the_plain_one_from_all(batch, printed, penalized):
    targets = small_state(printed).targets
    next_actions = batch.actions[::-1]
    first, second = (reference.q_each(c, batch.next_observations, next_actions) for c in targets.reward)
    cost = reference.q_each(targets.cost, batch.next_observations, next_actions)
    limit = float(np.median(cost))  # so that both kinds occur
    assert 0 < np.sum(cost <= limit) < ROWS
    expected = []
    for i in range(ROWS):
        value = min(first[i], second[i])
        if cost[i] > limit and penalized:
            value = 0.0
        goes_on = [1, 0, 1, 1, 0, 1][i]
        expected.append(float(batch.rewards[i]) + DISCOUNT * goes_on * value)
    got = reward_bellman_target(targets, batch, next_actions, DISCOUNT)
    if penalized:
        got = penalized_bellman_target(targets, batch, next_actions, jnp.asarray(limit), DISCOUNT)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_the_reward_loss_is_the_squared_error_of_both_critics_and_nothing_else(batch, printed):
    critics = small_state(printed).critics.reward
    target = np.linspace(-1, 1, ROWS)
    values = [reference.q_each(c, batch.observations, batch.actions) for c in critics]
    expected = sum(np.mean((v - target) ** 2) for v in values)
    loss, smaller = reward_critic_loss(critics, batch, jnp.asarray(target))
    assert loss == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(smaller, np.minimum(*values), rtol=1e-4, atol=1e-5)


# Step 3


def test_what_the_actor_maximises_at_a_pair():
    qr, qc = np.array([1.0, -2.0, 3.0, 4.0]), np.array([9.0, 10.0, 10.5, 30.0])
    values = jnp.asarray(qr), jnp.asarray(qc), jnp.asarray(10.0)
    np.testing.assert_allclose(safe_value(*values), [1.0, -2.0, 0.0, 0.0])
    size = (1 + 2 + 3 + 4) / 4
    ours = [r / size - 3 * max(c - 10, 0) / 10 for r, c in zip(qr, qc, strict=True)]
    np.testing.assert_allclose(penalised_value(*values, 3.0), ours, rtol=1e-5)


def drawn_actions(method, state, batch, key):
    return np.asarray(sample_tanh(state.actor(batch.observations), key, (1,))[0][0])


def test_the_printed_actor_loss_is_minus_the_mean_of_indicator_times_the_smaller_value(batch, printed):
    state = small_state(printed)
    actions = drawn_actions(printed, state, batch, KEY)
    qr = np.minimum(*(reference.q_each(c, batch.observations, actions) for c in state.critics.reward))
    qc = reference.q_each(state.critics.cost, batch.observations, actions)
    limit = float(np.median(qc))
    loss, metrics = printed.actor_loss(state.actor, state.critics, batch, at(state, limit), KEY)
    assert loss == pytest.approx(-np.mean(np.where(qc <= limit, qr, 0.0)), rel=1e-3)
    assert metrics["indicator"] == pytest.approx(np.mean(qc <= limit))


def test_our_actor_loss_normalises_qr_and_adds_hinge_and_anchor(batch, departed):
    method = replace(departed, anchor=0.7, recovery_weight=2.0)
    state = small_state(method)
    actions = drawn_actions(method, state, batch, KEY)
    qr = np.minimum(*(reference.q_each(c, batch.observations, actions) for c in state.critics.reward))
    qc = reference.q_each(state.critics.cost, batch.observations, actions)
    limit = max(float(np.median(qc)), 0.01)
    assert np.any(qc > limit)
    logged = np.asarray(batch.actions)
    logged_cost = reference.q_each(state.critics.cost, batch.observations, logged)
    weights = np.where(logged_cost <= limit, 1.0, method.unsafe_anchor)
    assert 0.3 < np.mean(logged_cost <= limit) < 1.0
    anchor = np.average(np.mean((actions - logged) ** 2, -1), weights=weights)
    expected = -np.mean(qr / np.mean(np.abs(qr)) - 2.0 * np.maximum(qc - limit, 0) / limit) + 0.7 * anchor
    loss, _ = method.actor_loss(state.actor, state.critics, batch, at(state, limit), KEY)
    assert loss == pytest.approx(expected, rel=1e-3)


def at(state, limit):
    return replace(state, limit=jnp.asarray(limit))


def test_the_anchor_grows_with_the_share_of_logged_episodes_that_terminated_unless_ends_belong_to_the_task(
    batch, departed
):
    """Loss with the anchor less loss without it is its weight times the distance: 0.7 (1 + 20 x 0.25) = 4.2 here."""

    def anchor_part(terminated, **settings):
        loss = {}
        for anchor in (0.0, 0.7):
            method = replace(departed, anchor=anchor, termination_anchor=20.0, **settings)
            state = method.init(KEY, jnp.asarray(30.0), Spec(OBS, ACT, terminated=terminated))
            loss[anchor] = float(method.actor_loss(state.actor, state.critics, batch, state, KEY)[0])
        return loss[0.7] - loss[0.0]

    without = anchor_part(0.0)
    assert without > 0.01
    assert anchor_part(0.25) == pytest.approx(4.2 / 0.7 * without, rel=1e-3)
    assert anchor_part(0.25, episode_end="failure") == pytest.approx(anchor_part(0.25), rel=1e-6)
    assert anchor_part(0.25, episode_end="ends") == pytest.approx(without, rel=1e-6)


def gradient_of_actor(method, state, batch, limit):
    return jax.grad(method.actor_loss, has_aux=True)(state.actor, state.critics, batch, at(state, limit), KEY)[0]


def test_no_gradient_flows_through_the_size_that_qr_is_divided_by(batch, departed):
    """If it did, Qr over its own mean would be 1 wherever Qr > 0, and the reward would have no say."""
    method = replace(departed, anchor=1e-9, recovery_weight=0.0)
    state = method.init(KEY, jnp.asarray(1e6), Spec(OBS, ACT, mean_reward=1.0, mean_reward_size=1.0))
    gradient, metrics = jax.grad(method.actor_loss, has_aux=True)(state.actor, state.critics, batch, state, KEY)
    assert metrics["qr_policy"] > 10.0
    assert largest(gradient) > 1e-4


def test_the_printed_reparametrised_gradient_dies_where_every_action_is_unsafe(batch, printed):
    state = small_state(printed)
    assert largest(gradient_of_actor(printed, state, batch, -1e6)) == 0
    assert largest(gradient_of_actor(printed, state, batch, 1e6)) > 0


def test_our_gradient_lowers_the_cost_where_every_action_is_unsafe(batch, departed):
    method = replace(departed, anchor=0.0, recovery_weight=1e4)
    state = small_state(method)
    gradient = gradient_of_actor(method, state, batch, -1.0)
    moved = jax.tree.map(lambda p, g: p - 1e-3 * g / largest(gradient), state.actor, gradient)

    def cost(actor):
        actions, _ = sample_tanh(actor(batch.observations), KEY, (1,))
        return jnp.mean(jnp.maximum(state.critics.cost(batch.observations, actions[0]) + 1.0, 0.0))

    assert cost(state.actor) > 0
    assert cost(moved) < cost(state.actor)


def test_the_reparametrised_gradient_of_the_actor_matches_finite_differences(batch, printed):
    state = small_state(printed)
    gradient = gradient_of_actor(printed, state, batch, 1e6)
    noise = np.asarray(jax.random.normal(KEY, (1, ROWS, ACT)), np.float64)[0]
    copy = reference.float64_copy(state.actor.mlp)

    def loss():
        total = 0.0
        for s, e in zip(np.asarray(batch.observations, np.float64), noise, strict=True):
            out = reference.mlp(copy, s)
            action = np.tanh(out[:ACT] + np.exp(np.clip(out[ACT:], -5, 2)) * e)
            total -= min(reference.q(c, s, action) for c in state.critics.reward)
        return total / ROWS

    for layer, index in [(0, (0, 1)), (1, (2, 5)), (2, (1, 0)), (2, (4, 3))]:
        expected = reference.numerical_gradient(loss, copy.layers[layer].weight, index)
        assert np.asarray(gradient.mlp.layers[layer].weight)[index] == pytest.approx(expected, rel=2e-2, abs=1e-5)


# The whole step


def test_one_update_moves_each_network_and_only_by_its_own_loss(batch, printed):
    """Adam's first step is the learning rate against the gradient's sign, so the step shows each gradient's sign:
    compare it with the gradients of the losses with everything else held fixed."""
    state = small_state(printed)
    state = replace(state, alpha=jnp.asarray(2.0))
    keys = jax.random.split(KEY, 4)
    next_actions, _ = sample_tanh(state.actor(batch.next_observations), keys[0])
    candidates, _ = sample_tanh(state.actor(batch.observations), keys[1], (SMALL["ood_samples"],))
    kept = state.detector.score(batch.observations, candidates) >= state.detector.threshold
    ood = all_ood_actions(candidates, kept)
    cost_target = cost_bellman_target(state.targets.cost, batch, next_actions, 0.99)
    reward_target = penalized_bellman_target(state.targets, batch, next_actions, state.limit, 0.99)
    expected = {
        "cost": jax.grad(lambda c: cost_critic_loss(c, batch, cost_target, ood, state.alpha, 1.5 * state.limit)[0])(
            state.critics.cost
        ),
        "reward": jax.grad(lambda c: reward_critic_loss(c, batch, reward_target)[0])(state.critics.reward),
    }
    after, _ = printed.update(state, batch, KEY)
    expected["actor"] = jax.grad(printed.actor_loss, has_aux=True)(state.actor, after.critics, batch, state, keys[3])[0]
    moved = {
        "cost": (state.critics.cost, after.critics.cost),
        "reward": (state.critics.reward, after.critics.reward),
        "actor": (state.actor, after.actor),
    }
    for name, gradient in expected.items():
        before, then = moved[name]
        for g, b, a in zip(*map(jax.tree.leaves, (gradient, before, then)), strict=True):
            g, step = np.asarray(g), np.asarray(a) - np.asarray(b)
            clear = np.abs(g) > 1e-5
            np.testing.assert_allclose(step[clear], -3e-4 * np.sign(g[clear]), rtol=0.05, err_msg=name)
            assert np.all(np.abs(step[np.abs(g) == 0]) < 1e-9), name


def test_an_update_puts_the_equations_together_as_algorithm_1_does(batch, printed):
    """Which states, actions, critics and limit each equation gets, against loops over q(critic, s, a)."""
    limit, alpha, q = 0.1, 0.7, reference.q
    state = replace(small_state(printed, limit=limit), alpha=jnp.asarray(alpha))
    next_key, ood_key = jax.random.split(KEY, 4)[:2]
    next_actions = sample_tanh(state.actor(batch.next_observations), next_key)[0]
    candidates = sample_tanh(state.actor(batch.observations), ood_key, (printed.ood_samples,))[0]
    scores = state.detector.score(batch.observations, candidates)
    state = replace(state, detector=replace(state.detector, threshold=jnp.median(scores)))

    errors, reward_errors, pushed = [], [], []
    for j in range(ROWS):
        s, a, following, a_next = (np.asarray(x[j]) for x in (*batch[:2], batch.next_observations, next_actions))
        mask = printed.discount * batch.continues[j]
        next_cost = q(state.targets.cost, following, a_next)
        next_value = min(q(critic, following, a_next) for critic in state.targets.reward)
        errors.append(q(state.critics.cost, s, a) - (batch.costs[j] + mask * next_cost))
        target = batch.rewards[j] + mask * (next_value if next_cost <= limit else 0.0)
        reward_errors.extend(q(critic, s, a) - target for critic in state.critics.reward)
        kept = [candidates[i, j] for i in range(printed.ood_samples) if scores[i, j] >= jnp.median(scores)]
        pushed.append(np.mean([q(state.critics.cost, s, np.asarray(x)) for x in kept]) if kept else 0.0)

    after, metrics = printed.update(state, batch, KEY)
    shortfall = 1.5 * limit - np.mean(pushed)  # l_c = 1.5 l
    assert float(metrics["cost_loss"]) == pytest.approx(np.mean(np.square(errors)) + alpha * shortfall, rel=1e-4)
    assert float(metrics["reward_loss"]) == pytest.approx(2 * np.mean(np.square(reward_errors)), rel=1e-4)
    assert float(after.alpha) == pytest.approx(alpha + printed.alpha_rate * shortfall, rel=1e-6)


def test_an_update_takes_both_bellman_targets_from_the_target_critics(batch, printed):
    state = small_state(printed, limit=1e6)  # everything is safe, so that Qr(s', a') itself is backed up
    live = replace(state, targets=state.critics)
    from_targets, from_live = (printed.update(s, batch, KEY)[1] for s in (state, live))
    for loss in ("cost_loss", "reward_loss"):
        assert float(from_targets[loss]) != pytest.approx(float(from_live[loss]), rel=1e-3)


def test_the_targets_follow_by_tau_and_the_limit_and_the_detector_do_not_move(batch, printed):
    state = small_state(printed)
    after, _ = printed.update(state, batch, KEY)
    for old, new, live in zip(*map(jax.tree.leaves, (state.targets, after.targets, after.critics)), strict=True):
        np.testing.assert_allclose(new, 0.995 * old + 0.005 * live, rtol=1e-4, atol=1e-7)
    for part in ("limit", "detector"):
        for old, new in zip(jax.tree.leaves(getattr(state, part)), jax.tree.leaves(getattr(after, part)), strict=True):
            np.testing.assert_array_equal(old, new)


def test_stage_one_trains_the_detector_and_nothing_else(batch, printed):
    state = small_state(printed)
    after, _ = printed.update_detector(state, batch, KEY)
    for part in ("critics", "targets", "actor", "alpha", "limit"):
        for old, new in zip(jax.tree.leaves(getattr(state, part)), jax.tree.leaves(getattr(after, part)), strict=True):
            np.testing.assert_array_equal(old, new)
    assert largest(jax.tree.map(jnp.subtract, after.detector.cvae, state.detector.cvae)) > 0
    assert after.detector.threshold == state.detector.threshold


def test_the_policy_handed_out_is_the_actor_as_printed_and_an_average_of_actors_in_ours(batch, printed, departed):
    state = small_state(printed)
    assert printed.policy_actor(state) is state.actor
    late = replace(small_state(departed), step=jnp.asarray(100_000))
    after, _ = departed.update(late, batch, KEY)
    for old, new, average in zip(
        *map(jax.tree.leaves, (late.averaged_actor, after.actor, departed.policy_actor(after))), strict=True
    ):
        np.testing.assert_allclose(average, (100_000 * old + 2 * new) / 100_002, rtol=1e-4, atol=1e-7)
    assert after.step == 100_001


def test_actors_weigh_in_the_average_in_proportion_to_their_step():
    average = np.zeros(50)
    for step in range(50):
        rate = float(averaging_rate(jnp.asarray(step)))
        average = (1 - rate) * average + rate * np.eye(50)[step]
    np.testing.assert_allclose(average, np.arange(1, 51) / np.arange(1, 51).sum(), atol=1e-6)


def test_next_actions_are_the_most_likely_ones_with_noise_of_the_given_size_inside_the_bounds(batch, departed):
    state = small_state(departed)
    mode = np.tanh(np.asarray(state.actor(batch.next_observations).mean))
    many = jax.vmap(lambda key: departed.next_actions(state, batch, key))(jax.random.split(KEY, 4000))
    assert np.abs(mode).max() < 0.6  # the bounds are six standard deviations away
    np.testing.assert_allclose(many.mean(0), mode, atol=0.01)
    np.testing.assert_allclose(many.std(0), departed.target_noise, rtol=0.1)
    np.testing.assert_allclose(replace(departed, target_noise=0.0).next_actions(state, batch, KEY), mode, rtol=1e-6)
    assert np.abs(smoothed_actions(jnp.full((100, 2), 0.99), 1.0, KEY)).max() == 1.0


def test_unsafe_logged_actions_weigh_a_tenth_of_safe_ones_and_the_safest_part_counts_as_safe():
    costs = jnp.arange(10.0)
    half = safe_weights(costs, jnp.asarray(4.0), 0.1)
    np.testing.assert_allclose(half, np.array([1.0] * 5 + [0.1] * 5) / 0.55, rtol=1e-6)
    np.testing.assert_allclose(safe_weights(costs, jnp.asarray(100.0), 0.1), np.ones(10))
    safest = safe_weights(costs, jnp.asarray(-1.0), 0.0)  # the edge is the 0.3 quantile, 2.7
    np.testing.assert_allclose(safest, [10 / 3] * 3 + [0.0] * 7, rtol=1e-6)


def test_the_anchor_pulls_by_the_weights_that_the_cost_critic_gives(batch, departed):
    """With weight 0 for unsafe rows the gradient of the anchor does not depend on the actions in them."""
    method = replace(departed, anchor=1e6, recovery_weight=0.0, unsafe_anchor=0.0)
    state = small_state(method)
    logged_cost = np.asarray(state.critics.cost(batch.observations, batch.actions))
    limit = float(np.median(logged_cost))
    moved = batch._replace(actions=jnp.where((logged_cost > limit)[:, None], -batch.actions, batch.actions))
    fixed_cost = state.critics._replace(cost=lambda s, a: jnp.asarray(logged_cost))
    here, there, with_all = (
        jax.grad(each.actor_loss, has_aux=True)(state.actor, fixed_cost, rows, at(state, limit), KEY)[0]
        for each, rows in ((method, batch), (method, moved), (replace(method, unsafe_anchor=0.5), moved))
    )
    for a, b in zip(*map(jax.tree.leaves, (here, there)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert largest(jax.tree.map(jnp.subtract, here, with_all)) > 1.0


def test_fresh_critics_have_the_size_and_the_mean_of_the_logs_values(printed, departed):
    spec = Spec(OBS, ACT, mean_reward=-3.0, mean_reward_size=5.0, mean_cost=0.5)
    state = departed.init(jax.random.key(0), jnp.asarray(30.0), spec)
    assert [critic.scale for critic in state.critics.reward] == [512.0] * 2  # the power of two nearest 5 / (1 - 0.99)
    assert state.critics.cost.scale == 64.0  # nearest 0.5 / (1 - 0.99)
    unsized = departed.init(jax.random.key(0), jnp.asarray(30.0), Spec(OBS, ACT)).critics
    pair = jnp.ones((4, OBS)), jnp.zeros((4, ACT))
    for critic, plain, mean in [
        (state.critics.reward[0], unsized.reward[0], -300.0),
        (state.critics.reward[1], unsized.reward[1], -300.0),
        (state.critics.cost, unsized.cost, 50.0),
    ]:
        np.testing.assert_allclose(critic(*pair), mean + critic.scale * plain(*pair), rtol=1e-4)
    as_printed = printed.init(jax.random.key(0), jnp.asarray(30.0), spec).critics
    assert {as_printed.cost.scale, as_printed.reward[0].scale} == {1.0}
    np.testing.assert_allclose(as_printed.cost.mlp.layers[-1].bias, unsized.cost.mlp.layers[-1].bias)


def test_a_log_without_cost_leaves_the_cost_critic_at_size_one(departed):
    state = departed.init(jax.random.key(0), jnp.asarray(30.0), Spec(OBS, ACT, mean_cost=0.0))
    assert state.critics.cost.scale == 1.0


def test_the_paper_preset_has_the_papers_constants():
    assert type(CPQ.paper(limit=3.0)) is PaperCPQ
    assert CPQ.paper(limit=3.0).limit == 3.0
    assert CPQ.paper().ood_limit_ratio == 1.5  # l_c = 1.5 l, "Practical Considerations"


def test_with_every_replaced_line_given_back_ours_is_the_paper(batch, printed):
    """What CPQ replaces of Algorithm 1 is what its class names, and nothing hides elsewhere."""
    replaced = {name for name, value in vars(CPQ).items() if callable(value) and callable(vars(PaperCPQ).get(name))}
    lines = {name for name in replaced if not name.startswith("__")} - {"init", "update"}
    assert lines >= {"fresh_critics", "choose_ood", "next_alpha", "reward_target", "actor_loss"}
    method = type("GivenBack", (CPQ,), {name: vars(PaperCPQ)[name] for name in lines})
    given_back = method(**SMALL, tau=printed.tau, feedback=0.0)
    spec = Spec(OBS, ACT, mean_reward=-3.0, mean_reward_size=5.0, mean_cost=0.5)
    ours, paper = (method.init(KEY, jnp.asarray(0.05), spec) for method in (given_back, printed))
    for i in range(3):
        (ours, seen), (paper, expected) = (
            method.update(state, batch, jax.random.fold_in(KEY, i))
            for method, state in ((given_back, ours), (printed, paper))
        )
        assert seen == expected
    for part in ("critics", "targets", "actor", "alpha"):
        for a, b in zip(*map(jax.tree.leaves, (getattr(ours, part), getattr(paper, part))), strict=True):
            np.testing.assert_array_equal(a, b)
