"""The two policies that take turns, and how often: against a linear program over all mixtures, and in what CPQ exports."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from ringfence.algorithms import Spec
from ringfence.algorithms.cpq_clone import CLONED, Clone
from ringfence.algorithms.cpq_expected import CLONE_GAIN, EPISODES, FARTHEST, NOISE, imagine, with_gain
from ringfence.algorithms.cpq_handout import costly_policy, hand_out_of
from ringfence.algorithms.cpq_imagined import Plant
from ringfence.algorithms.cpq_turns import LEAST_SHARE, Worth, best_turns, turns_in_words
from ringfence.networks import TanhGaussianActor
from ringfence.optimise import Adam
from tests.equations.conftest import ACT, OBS
from tests.equations.test_cpq_handout import (
    AVERAGED,
    COPY,
    DISCOUNT,
    KEY,
    PLANT,
    constant_actor,
    cost_of_gain,
    given_to_choose,
    other_actor,
    return_of_gain,
    same,
    settled,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")
LIMIT = 30.0


def worth(returned, cost, counts=True):
    return Worth(*map(jnp.asarray, (float(returned), float(cost), counts)))


def turns(*policies, limit=LIMIT):
    return best_turns(*policies, jnp.asarray(limit))


def test_the_share_takes_the_mean_cost_to_the_limit():
    """20 and 60 are 30 on average if the costly one acts in a quarter of the episodes: 0.75 x 100 + 0.25 x 300 = 150."""
    found = turns(worth(120, 29), worth(100, 20), worth(300, 60))
    assert bool(found.worth)
    assert bool(found.cheap_is_clone)
    assert tuple(map(float, found[2:])) == pytest.approx((0.25, 150.0, 20.0, 60.0), rel=1e-6)
    assert turns_in_words(found) == pytest.approx(
        {"share": 0.25, "expected_return": 150.0, "cheap_cost": 20.0, "costly_cost": 60.0}, rel=1e-6
    )
    assert {type(value) for value in turns_in_words(found).values()} == {float}  # for JSON


@pytest.mark.parametrize("seed", range(3))
def test_the_pair_is_what_a_linear_program_over_all_mixtures_with_the_costly_policy_finds(seed):
    """max w R subject to w C <= l, w >= 0, sum w = 1, with one of the cheap policies left out in turn."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        cheap = np.stack([rng.uniform(50, 150, 2), rng.uniform(10, LIMIT, 2)], 1)
        dear = rng.uniform(150, 400), rng.uniform(LIMIT + 1, 80)
        best = max(
            -linprog(
                -np.array([one[0], dear[0]]), [[one[1], dear[1]]], [LIMIT], np.ones((1, 2)), [1.0], bounds=(0, 1)
            ).fun
            for one in cheap
        )
        found = turns(worth(*cheap[0]), worth(*cheap[1]), worth(*dear))
        assert float(found.returned) == pytest.approx(best, rel=1e-4)
        both = [cheap[1] if found.cheap_is_clone else cheap[0], dear]
        w = float(found.share)
        assert (1 - w) * both[0][1] + w * both[1][1] == pytest.approx(LIMIT, rel=1e-4)


def test_turns_are_not_worth_it_without_a_gain_a_share_a_limit_or_a_policy_over_it():
    handed_out, clone, costly = worth(120, 24), worth(100, 20), worth(300, 60)
    assert bool(turns(handed_out, clone, costly).worth)
    assert not turns(handed_out, clone, costly._replace(counts=jnp.asarray(False))).worth
    assert not turns(handed_out, clone, costly, limit=61.0).worth  # the costly one is inside
    assert not turns(handed_out, clone, worth(119, 60)).worth
    assert not turns(worth(120, 31), worth(100, 31), costly).worth  # the cheap ones are over the limit: the share is 0
    assert not turns(worth(0, 0), worth(0, 0), worth(5, 1), limit=0.0).worth
    least = 24 + LEAST_SHARE * 36
    assert [bool(turns(handed_out, clone._replace(counts=jnp.asarray(False)), costly, limit=least + x).worth)
            for x in (-0.01, 0.01)] == [False, True]  # fmt: skip


