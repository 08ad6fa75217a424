"""What the policy costs in episodes imagined by a fitted model, and the limit that the actor is held to because of it.

The cost critic judges single actions in logged states. Over a horizon of a hundred steps small errors add up: along its own
path a policy of HalfCheetah cost 58 where the critic said 50, another 39 where it said 42. The first is over its limit, the
second leaves a part of it unused. So the actor is held to slack x l instead of l, and feedback sets the slack: it grows
while imagined episodes of the policy cost less than l, and shrinks while they cost more.

The model is the mean of two networks, (s, a) to (s' - s, c, r, whether the episode terminates). They learn in the stage of
the detector, from the same batches, and are then fixed. The mean is much better than either network: errors of a single one
add up over an episode, and in the mean they cancel in part. A tenth of the episodes is held out: networks that know a small
log by heart explain all of it, and nothing else. The greater error counts, because a tenth may lack the few episodes that
are hard: on HalfCheetah its error is half of that of the others.

The episodes go on by one step with each update of the policy, so that they cost one small pass. Half of them follow the
actor and half its average; the one that costs more counts. With a range of limits each half has episodes of every band of
limits, and each band its own slack. Which policy is handed out in the end is in `cpq_handout.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ringfence.algorithms.interface import Batch, Spec
from ringfence.data.dataset import Dataset
from ringfence.networks import MLP, pairs, polyak
from ringfence.optimise import Adam, falling

Scalar = Float[Array, ""]
Controller = Callable[[Float[Array, "*rows obs"]], Float[Array, "*rows act"]]  # the actions in these states

UNDER_WAY = 128  # imagined episodes at a time
LONGEST = 1000  # steps of an imagined episode, at most; otherwise as many as the log's longest has
NETWORKS = 2
FITTED = Adam(4e-3)  # falls to 0 as a cosine
OUTSIDE = 0.1  # of a column's range in the log: further out an episode begins anew
PREDICTED = 0.06  # with a greater error of the model there is no feedback
HELD_OUT = "held_out"  # the column that says which rows measure the model's error and are not learned from
ONE_IN = 10  # of the episodes is held out
HELD_MEMORY = 0.1  # of the steps of the fit: what their errors are averaged over; a batch has few of them
TERMINATION_SIZE = 0.3  # of the column that says whether an episode terminates; its own mean square is nearly 0
TERMINATED = (
    0.15  # an imagined episode ends where an end is likelier; docs/cpq.md has what the model says before a fall
)
AIM = 0.97  # of the limit
SLACK = (0.8, 1.2)
SETTLED = 2500  # steps of the policy before its cost says anything
HALVED = 5000  # steps after which feedback is half as fast


class Followed(NamedTuple):
    """What the model expects to follow pairs."""

    observations: Float[Array, "*batch obs"]
    costs: Float[Array, "*batch"]
    rewards: Float[Array, "*batch"]
    terminated: Float[Array, "*batch"]  # how likely


class Plant(eqx.Module):
    """A model of what follows an action: s' - s, c and r, each over its size in the log, and termination."""

    networks: tuple[MLP, ...]
    optimiser: optax.OptState
    fitted: Int[Array, ""]  # steps
    of_learned: Float[Array, " obs_and_cost"]  # running means of squares, of the rows that are learned from
    of_held: Float[Array, " obs_and_cost"]  # and of those that are held out
    errors: Float[Array, " obs_and_cost"]  # the greater of both: the share of each column that is left unexplained
    size: Float[Array, " columns"]  # root mean square
    low: Float[Array, " obs"]  # of the log's states seen so far
    high: Float[Array, " obs"]

    @classmethod
    def create(cls, spec: Spec, hidden: Sequence[int], key: PRNGKeyArray) -> "Plant":
        """Networks with one layer more than the policy's `hidden`, and each twice as wide."""
        states, columns = spec.observation_dim, spec.observation_dim + 3
        hidden = [2 * width for width in (*hidden, *hidden[-1:])]
        networks = tuple(
            MLP(states + spec.action_dim, columns, hidden, normalise=True, key=each)
            for each in jax.random.split(key, NETWORKS)
        )
        return cls(
            networks=networks,
            optimiser=FITTED.init(networks),
            fitted=jnp.zeros((), jnp.int32),
            of_learned=jnp.ones(states + 1),
            of_held=jnp.zeros(states + 1),
            errors=jnp.ones(states + 1),
            size=jnp.ones(columns),
            low=jnp.zeros(states),
            high=jnp.zeros(states),
        )

    @property
    def error(self) -> Scalar:
        """The share of states and costs that a network leaves unexplained: 1 for one that always says 0."""
        return jnp.mean(self.errors)

    def __call__(self, observations: Float[Array, "*batch obs"], actions: Float[Array, "*batch act"]) -> Followed:
        """What the networks expect on average."""
        given = pairs(observations, actions)
        predicted = sum(network(given) for network in self.networks) / len(self.networks) * self.size
        changes, rest = jnp.split(predicted, (observations.shape[-1],), -1)
        return Followed(observations + changes, jnp.maximum(rest[..., 0], 0.0), rest[..., 1], rest[..., 2])

    def left(self, observations: Float[Array, "*batch obs"]) -> Bool[Array, "*batch"]:
        """Whether states are far outside the log's."""
        margin = OUTSIDE * (self.high - self.low)
        return jnp.any((observations < self.low - margin) | (observations > self.high + margin), -1)

    def fit(self, batch: Batch, steps: int) -> tuple["Plant", Scalar]:
        """One of `steps` steps of Adam on the squared error, and the error of states and costs. Each network learns from a
        part of the batch of its own, so that their errors have less in common."""
        rate = jnp.maximum(0.01, 1.0 / (1.0 + self.fitted))
        size = jnp.sqrt((1.0 - rate) * self.size**2 + rate * jnp.mean(what_followed(batch) ** 2, 0))
        size = jnp.maximum(size, 1e-6).at[-1].set(TERMINATION_SIZE)
        parts = in_parts(batch, len(self.networks))
        gradient, squares = jax.grad(plant_loss, has_aux=True)(self.networks, parts, size)
        moved, optimiser = FITTED.step(gradient, self.optimiser, self.networks)
        learned, held = (each[: self.errors.size] for each in squares)
        of_learned = self.of_learned + rate * (learned - self.of_learned)
        rate = jnp.maximum(1.0 / (HELD_MEMORY * steps), 1.0 / (1.0 + self.fitted))
        of_held = self.of_held + rate * jnp.where(jnp.isfinite(held), held - self.of_held, 0.0)
        return replace(
            self,
            networks=polyak(self.networks, moved, falling(self.fitted / steps)),
            optimiser=optimiser,
            fitted=self.fitted + 1,
            of_learned=of_learned,
            of_held=of_held,
            errors=jnp.maximum(of_learned, of_held),
            size=size,
            low=jnp.minimum(self.low, batch.observations.min(0)),
            high=jnp.maximum(self.high, batch.observations.max(0)),
        ), jnp.mean(learned)


