"""What policies earn and cost in whole episodes of CPQ's model of the plant (`cpq_imagined.py`).

The candidates for being handed out (`cpq_handout.py`) are rolled out side by side, from the same starts and with the same
disturbances.
"""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.cpq_clone import Clone
from ringfence.algorithms.cpq_imagined import TERMINATED, Controller, Plant
from ringfence.networks import TanhGaussianActor

Scalar = Float[Array, ""]

GAINS = 11
FARTHEST = 0.15  # of a gain from 1, where no logged episode terminated
CLONE, CLONE_RAISED = GAINS, GAINS + 1  # the candidates after those: the clone as it is, and with CLONE_GAIN
CLONE_GAIN = 1.03  # earns 1 % more on Walker2d; with 1.12 the clone falls there, which the model does not see
EPISODES = 32  # imagined for each candidate
NOISE = 0.7  # of what a network of the model leaves unexplained, where no logged episode terminated
SHAKEN, SHAKEN_EPISODES = 0.5, 128  # the noise in episodes that show whether a policy falls, and how many there are


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
    log's states; what would have followed costs `cost_of_end`, and earns nothing, or what its steps lost on average: an end
    is no way to save a loss."""
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
    earned, _, _, lasted = sums
    sums = sums.at[0].add((horizon - lasted) * jnp.minimum(earned / lasted, 0.0))
    returned, discounted, costs, steps = sums.mean(-1)
    pace = costs / steps / (1.0 - discount)
    beyond = jnp.mean(alive, -1) * discount**horizon * pace
    return Expected(returned, jnp.maximum(discounted + beyond, pace), jnp.mean(alive, -1))


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


class Policies(NamedTuple):
    """The policies that are compared, and what they are compared in."""

    plant: Plant
    averaged: TanhGaussianActor
    clone: Clone  # of the safe episodes
    costly: Clone | None  # of the others, where logged episodes terminated
    starts: Float[Array, "starts obs"]
    limit: Scalar
    cost_of_end: Scalar  # see `CPQ.cost_of_end`
    anchor_growth: Scalar  # over 1 where logged episodes terminated

    def run(
        self, act: Controller, count: int, noise: Array, horizon: int, discount: float, episodes: int = EPISODES
    ) -> Expected:
        """Imagined episodes of `count` policies; `act` has states of (policies, episodes, columns)."""
        first = jnp.resize(self.starts, (episodes, self.starts.shape[-1]))
        starts = jnp.broadcast_to(first, (count, *first.shape))
        return imagine(self.plant, act, starts, horizon, discount, self.cost_of_end, noise, jax.random.key(0))

    def expected(self, gains: Float[Array, " gains"], horizon: int, discount: float) -> Expected:
        """What the model expects of the averaged actor with each gain, and of the clone with its own. Episodes are
        disturbed: that shows whether a policy is close to another gait. The cost of the clone is that of undisturbed
        episodes: its own gait is logged, and there is no other that a disturbance might lead it to. Where logged episodes
        terminated, returns are of episodes that are disturbed less, because a disturbed model imagines more falls than
        there are; and whether a policy falls is seen in more episodes, for all gains of the averaged actor alike, since
        they are nearly 1."""
        growth = self.anchor_growth
        of_clone = jnp.array([1.0, CLONE_GAIN])

        def candidates(gains: Float[Array, " gains"]) -> Controller:
            """The averaged actor with these gains, then the clone with its own."""

            def act(states: Float[Array, "candidates episodes obs"]) -> Float[Array, "candidates episodes act"]:
                averaged, clone = self.averaged(states[: gains.size]), self.clone.averaged(states[gains.size :])
                means = jnp.concatenate([averaged.mean, clone.mean])
                return jnp.tanh(jnp.concatenate([gains, of_clone])[:, None, None] * means)

            return act

        def run(gains: Float[Array, " gains"], noise: Array, episodes: int = EPISODES) -> Expected:
            return self.run(candidates(gains), gains.size + of_clone.size, noise, horizon, discount, episodes)

        rough = run(gains, NOISE / jnp.sqrt(growth))
        calm = run(jnp.zeros(0), jnp.zeros(()))

        def where_episodes_terminated() -> tuple[Array, Array]:
            smooth = run(gains, NOISE / growth)
            shaken = run(jnp.ones(1), jnp.asarray(SHAKEN), SHAKEN_EPISODES)
            return smooth.returned, jnp.concatenate([jnp.repeat(shaken.completed[0], GAINS), shaken.completed[1:]])

        elsewhere = rough.returned, rough.completed
        returned, completed = jax.lax.cond(growth > 1.0, where_episodes_terminated, lambda: elsewhere)
        return Expected(returned, rough.cost.at[CLONE:].set(calm.cost), completed)

    def expected_alone(self, policy: TanhGaussianActor, horizon: int, discount: float) -> Expected:
        """One policy in undisturbed episodes."""
        return self.run(lambda states: policy.mode(states), 1, jnp.zeros(()), horizon, discount)

    def disputed_cost(self, horizon: int, discount: float) -> Scalar:
        """The greatest cost that one network of the model alone expects of the averaged actor. Where the log has the gait
        of a policy the networks agree, and where it does not they do not: of a policy of Walker2d that costs 25 they
        expected 27 and 43, and 31 together."""
        single = [self._replace(plant=replace(self.plant, networks=(network,))) for network in self.plant.networks]
        costs = [each.expected_alone(self.averaged, horizon, discount).cost[0] for each in single]
        return jnp.max(jnp.stack(costs))
