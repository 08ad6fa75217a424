"""The policy that CPQ hands out: chosen from a few by what they earn and cost in episodes of the fitted model.

Critics judge single actions in logged states. How a policy does over a whole episode, and in which of several gaits it ends
up, they do not see; a model of the plant does (`results/cpq-study/README.md`, the eleventh round). So what is handed out is
the one of these that earns most in the model with its cost inside the limit:

    tanh(gain x mean)   the averaged actor, for a few gains around 1
    the safe clone      the logged actions of the safe episodes, made as likely as possible: BC-Safe, learned beside CPQ; as
                        it is, and with a gain of CLONE_GAIN

The gain is a dial for the cost: HalfCheetah's cost per step rises from 0.3 to 0.6 between gains of 1 and 1.1. The clone is
there because a policy that uncertain critics improved should not be handed out where copying the log earns more.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ringfence.algorithms.bc_safe import mean_costs
from ringfence.algorithms.cpq_imagined import AIM, PREDICTED, SETTLED, Controller, Plant
from ringfence.algorithms.interface import Batch
from ringfence.data.dataset import Dataset
from ringfence.data.episodes import episode_table
from ringfence.networks import TanhGaussianActor, polyak, tanh_log_prob
from ringfence.optimise import Adam

Scalar = Float[Array, ""]

EPISODE_COST = "episode_cost"  # the column that says of each row what its episode cost
GAINS = 11
FARTHEST = 0.15  # of a gain from 1, where no logged episode terminated
CLONE, CLONE_RAISED = GAINS, GAINS + 1  # the candidates after those: the clone as it is, and with CLONE_GAIN
CLONE_GAIN = 1.03  # earns 1 % more on Walker2d; with 1.12 the clone falls there, which the model does not see
LOWEST = 0.3  # the same for a pacer whose budget is spent: with less HalfCheetah does not leave its faster gait
EPISODES = 32  # imagined for each candidate
NOISE = 0.7  # of what a network of the model leaves unexplained, where no logged episode terminated
SHAKEN, SHAKEN_EPISODES = 0.5, 128  # the noise in episodes that show whether a policy falls, and how many there are
TERMINATED = 0.15  # an imagined episode ends where an end is likelier; the model says no more than 0.26 before a fall
CLONED = 10_000  # rows that the clone must have seen
CLONE_MEMORY = 500  # steps that the clone is averaged over: single iterates may fall on Hopper
RAISED = 0.88  # of the limit: what a gain over 1 may cost. True costs were up to 1.17 times what the models said
MORE_EARLY_ENDS = 0.02  # of the episodes: a gain may raise the share that ends early by at most this
MORE_THAN_CLONE = 0.12  # the same, of an averaged actor in comparison with the clone
LEAST_SAVED = 1 / 3  # of an episode: where a pacer saves for less, the clone does not save for it


# The safe clone


def episode_costs(dataset: Dataset, discount: float) -> Float[np.ndarray, "rows 1"]:
    """For each row the discounted cost by which BC-Safe takes its episode or leaves it: the mean of its source's episodes
    where the log names sources, else the episode's own."""
    table = episode_table(dataset, discount)
    costs = table.discounted_costs
    if table.source is not None:
        of_source = mean_costs(table)
        costs = np.array([of_source[int(code)] for code in table.source])
    return np.repeat(costs, table.length)[:, None].astype(np.float32)