def test_a_clone_that_does_not_count_takes_no_turns():
    found = turns(worth(120, 24), worth(1000, 20, False), worth(300, 60))
    assert not bool(found.cheap_is_clone)
    assert float(found.cheap_cost) == 24.0


def test_where_no_episode_terminated_the_costly_policy_is_the_averaged_actor_with_the_greatest_gain():
    limit = 0.98 * cost_of_gain(1 + FARTHEST)
    found = hand_out_of(given_to_choose(PLANT, limit, rows=0), 8, DISCOUNT)
    assert bool(found.turns.worth)
    assert not bool(found.turns.cheap_is_clone)
    assert same(found.cheap, found.actor)
    np.testing.assert_allclose(found.costly.mlp.layers[-1].bias[:ACT], (1 + FARTHEST) * np.array([0.5, 0.2]), rtol=1e-5)
    assert float(found.turns.costly_cost) == pytest.approx(cost_of_gain(1 + FARTHEST), rel=1e-5)


def test_the_cheap_policy_is_the_clone_with_its_gain_where_that_pair_earns_more_than_the_one_handed_out():
    """It earns nearly as much as the averaged actor, which is handed out, and costs a fifth of it."""
    cheap = constant_actor(0.1, 0.18)
    limit = 0.98 * cost_of_gain(1 + FARTHEST)
    found = hand_out_of(given_to_choose(PLANT, limit, clone=cheap), 8, DISCOUNT)
    assert not bool(found.choice.clone)
    assert bool(found.turns.worth)
    assert bool(found.turns.cheap_is_clone)
    assert same(found.cheap, with_gain(cheap, jnp.asarray(CLONE_GAIN)))
    over = hand_out_of(given_to_choose(PLANT, 0.9 * cost_of_gain(1.0, mean=0.3), averaged=AVERAGED), 8, DISCOUNT)
    assert not bool(over.turns.cheap_is_clone)  # the clone is over the limit


def test_where_episodes_terminated_the_greatest_gain_takes_no_turns():
    gains = jnp.linspace(0.9, 1.1, 11)
    for growth, counts in ((1.0, True), (1.5, False)):
        given = given_to_choose(PLANT, 1.0, growth=growth)
        _, worth = costly_policy(given, gains, given.expected(gains, 8, DISCOUNT), 8, DISCOUNT)
        assert bool(worth.counts) == counts


def test_the_costly_clone_is_judged_by_undisturbed_episodes():
    around = {"low": jnp.full(OBS, -20.0), "high": jnp.full(OBS, 20.0), "errors": jnp.full(OBS + 1, 0.5)}
    wide = replace(Plant.create(Spec(OBS, ACT), (8, 8), KEY), **around)
    clone = TanhGaussianActor(OBS, ACT, (8, 8), key=KEY)
    starts = jnp.asarray(np.random.default_rng(3).normal(size=(4, OBS)), jnp.float32)
    given = given_to_choose(wide, 1.0, growth=1.2, costly=clone, starts=starts)
    gains = jnp.ones(11)
    _, found = costly_policy(given, gains, given.expected(gains, 8, DISCOUNT), 8, DISCOUNT)
    calm = imagine(
        wide, clone.mode, jnp.resize(starts, (EPISODES, OBS))[None], 8, DISCOUNT, given.cost_of_end, jnp.zeros(()), KEY
    )
    noisy = given.run(clone.mode, 1, jnp.asarray(NOISE / 1.2), 8, DISCOUNT)
    assert (float(found.returned), float(found.cost)) == pytest.approx(
        (float(calm.returned[0]), float(calm.cost[0])), rel=1e-5
    )
    assert abs(float(noisy.returned[0]) - float(calm.returned[0])) > 1e-3


DEAR = constant_actor(0.9, 1.5)