def held_out_rows(dataset: Dataset) -> Float[np.ndarray, "rows 1"]:
    """1 for the rows of every tenth episode, or, in a log of fewer than ten, for the last tenth of each; 0 for others."""
    lengths = dataset.episode_ends - dataset.episode_starts
    if len(lengths) >= ONE_IN:
        held = np.repeat(np.arange(len(lengths)) % ONE_IN == ONE_IN - 1, lengths)
    else:
        held = np.concatenate([np.arange(length) >= length - length // ONE_IN for length in lengths])
    return held[:, None].astype(np.float32)


def what_followed(batch: Batch) -> Float[Array, "batch columns"]:
    """s' - s, c, r and whether the episode terminated."""
    numbers = jnp.stack([batch.costs, batch.rewards, 1.0 - batch.continues], -1)
    return jnp.concatenate([batch.next_observations - batch.observations, numbers], -1)


def what_counts(batch: Batch) -> Float[Array, "batch columns"]:
    """1 for each number of `what_followed` that the log has. After a termination nothing follows: s' stands in for it."""
    states = jnp.broadcast_to(batch.continues[:, None], batch.observations.shape)
    return jnp.concatenate([states, jnp.ones((states.shape[0], 3))], -1)


def in_parts(batch: Batch, count: int) -> list[Batch]:
    """A batch cut into `count` equal parts; rows that are left over are in none."""
    rows = batch.costs.shape[0] // count
    names = ("observations", "actions", "rewards", "costs", "next_observations", "continues")

    def part(number: int) -> Batch:
        cut = slice(number * rows, (number + 1) * rows)
        extras = {name: column[cut] for name, column in batch.extras.items()}
        return batch._replace(**{name: getattr(batch, name)[cut] for name in names}, extras=extras)

    return [part(number) for number in range(count)] if rows else [batch] * count


def plant_loss(
    networks: Sequence[MLP], parts: Sequence[Batch], size: Float[Array, " columns"]
) -> tuple[Scalar, tuple[Float[Array, " columns"], Float[Array, " columns"]]]:
    """The squared error of each network on the rows of its part that are not held out, summed over the networks; and for
    each column the mean square of those rows and of the rows that are held out (NaN without any), over the networks."""
    sums, counts = [], []  # of the rows that are learned from, and of those that are held out
    for network, part in zip(networks, parts, strict=True):
        squares = (network(pairs(part.observations, part.actions)) - what_followed(part) / size) ** 2
        out = part.extras[HELD_OUT] if HELD_OUT in part.extras else jnp.zeros((squares.shape[0], 1))
        weights = jnp.stack([1.0 - out, out]) * what_counts(part)
        sums.append(jnp.sum(weights * squares, 1))
        counts.append(jnp.sum(weights, 1))
    means = jnp.stack([total[0] / jnp.maximum(count[0], 1.0) for total, count in zip(sums, counts, strict=True)])
    held = jnp.stack(sums).sum(0)[1] / jnp.stack(counts).sum(0)[1]
    return jnp.sum(jnp.mean(means, 1)), (jnp.mean(means, 0), held)


class Imagined(eqx.Module):
    """Episodes under way in the model: the first half of the rows follows the actor, the second its average. Each half is
    cut into as many groups as there are bands of limits: one, unless a range is learned. A group has its own `pace` and
    `from_start`, running averages over its episodes."""

    observations: Float[Array, "episodes obs"]
    times: Int[Array, " episodes"]  # steps since the episode began
    discounted: Float[Array, " episodes"]  # cost since then
    horizon: Int[Array, ""]
    steps: Int[Array, ""]
    pace: Float[Array, " groups"]  # cost per step in the second half of the horizon
    from_start: Float[Array, " groups"]  # discounted cost over an infinite horizon, from where logged episodes start

    @classmethod
    def create(cls, spec: Spec, limits: Float[Array, " bands"], discount: float, key: PRNGKeyArray) -> "Imagined":
        """All in the mean of the logged states, at random times, so that they do not begin anew in the same step."""
        horizon = min(spec.horizon or LONGEST, LONGEST)
        return cls(
            observations=jnp.zeros((UNDER_WAY, spec.observation_dim)),
            times=jax.random.randint(key, (UNDER_WAY,), 0, horizon),
            discounted=jnp.zeros(UNDER_WAY),
            horizon=jnp.asarray(horizon, jnp.int32),
            steps=jnp.zeros((), jnp.int32),
            pace=jnp.tile((1.0 - discount) * limits, 2),
            from_start=jnp.tile(limits, 2),
        )

    def advance(
        self, plant: Plant, actor: Controller, average: Controller, starts: Float[Array, "starts obs"], discount: float
    ) -> "Imagined":
        """One step of every episode. One that reaches the horizon, terminates or leaves the log's states begins anew in a
        state that a logged episode starts in."""
        by_actor, by_average = jnp.split(self.observations, 2)
        actions = jnp.concatenate([actor(by_actor), average(by_average)])
        following, costs, _, terminated = plant(self.observations, actions)
        discounted = self.discounted + discount**self.times * costs

        late = self.times >= self.horizon // 2
        pace = _towards(self.pace, costs, late, 0.005)
        complete = self.times + 1 >= self.horizon
        beyond = discount**self.horizon * jnp.repeat(pace, UNDER_WAY // pace.size) / (1.0 - discount)
        whole = complete & (self.steps >= self.horizon)  # the first ones did not begin at a start
        from_start = _towards(self.from_start, discounted + beyond, whole, 0.05)

        anew = complete | (terminated > TERMINATED) | plant.left(following)
        fresh = starts[jnp.arange(UNDER_WAY) % starts.shape[0]]
        return replace(
            self,
            observations=jnp.where(anew[:, None], fresh, jnp.clip(following, plant.low, plant.high)),
            times=jnp.where(anew, 0, self.times + 1),
            discounted=jnp.where(anew, 0.0, discounted),
            steps=self.steps + 1,
            pace=pace,
            from_start=from_start,
        )

    def cost(self, discount: float) -> Float[Array, " bands"]:
        """What is compared with the limit: max(discounted cost from the start, cost per step / (1 - discount)), of the actor
        or of its average, whichever is greater."""
        greater = jnp.maximum(self.from_start, self.pace / (1.0 - discount))
        return jnp.max(greater.reshape(2, -1), 0)


def _towards(
    mean: Float[Array, " groups"], values: Float[Array, " episodes"], counted: Array, rate: float
) -> Float[Array, " groups"]:
    """A running mean for each group of episodes, over those that are counted. A group without any keeps its mean."""
    groups, members = (x.reshape(mean.size, -1) for x in (values, counted))
    now = jnp.sum(jnp.where(members, groups, 0.0), 1) / jnp.maximum(members.sum(1), 1)
    return jnp.where(members.any(1), mean + rate * (now - mean), mean)


def feedback_rate(step: Int[Array, ""], error: Scalar, feedback: float) -> Scalar:
    """0 until the policy has settled, and where the model leaves more than PREDICTED of what happens unexplained: it
    predicts the mean of what may follow, which in a random plant may be a state that never occurs. Otherwise it falls
    with the steps: actor and average respond late, and feedback of a constant rate would oscillate around the limit."""
    used = (step > SETTLED) & (error <= PREDICTED)
    return jnp.where(used, feedback / (1.0 + step / HALVED), 0.0)


def next_slack(
    slack: Float[Array, "*bands"], cost: Float[Array, "*bands"], limit: Float[Array, "*bands"], rate: Scalar
) -> Float[Array, "*bands"]:
    """Slack rises while the imagined cost is below AIM x l, and falls above."""
    return jnp.clip(slack + rate * (AIM - cost / jnp.maximum(limit, 1e-3)), *SLACK)
