"""CPQ with a limit for each row, against loops over rows; and that a range of no width is ordinary CPQ."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms import CPQ, Spec
from ringfence.algorithms.cpq import cost_critic_loss
from ringfence.algorithms.cpq_departures import alpha_step_where_ood, penalised_value, safe_weights
from ringfence.algorithms.cpq_limits import LimitBlind, band_count, draw_limits, for_drawn_limits, with_limit
from ringfence.errors import InvalidSetting
from tests.equations import reference
from tests.equations.conftest import ACT, OBS, ROWS, SMALL, policy_of, small_state
from tests.equations.test_cpq import some_ood

KEY = jax.random.key(5)
RANGE = (20.0, 60.0)
RNG = np.random.default_rng(0)
LIMITS = np.sort(RNG.uniform(*RANGE, 64)).astype(np.float32)  # 64 rows: 4 bands of 16


def test_every_batch_covers_the_range_and_each_row_draws_anew():
    first, second = (np.asarray(draw_limits(RANGE, 40, jax.random.key(i))) for i in (0, 1))
    for drawn in (first, second):
        assert [int(limit - 20) for limit in drawn] == list(range(40))  # one in each of 40 parts of width 1
    assert (first != second).all()
    shares = np.concatenate([draw_limits(RANGE, 40, jax.random.key(i)) for i in range(200)]) % 1
    assert shares.mean() == pytest.approx(0.5, abs=0.02)  # uniform in its part


def test_bands_have_at_least_16_rows_and_as_many_each():
    assert [band_count(rows) for rows in (256, 64, 16, 6, 100, 96)] == [8, 4, 1, 1, 4, 4]


def test_safe_actions_are_weighed_among_rows_with_similar_limits():
    costs = RNG.uniform(10, 90, 64).astype(np.float32)
    costs[:16] += 60  # nothing is safe at the lowest limits: there the 0.3 quantile of Qc / l decides
    found = np.asarray(safe_weights(jnp.asarray(costs), jnp.asarray(LIMITS), 0.1))
    for band in np.split(np.arange(64), 4):
        ratio = costs[band] / LIMITS[band]
        safe = ratio <= max(1.0, np.quantile(ratio, 0.3))
        weights = np.where(safe, 1.0, 0.1)
        np.testing.assert_allclose(found[band], weights / weights.mean(), rtol=1e-4)
    assert (found[:16] > 1).sum() == 5  # of 16 rows, 0.3 x 15 = 4.5 are below the quantile


def test_each_row_pays_for_the_excess_over_its_own_limit_and_values_have_the_size_of_their_band():
    qr, qc = (RNG.uniform(low, 90, (2, 64)).astype(np.float32) for low in (-90, 10))
    found = np.asarray(penalised_value(jnp.asarray(qr), jnp.asarray(qc), jnp.asarray(LIMITS), 3.0))
    for i in range(2):
        for j in range(64):
            size = np.abs(qr[:, 16 * (j // 16) : 16 * (j // 16) + 16]).mean()
            expected = qr[i, j] / size - 3.0 * max(qc[i, j] - LIMITS[j], 0.0) / LIMITS[j]
            assert found[i, j] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_end_of_an_episode_the_push_and_alpha_use_the_limit_of_the_row(batch, departed):
    limits = np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0], np.float32)
    state = replace(small_state(departed), limit=jnp.asarray(limits), alpha=jnp.asarray(0.7))
    target = departed.cost_target(state, batch, batch.actions)
    following = reference.q_each(state.targets.cost, batch.next_observations, batch.actions)
    expected = [
        float(batch.costs[i]) + departed.discount * (following[i] if goes_on else limits[i])
        for i, goes_on in enumerate([1, 0, 1, 1, 0, 1])
    ]
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-6)

    actions, ood = some_ood(np.array([[1, 0, 1, 1, 0, 1]], bool))
    loss, (_, ood_values) = cost_critic_loss(
        state.critics.cost, batch, target, ood, state.alpha, departed.ood_limit_ratio * state.limit
    )
    q = reference.q_each(state.critics.cost, batch.observations, batch.actions)
    pushed = reference.q_each(state.critics.cost, batch.observations, actions[0]) * np.array([1, 0, 1, 1, 0, 1])
    by_row = [(q[i] - expected[i]) ** 2 - 0.7 * (pushed[i] - 1.5 * limits[i]) for i in range(ROWS)]
    assert float(loss) == pytest.approx(np.mean(by_row), rel=1e-4)

    risen = alpha_step_where_ood(state.alpha, ood_values, ood.has_ood, 1.5 * state.limit, 0.01)
    gaps = [1.5 * limits[i] - pushed[i] for i in (0, 2, 3, 5)]
    assert float(risen) == pytest.approx(0.7 + 0.01 * sum(gaps) / ROWS, rel=1e-4)


def test_a_row_shows_its_limit_to_actor_and_critics_in_both_states_and_not_to_the_detector(batch, departed):
    state, seen = small_state(departed), {}

    def look(state, batch, key):
        seen.update(state=state, batch=batch)
        return state, {}

    after, _ = for_drawn_limits(look, RANGE)(state, batch, KEY)
    limit = np.asarray(seen["state"].limit)
    assert limit.shape == (ROWS,)
    for mine, plain in (("observations", batch.observations), ("next_observations", batch.next_observations)):
        shown = np.asarray(getattr(seen["batch"], mine))
        np.testing.assert_array_equal(shown[:, :OBS], plain)
        np.testing.assert_allclose(shown[:, OBS], 2 * (limit - 20) / 40 - 1, atol=1e-6)
    scores = seen["state"].detector.score(seen["batch"].observations, batch.actions)
    np.testing.assert_array_equal(scores, state.detector.score(batch.observations, batch.actions))
    assert after.limit == state.limit
    assert type(after.detector) is type(state.detector)


def widened(network):
    """The same network with a limit as an input that it does not use."""
    weight = network.mlp.layers[0].weight
    return eqx.tree_at(lambda n: n.mlp.layers[0].weight, network, jnp.insert(weight, OBS, 0.0, axis=0))


def test_over_a_range_of_no_width_every_loss_is_that_of_cpq_with_one_limit(batch, departed):
    """Networks that ignore the limit, a range of 30 +- 0.0005: one update gives the same losses and the same networks."""
    departed = replace(departed, feedback=0.0)  # a range has none
    one = small_state(departed, limit=30.0)
    ranged = replace(departed, limits=(29.9995, 30.0005))
    state = small_state(ranged, limit=30.0)
    for name in ("actor", "averaged_actor"):
        state = replace(state, **{name: widened(getattr(one, name))})
    for name in ("critics", "targets"):
        was = getattr(one, name)
        now = type(was)(tuple(map(widened, was.reward)), widened(was.cost))
        state = replace(state, **{name: now})
    state = replace(state, detector=one.detector)
    expected, metrics = jax.jit(departed.update)(one, batch, KEY)
    found, ranged_metrics = jax.jit(ranged.update)(state, batch, KEY)
    for name, value in metrics.items():
        assert float(ranged_metrics[name]) == pytest.approx(float(value), rel=1e-3, abs=1e-5), name
    for mine, theirs in (
        (found.actor, expected.actor),
        (found.critics.cost, expected.critics.cost),
        (found.critics.reward[0], expected.critics.reward[0]),
    ):
        without = jnp.delete(mine.mlp.layers[0].weight, OBS, axis=0)
        np.testing.assert_allclose(without, theirs.mlp.layers[0].weight, atol=1e-4)
        np.testing.assert_allclose(mine.mlp.layers[-1].weight, theirs.mlp.layers[-1].weight, atol=1e-4)


def test_what_is_exported_answers_as_the_networks_did_in_training():
    method = CPQ(limits=RANGE, **SMALL)
    state = method.init(KEY, jnp.asarray(40.0), Spec(OBS, ACT))
    policy, observations = policy_of(method.export(state)), RNG.normal(size=(5, OBS)).astype(np.float32)
    for limit in (20.0, 33.0, 60.0):
        seen = with_limit(jnp.asarray(observations), jnp.asarray(limit), RANGE)
        actions = state.averaged_actor.mode(seen)
        np.testing.assert_allclose(policy(observations, limit=limit), actions, atol=1e-5)
        costs = policy.artifact.cost_to_go(observations, actions, limit=limit)
        np.testing.assert_allclose(costs, state.critics.cost(seen, actions), atol=1e-4)
    assert policy.artifact.networks["encoder"].inputs == ("observation", "action")


def test_diagnostics_ask_actor_and_critics_at_the_limit_of_the_state(batch):
    from ringfence.algorithms import Sample

    method = CPQ(limits=RANGE, **SMALL)
    state = method.init(KEY, jnp.asarray(33.0), Spec(OBS, ACT))
    found = method.diagnose(state, Sample(batch, jnp.zeros(ROWS), jnp.zeros(ROWS)), KEY)
    starts = with_limit(batch.starts, jnp.asarray(33.0), RANGE)
    expected = reference.q_each(state.critics.cost, starts, state.averaged_actor.mode(starts)).mean()
    assert float(found["qc_start"]) == pytest.approx(expected, rel=1e-4)
    assert isinstance(state.detector, LimitBlind) is False


@pytest.mark.parametrize(
    "limits",
    [(60.0, 20.0), (20.0, 20.0), (-1.0, 20.0), (np.nan, 20.0), (1.0, np.inf), (20.0,), [20.0, 60.0], 20.0, "ab"],
)
def test_what_is_no_range_of_limits_is_refused_by_name(limits):
    with pytest.raises(InvalidSetting, match="limits"):
        CPQ(limits=limits)


def test_a_method_has_one_limit_or_a_range():
    with pytest.raises(InvalidSetting, match="give one of them"):
        CPQ(limit=30.0, limits=RANGE)