def test_where_episodes_terminated_it_is_the_clone_of_the_costly_ones_and_the_safe_clone_has_its_gain():
    limit = 1.2 * cost_of_gain(CLONE_GAIN, mean=0.3)
    poor = constant_actor(0.3, 0.1)  # handed out is the clone
    given = given_to_choose(PLANT, limit, growth=4.0, averaged=poor, costly=DEAR)
    found = hand_out_of(given, 8, DISCOUNT)
    assert bool(found.choice.clone)
    assert bool(found.turns.worth)
    assert same(found.costly, DEAR)
    assert same(found.cheap, with_gain(COPY, jnp.asarray(CLONE_GAIN)))
    assert float(found.turns.costly_cost) == pytest.approx(cost_of_gain(1.0, mean=0.9), rel=1e-5)
    share = (limit - cost_of_gain(CLONE_GAIN, mean=0.3)) / (cost_of_gain(1.0, 0.9) - cost_of_gain(CLONE_GAIN, 0.3))
    assert float(found.turns.share) == pytest.approx(share, rel=1e-4)
    cheap, dear = return_of_gain(CLONE_GAIN, mean=0.6), return_of_gain(1.0, mean=1.5)
    assert float(found.turns.returned) == pytest.approx(cheap + share * (dear - cheap), rel=1e-4)
    few = given._replace(costly=replace(given.costly, rows=jnp.asarray(CLONED - 1.0)))
    assert not bool(hand_out_of(few, 8, DISCOUNT).turns.worth)
    none = given._replace(costly=None)
    assert not bool(hand_out_of(none, 8, DISCOUNT).turns.worth)


def test_a_costly_clone_that_ends_most_disturbed_episodes_early_does_not_count():
    """It ends every episode in which noise takes a column out of the log's range: nearly all, or none."""
    for high, counts in ((0.05, False), (1e3, True)):
        plant = replace(PLANT, low=jnp.full(OBS, -high), high=jnp.full(OBS, high), errors=jnp.ones_like(PLANT.errors))
        given = given_to_choose(plant, 50.0, growth=2.0, costly=DEAR)
        gains = jnp.ones(11)
        _, of_costly = costly_policy(given, gains, given.expected(gains, 8, DISCOUNT), 8, DISCOUNT)
        assert bool(of_costly.counts) == counts


def test_the_costly_clone_learns_from_the_rows_that_the_safe_one_leaves(batch):
    from tests.equations.test_cpq_handout import with_costs

    actor, adam = constant_actor(0.0, 0.0), Adam(1e-2)
    rows = with_costs(batch, [0.1, 0.9, 0.5, 0.6, 0.2, 0.8])
    limit = jnp.asarray(0.5)
    safe = Clone.create(actor, adam).fit(rows, limit, adam)
    costly = Clone.create(actor, adam, costly=True).fit(rows, limit, adam)
    assert (float(safe.rows), float(safe.others)) == (3.0, 3.0) == (float(costly.others), float(costly.rows))
    turned = with_costs(batch, [0.9, 0.1, 0.6, 0.4, 0.8, 0.2])  # the other side of the limit
    assert same(costly.actor, Clone.create(actor, adam).fit(turned, limit, adam).actor)
    assert not same(costly.actor, safe.actor)


def test_cpq_has_a_costly_clone_where_logged_episodes_failed_and_exports_both(departed):
    method = replace(departed, discount=DISCOUNT)

    def begun(terminated, **changes):
        return replace(method, **changes).init(KEY, jnp.asarray(5.0), Spec(OBS, ACT, horizon=8, terminated=terminated))

    assert begun(0.0).costly is None
    assert begun(0.3, episode_end="ends").costly is None
    assert begun(0.3).costly.costly
    limit = 1.2 * cost_of_gain(CLONE_GAIN, mean=0.3)
    state = settled(method, limit, terminated=0.25, rows=CLONED)
    counts = jnp.ones(()), jnp.asarray(float(CLONED)), jnp.ones(())
    dear = Clone(other_actor(), DEAR, state.costly.optimiser, *counts, costly=True)
    state = replace(state, costly=dear, averaged_actor=constant_actor(0.3, 0.1))
    export = method.export(state)
    assert export.facts["handed_out"]["can_take_turns"]
    assert export.facts["turns"]["costly_cost"] == pytest.approx(cost_of_gain(1.0, mean=0.9), rel=1e-5)
    assert same(export.networks["costly_actor"], DEAR)
    assert same(export.networks["cheap_actor"], export.networks["actor"])
    apart = method.export(replace(state, costly=replace(dear, rows=jnp.zeros(()))))
    assert "turns" not in apart.facts
    assert not {"cheap_actor", "costly_actor"} & set(apart.networks)