class SafeClone(eqx.Module):
    """A policy that makes the logged actions of safe episodes as likely as possible, learned from CPQ's own batches. The
    candidate is its average over the last steps."""

    actor: TanhGaussianActor
    averaged: TanhGaussianActor
    optimiser: optax.OptState
    steps: Scalar
    rows: Scalar  # of safe episodes, seen so far
    others: Scalar  # of other episodes

    @classmethod
    def create(cls, actor: TanhGaussianActor, adam: Adam) -> "SafeClone":
        return cls(actor, actor, adam.init(actor), jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))

    def fit(self, batch: Batch, limit: Scalar, adam: Adam) -> "SafeClone":
        """One step of Adam on the rows whose episode is inside the limit."""
        safe = (batch.extras[EPISODE_COST][:, 0] <= limit).astype(jnp.float32)
        gradient = jax.grad(safe_cloning_loss)(self.actor, batch, safe)
        actor, optimiser = adam.step(gradient, self.optimiser, self.actor)
        steps = self.steps + 1.0
        averaged = polyak(self.averaged, actor, 1.0 / jnp.minimum(steps, CLONE_MEMORY))
        rows, others = self.rows + safe.sum(), self.others + (1.0 - safe).sum()
        return SafeClone(actor, averaged, optimiser, steps, rows, others)

    @property
    def counts(self) -> Bool[Array, ""]:
        """Whether it is a candidate: it has learned, and not from every episode. If all are inside the limit it would
        average over all controllers, and no controller took that mean action."""
        return (self.rows >= CLONED) & (self.others > 0.0)


def safe_cloning_loss(actor: TanhGaussianActor, batch: Batch, safe: Float[Array, " batch"]) -> Scalar:
    """- E log pi(a | s) over the logged pairs of safe episodes; 0 in a batch without any."""
    likelihood = tanh_log_prob(actor(batch.observations), batch.actions)
    return -jnp.sum(jnp.where(safe > 0.0, likelihood, 0.0)) / jnp.maximum(safe.sum(), 1.0)


# What a policy earns and costs in the model


class Expected(NamedTuple):
    """Means over imagined episodes, one for each candidate: the averaged actor with its gains, then CLONE, CLONE_RAISED."""

    returned: Float[Array, " candidates"]  # sum of an episode's rewards
    cost: Float[Array, " candidates"]  # the greater of discounted cost and cost per step / (1 - discount)
    completed: Float[Array, " candidates"]  # share of the episodes that reach the horizon


def imagine(
    plant: Plant, act: Controller, starts: Float[Array, "candidates episodes obs"], horizon: int, discount: float,
    cost_of_end: Scalar, noise: Scalar, key: PRNGKeyArray,
) -> Expected:  # fmt: skip
    """Whole episodes in the model, from the same starts and with the same disturbances for every candidate: `noise` times
    what is left unexplained of each column. An episode ends where the model expects termination and where it leaves the
    log's states; what would have followed costs `cost_of_end` and earns nothing."""
    spread = noise * jnp.sqrt(plant.errors[:-1]) * plant.size[: starts.shape[-1]]

    def step(carry: tuple[Array, Array, Array], time: Array) -> tuple[tuple[Array, Array, Array], None]:
        states, alive, sums = carry
        following, costs, rewards, terminated = plant(states, act(states))
        disturbed = following + spread * jax.random.normal(jax.random.fold_in(key, time), starts.shape[1:])
        weight = discount**time
        sums += alive * jnp.stack([rewards, weight * costs, costs, jnp.ones_like(costs)])
        ends = (terminated > TERMINATED) | plant.left(disturbed)
        sums = sums.at[1].add(alive * ends * discount * weight * cost_of_end)
        return (jnp.clip(disturbed, plant.low, plant.high), alive * ~ends, sums), None

    shape = starts.shape[:2]
    begun = (starts, jnp.ones(shape), jnp.zeros((4, *shape)))
    (_, alive, sums), _ = jax.lax.scan(step, begun, jnp.arange(horizon))
    returned, discounted, costs, steps = sums.mean(-1)
    pace = costs / steps / (1.0 - discount)
    beyond = jnp.mean(alive, -1) * discount**horizon * pace
    return Expected(returned, jnp.maximum(discounted + beyond, pace), jnp.mean(alive, -1))


# The choice


