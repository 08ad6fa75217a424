"""The policy that CPQ hands out: chosen from a few by what they earn and cost in episodes of the fitted model.

Critics judge single actions in logged states. How a policy does over a whole episode, and in which of several gaits it ends
up, they do not see; a model of the plant does (`results/cpq-study/README.md`, the eleventh round). So what is handed out is
the one of these that earns most in the model (`cpq_expected.py`) with its cost inside the limit:

    tanh(gain x mean)   the averaged actor, for a few gains around 1
    the safe clone      the logged actions of the safe episodes, made as likely as possible: BC-Safe, learned beside CPQ; as
                        it is, and with a gain of CLONE_GAIN

The gain is a dial for the cost (docs/cpq-explained.md has measurements). The clone is there because a policy that uncertain
critics improved should not be handed out where copying the log earns more. With the policy's file come networks for a pacer
and for taking turns, where those would earn more (`cpq_turns.py`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ringfence.algorithms.cpq_expected import (
    CLONE,
    CLONE_GAIN,
    CLONE_RAISED,
    FARTHEST,
    GAINS,
    NOISE,
    Expected,
    Policies,
    gains_around_one,
    with_gain,
)
from ringfence.algorithms.cpq_imagined import AIM, PREDICTED, SETTLED, Plant
from ringfence.algorithms.cpq_turns import LEAST_COMPLETED, Mixed, Worth, best_turns, turns_in_words
from ringfence.algorithms.interface import Export
from ringfence.networks import TanhGaussianActor

Scalar = Float[Array, ""]

LOWEST = 0.3  # a pacer without budget uses the gain 1 - LOWEST; a smaller reduction leaves HalfCheetah in its fast gait
RAISED = 0.88  # of the limit: what a gain over 1 may cost. True costs were up to 1.17 times what the models said
MORE_EARLY_ENDS = 0.02  # of the episodes: a gain may raise the share that ends early by at most this
MORE_THAN_CLONE = 0.12  # the same, of an averaged actor in comparison with the clone
LEAD = 0.03  # of its return: what the averaged actor must earn more than the clone where logged episodes terminated
DISPUTED = 1.1  # of the limit: what a network of the model alone may expect there of the averaged actor
LEAST_SAVED = 1 / 3  # of an episode: where a pacer saves for less, the clone does not save for it


# The choice


class Choice(NamedTuple):
    """What is handed out, and what the model expects of it."""

    clone: Bool[Array, ""]
    gain: Scalar  # of the averaged actor or of the clone
    returned: Scalar
    cost: Scalar


class Doubts(NamedTuple):
    """What speaks against the averaged actor where logged episodes terminated; elsewhere there are none."""

    lead: Scalar | float = 0.0  # see `LEAD`
    disputed_cost: Scalar | float = 0.0  # see `Policies.disputed_cost`


NO_DOUBTS = Doubts()


def choose_policy(
    gains: Float[Array, " gains"],
    expected: Expected,
    limit: Scalar,
    cloned: Bool[Array, ""],
    doubts: Doubts = NO_DOUBTS,
) -> Choice:
    """The candidate that earns most in the model among those inside the limit: the averaged actor with each of the gains,
    and as the last candidate the clone, if there is one. Without one inside it is the averaged actor as it is.

    A gain up to 1 is held to AIM x l, as the slack is; a greater one, which makes the learned policy costlier, to RAISED x
    l, because of the model's own error; the clone to l: its episodes were logged inside. A gain with which more episodes end
    early than with a gain of 1 (by MORE_EARLY_ENDS), or than with the clone where that counts (by MORE_THAN_CLONE), does not
    count. If the gain after the best one would earn more but costs too much, the one between the two that costs as much as
    it may is taken, by linear interpolation. Where logged episodes terminated the averaged actor must earn more than the
    clone by LEAD, and no network of the model may expect it to cost more than DISPUTED x l."""
    plain = GAINS // 2
    aim = jnp.where(jnp.arange(GAINS) > plain, RAISED, AIM) * limit
    counts = cloned & clone_is_inside(expected, limit)
    of_clone = jnp.where(counts, expected.completed[CLONE] - MORE_THAN_CLONE, 0.0)
    whole = expected.completed[:GAINS] >= jnp.maximum(expected.completed[plain] - MORE_EARLY_ENDS, of_clone)
    allowed = (expected.cost[:GAINS] <= aim) & whole & (doubts.disputed_cost <= DISPUTED * limit)
    best = jnp.where(allowed.any(), jnp.argmax(jnp.where(allowed, expected.returned[:GAINS], -jnp.inf)), plain)
    further = jnp.minimum(best + 1, GAINS - 1)
    rise = expected.cost[further] - expected.cost[best]
    better = (expected.returned[further] > expected.returned[best]) & (expected.cost[further] > aim[further])
    between = jnp.where(
        allowed[best] & better & whole[further] & (rise > 0.0), (aim[further] - expected.cost[best]) / rise, 0.0
    )
    between = jnp.clip(between, 0.0, 1.0)

    def at(values: Float[Array, " gains"]) -> Scalar:
        return values[best] + between * (values[further] - values[best])

    scaled = Choice(jnp.zeros((), bool), at(gains), at(expected.returned), at(expected.cost))
    copied = choose_clone(expected, limit)
    to_beat = copied.returned + doubts.lead * jnp.abs(copied.returned)
    wins = counts & (~allowed.any() | (to_beat > scaled.returned))
    return Choice(*(jnp.where(wins, a, b) for a, b in zip(copied, scaled, strict=True)))


def clone_is_inside(expected: Expected, limit: Scalar) -> Bool[Array, ""]:
    """No model says exactly 0, so at a limit of 0 the log is believed: the episodes that the clone copies cost nothing."""
    return (expected.cost[CLONE] <= limit) | (limit <= 0.0)


def choose_clone(expected: Expected, limit: Scalar) -> Choice:
    """The clone, with the gain that earns more. The one over 1 is held to AIM x l, and may raise the share of episodes that
    end early by MORE_EARLY_ENDS."""
    inside = expected.cost[CLONE_RAISED] <= AIM * limit
    whole = expected.completed[CLONE_RAISED] >= expected.completed[CLONE] - MORE_EARLY_ENDS
    raised = inside & whole & (expected.returned[CLONE_RAISED] > expected.returned[CLONE])
    which = jnp.where(raised, CLONE_RAISED, CLONE)
    gain = jnp.where(raised, CLONE_GAIN, 1.0)
    return Choice(jnp.ones((), bool), gain, expected.returned[which], expected.cost[which])


def is_worth_pacing(choice: Choice, expected: Expected, limit: Scalar, anchor_growth: Scalar) -> Bool[Array, ""]:
    """Whether the greatest gain would earn more than what is handed out, and cost too much: then a pacer, which sees costs,
    can use it for a part of an episode (`ringfence.deploy.pacer`). A limit of 0 has no budget to spend. Where logged
    episodes terminated a change of the policy on the way is a risk, and the gains are too near to 1 to earn much."""
    most, steady = GAINS - 1, anchor_growth <= 1.0
    return (expected.returned[most] > choice.returned) & (expected.cost[most] > limit) & (limit > 0.0) & steady


def is_worth_saving(expected: Expected, limit: Scalar) -> Bool[Array, ""]:
    """Whether the clone should act while a pacer saves: it is inside the limit, and would save for a good part of the
    episode before the greatest gain can go on to the end. Starting from the clone's gait, fewer episodes reach the fast one;
    at a limit of 60 on HalfCheetah, where nearly all of an episode is to be fast, too few."""
    safe, fast = expected.cost[CLONE], expected.cost[GAINS - 1]
    return (safe <= limit) & (fast - limit > LEAST_SAVED * (fast - safe))


class HandedOut(NamedTuple):
    """The actor that is handed out, with the reasons; whether it is worth pacing, whether the clone can save for the pacer,
    and the cost at the greatest gain; and the two policies that may take turns."""

    actor: TanhGaussianActor
    choice: Choice
    worth_pacing: Bool[Array, ""]
    clone_saves: Bool[Array, ""]
    greatest_cost: Scalar
    turns: Mixed
    cheap: TanhGaussianActor
    costly: TanhGaussianActor


@eqx.filter_jit
def hand_out_of(given: Policies, horizon: int, discount: float) -> HandedOut:
    gains = gains_around_one(given.anchor_growth)
    expected = given.expected(gains, horizon, discount)
    choice = choose_policy(gains, expected, given.limit, given.clone.counts, doubts_of(given, horizon, discount))
    actor = with_gain(_where(choice.clone, given.clone.averaged, given.averaged), choice.gain)
    worth_pacing = is_worth_pacing(choice, expected, given.limit, given.anchor_growth)
    clone_saves = given.clone.counts & is_worth_saving(expected, given.limit)

    copied = choose_clone(expected, given.limit)
    costly, of_costly = costly_policy(given, gains, expected, horizon, discount)
    by_clone = Worth(copied.returned, copied.cost, given.clone.counts & clone_is_inside(expected, given.limit))
    turns = best_turns(Worth(choice.returned, choice.cost, jnp.ones((), bool)), by_clone, of_costly, given.limit)
    cheap = _where(turns.cheap_is_clone, with_gain(given.clone.averaged, copied.gain), actor)
    greatest_cost = expected.cost[GAINS - 1]
    return HandedOut(actor, choice, worth_pacing, clone_saves, greatest_cost, turns, cheap, costly)


def doubts_of(given: Policies, horizon: int, discount: float) -> Doubts:
    ended = given.anchor_growth > 1.0
    disputed = jax.lax.cond(ended, lambda: given.disputed_cost(horizon, discount), lambda: jnp.zeros(()))
    return Doubts(jnp.where(ended, LEAD, 0.0), disputed)


def costly_policy(
    given: Policies, gains: Float[Array, " gains"], expected: Expected, horizon: int, discount: float
) -> tuple[TanhGaussianActor, Worth]:
    """The one that takes turns with a cheap one: the averaged actor with the greatest gain, or, where logged episodes
    terminated, the clone of the costly ones. That one is judged by undisturbed episodes, as the cost of the safe clone is;
    it does not count if it ends most of the disturbed ones early."""
    most = GAINS - 1
    if given.costly is None:
        steady = given.anchor_growth <= 1.0
        return with_gain(given.averaged, gains[most]), Worth(expected.returned[most], expected.cost[most], steady)
    clone = given.costly.averaged
    disturbed = given.run(clone.mode, 1, NOISE / given.anchor_growth, horizon, discount)
    calm = given.expected_alone(clone, horizon, discount)
    counts = given.costly.counts & (disturbed.completed[0] >= LEAST_COMPLETED)
    return clone, Worth(calm.returned[0], calm.cost[0], counts)


def _where(first: Bool[Array, ""], one: TanhGaussianActor, other: TanhGaussianActor) -> TanhGaussianActor:
    chosen: TanhGaussianActor = jax.tree.map(lambda a, b: jnp.where(first, a, b), one, other)
    return chosen


def is_chosen(step: int, plant: Plant) -> bool:
    """Whether there is a choice: once the policy has settled, and where the model predicts the plant."""
    return step > SETTLED and float(plant.error) <= PREDICTED


def export_with_choice(export: Export, found: HandedOut, given: Policies, discount: float) -> Export:
    """What is handed out in place of the averaged actor, with the reasons; and where they earn more, the networks and the
    numbers for a pacer (`ringfence.Pacer`) and for two policies that take turns (`ringfence.Turns`)."""
    worth_pacing, worth_turns = bool(found.worth_pacing), bool(found.turns.worth)
    networks = {**export.networks, "actor": found.actor}
    facts: dict[str, Mapping[str, Any]] = {"handed_out": choice_in_words(found.choice, worth_pacing, worth_turns)}
    if worth_pacing:
        networks["paced_actor"] = given.averaged
        facts["pacing"] = pacing_in_words(found.greatest_cost, discount)
        if bool(found.clone_saves):
            networks["saving_actor"] = given.clone.averaged
    if worth_turns:
        networks |= {"cheap_actor": found.cheap, "costly_actor": found.costly}
        facts["turns"] = turns_in_words(found.turns)
    return export._replace(networks=networks, facts=facts)


def choice_in_words(choice: Choice, worth_pacing: bool, worth_turns: bool) -> dict[str, Any]:
    """For the policy's file: which policy it is, and what the model expects of it."""
    clone, gain = bool(choice.clone), float(choice.gain)
    return {
        "policy": "safe clone" if clone else "averaged actor",
        "gain": round(gain, 4),
        "expected_return": float(choice.returned),
        "expected_cost": float(choice.cost),
        "can_be_paced": worth_pacing,
        "can_take_turns": worth_turns,
    }


def pacing_in_words(greatest_cost: Scalar, discount: float) -> dict[str, float]:
    """For the policy's file: the gains of a pacer, and what a step costs with the greatest."""
    return {"low": 1.0 - LOWEST, "high": 1.0 + FARTHEST, "spending": float(greatest_cost) * (1.0 - discount)}