def gains_around_one(anchor_growth: Scalar) -> Float[Array, " gains"]:
    """Candidates for the gain. Where the anchor is stronger, because logged episodes terminated, they are much nearer to 1:
    a gain that looked best in the model let Hopper fall, and there is little to win."""
    return 1.0 + FARTHEST / anchor_growth**2 * jnp.linspace(-1.0, 1.0, GAINS)


def with_gain(actor: TanhGaussianActor, gain: Scalar) -> TanhGaussianActor:
    """The actor whose mean before the squash is `gain` times as large."""
    last = actor.mlp.layers[-1]
    factor = jnp.where(jnp.arange(last.bias.size) < last.bias.size // 2, gain, 1.0)
    scaled = replace(last, weight=last.weight * factor, bias=last.bias * factor)
    changed: TanhGaussianActor = eqx.tree_at(lambda a: a.mlp.layers[-1], actor, scaled)
    return changed


class Choice(NamedTuple):
    """What is handed out, and what the model expects of it."""

    clone: Bool[Array, ""]
    gain: Scalar  # of the averaged actor or of the clone
    returned: Scalar
    cost: Scalar


def choose(gains: Float[Array, " gains"], expected: Expected, limit: Scalar, cloned: Bool[Array, ""]) -> Choice:
    """The candidate that earns most in the model among those inside the limit: the averaged actor with each of the gains,
    and as the last candidate the clone, if there is one. Without one inside it is the averaged actor as it is.

    A gain up to 1 is held to AIM x l, as the slack is; a greater one, which makes the learned policy costlier, to RAISED x
    l, because of the model's own error; the clone to l: its episodes were logged inside. A gain with which more episodes end
    early than with a gain of 1 (by MORE_EARLY_ENDS), or than with the clone where that counts (by MORE_THAN_CLONE), does not
    count. If the gain after the best one would earn more but costs too much, the one between the two that costs as much as
    it may is taken, by linear interpolation."""
    plain = GAINS // 2
    aim = jnp.where(jnp.arange(GAINS) > plain, RAISED, AIM) * limit
    counts = cloned & (expected.cost[CLONE] <= limit)
    of_clone = jnp.where(counts, expected.completed[CLONE] - MORE_THAN_CLONE, 0.0)
    whole = expected.completed[:GAINS] >= jnp.maximum(expected.completed[plain] - MORE_EARLY_ENDS, of_clone)
    allowed = (expected.cost[:GAINS] <= aim) & whole
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
    wins = counts & (~allowed.any() | (copied.returned > scaled.returned))
    return Choice(*(jnp.where(wins, a, b) for a, b in zip(copied, scaled, strict=True)))


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
    episode before the greatest gain can go on to the end. From the clone's gait the fast one is harder to reach than from
    the averaged actor's own, so that at HalfCheetah's 60, where nearly all of an episode is fast, too many fail to."""
    safe, fast = expected.cost[CLONE], expected.cost[GAINS - 1]
    return (safe <= limit) & (fast - limit > LEAST_SAVED * (fast - safe))


class HandOutInputs(NamedTuple):
    """What the choice is made from."""

    plant: Plant
    averaged: TanhGaussianActor
    clone: SafeClone
    starts: Float[Array, "starts obs"]
    limit: Scalar
    cost_of_end: Scalar  # see `CPQ.cost_of_end`
    anchor_growth: Scalar


class HandedOut(NamedTuple):
    """The actor that is handed out, with the reasons; whether it is worth pacing, whether the clone can save for the pacer,
    and the cost at the greatest gain."""

    actor: TanhGaussianActor
    choice: Choice
    worth_pacing: Bool[Array, ""]
    clone_saves: Bool[Array, ""]
    greatest_cost: Scalar


@eqx.filter_jit
def hand_out_of(given: HandOutInputs, horizon: int, discount: float) -> HandedOut:
    gains = gains_around_one(given.anchor_growth)
    expected = expected_of(given, gains, horizon, discount)
    choice = choose(gains, expected, given.limit, given.clone.counts)
    chosen = jax.tree.map(lambda a, b: jnp.where(choice.clone, a, b), given.clone.averaged, given.averaged)
    actor = with_gain(chosen, choice.gain)
    worth_pacing = is_worth_pacing(choice, expected, given.limit, given.anchor_growth)
    clone_saves = given.clone.counts & is_worth_saving(expected, given.limit)
    return HandedOut(actor, choice, worth_pacing, clone_saves, expected.cost[GAINS - 1])


def expected_of(given: HandOutInputs, gains: Float[Array, " gains"], horizon: int, discount: float) -> Expected:
    """What the model expects of the averaged actor with each gain, and of the clone with its own. Episodes are disturbed,
    which shows what else a policy is near to. The cost of the clone is that of undisturbed episodes: its own gait is
    logged, and there is no other that a disturbance might lead it to. Where logged episodes terminated, returns are of
    episodes that are disturbed less, because a disturbed model imagines more falls than there are; and whether a policy
    falls is seen in more episodes, for all gains of the averaged actor alike, since they are nearly 1."""
    growth = given.anchor_growth
    of_clone = jnp.array([1.0, CLONE_GAIN])

    def candidates(gains: Float[Array, " gains"]) -> Controller:
        """The averaged actor with these gains, then the clone with its own."""

        def act(states: Float[Array, "candidates episodes obs"]) -> Float[Array, "candidates episodes act"]:
            averaged, clone = given.averaged(states[: gains.size]), given.clone.averaged(states[gains.size :])
            means = jnp.concatenate([averaged.mean, clone.mean])
            return jnp.tanh(jnp.concatenate([gains, of_clone])[:, None, None] * means)

        return act

    def run(gains: Float[Array, " gains"], noise: Array, episodes: int = EPISODES) -> Expected:
        first = jnp.resize(given.starts, (episodes, given.starts.shape[-1]))
        starts = jnp.broadcast_to(first, (gains.size + of_clone.size, *first.shape))
        key = jax.random.key(0)
        return imagine(given.plant, candidates(gains), starts, horizon, discount, given.cost_of_end, noise, key)

    rough = run(gains, NOISE / jnp.sqrt(growth))
    calm = run(jnp.zeros(0), jnp.zeros(()))

    def where_episodes_terminated() -> tuple[Array, Array]:
        smooth = run(gains, NOISE / growth)
        shaken = run(jnp.ones(1), jnp.asarray(SHAKEN), SHAKEN_EPISODES)
        return smooth.returned, jnp.concatenate([jnp.repeat(shaken.completed[0], GAINS), shaken.completed[1:]])

    elsewhere = rough.returned, rough.completed
    returned, completed = jax.lax.cond(growth > 1.0, where_episodes_terminated, lambda: elsewhere)
    return Expected(returned, rough.cost.at[CLONE:].set(calm.cost), completed)


def is_chosen(step: int, plant: Plant) -> bool:
    """Whether there is a choice: once the policy has settled, and where the model predicts the plant."""
    return step > SETTLED and float(plant.error) <= PREDICTED


def choice_in_words(choice: Choice, worth_pacing: bool) -> dict[str, Any]:
    """For the policy's file: which policy it is, and what the model expects of it."""
    clone, gain = bool(choice.clone), float(choice.gain)
    return {
        "policy": "safe clone" if clone else "averaged actor",
        "gain": round(gain, 4),
        "expected_return": float(choice.returned),
        "expected_cost": float(choice.cost),
        "can_be_paced": worth_pacing,
    }


def pacing_in_words(greatest_cost: Scalar, discount: float) -> dict[str, float]:
    """For the policy's file: the gains of a pacer, and what a step costs with the greatest."""
    return {"low": 1.0 - LOWEST, "high": 1.0 + FARTHEST, "spending": float(greatest_cost) * (1.0 - discount)}
