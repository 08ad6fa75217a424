"""What the policy costs in episodes imagined by fitted models, and the limit that the actor is held to because of it.

The cost critic judges single actions in logged states. Over a horizon of a hundred steps small errors add up: along its own
path a policy of HalfCheetah cost 58 where the critic said 50, another 39 where it said 42. The first is over its limit, the
second leaves a part of it unused. So the actor is held to slack x l instead of l, and feedback sets the slack: it grows
while imagined episodes of the policy cost less than l, and shrinks while they cost more.

A model is a network, (s, a) to (s' - s, c), that learns from the same batches as CPQ. There are two, and the one in which
the policy costs more counts. A model predicts the mean of what follows, and a policy between two gaits changes its gait
because real steps differ from their mean: imagined without noise, such policies cost up to 40 % less than in truth. So
each imagined step has noise, half as large as what its model leaves unexplained.

The episodes go on by one step with each update of the policy, so that they cost one small pass. Half of them follow the
actor and half its average, which is the policy handed out and follows the actor late.
"""

from collections.abc import Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ringfence.algorithms.interface import Batch, Spec
from ringfence.algorithms.optimise import Adam
from ringfence.networks import MLP, TanhGaussianActor, pairs, polyak

Scalar = Float[Array, ""]

MODELS, POLICIES = 2, 2  # the policies are the actor and its average
EPISODES = 64  # under way at a time for each model and policy
LONGEST = 1000  # steps of an imagined episode, at most; otherwise as many as the log's longest has
FITTED = Adam(2e-3)
AVERAGED = 0.002  # share of the newest network in the one that imagines
OUTSIDE = 0.1  # of a column's range in the log: further out an episode begins anew
NOISE = 0.5  # of an imagined step, in units of what the model leaves unexplained
PREDICTED = 0.03  # error of both models, at most, for feedback
AIM = 0.97  # of the limit
SETTLED = 2500  # steps of the policy before its cost says anything
HALVED = 5000  # steps after which feedback is half as fast


class Plant(eqx.Module):
    """A model of what follows an action: s' - s and c, each over its size in the log."""

    network: MLP
    averaged: MLP  # the one that imagines
    optimiser: optax.OptState
    fitted: Int[Array, ""]  # steps
    error: Scalar  # running mean of the loss: the share that the model leaves unexplained
    residual: Float[Array, " obs_and_cost"]  # the same for each column, of the network that imagines
    size: Float[Array, " obs_and_cost"]  # root mean square
    low: Float[Array, " obs"]  # of the log's states seen so far
    high: Float[Array, " obs"]

    @classmethod
    def create(cls, spec: Spec, hidden: Sequence[int], key: PRNGKeyArray) -> "Plant":
        columns = spec.observation_dim
        network = MLP(columns + spec.action_dim, columns + 1, hidden, normalise=True, key=key)
        return cls(
            network=network,
            averaged=network,
            optimiser=FITTED.init(network),
            fitted=jnp.zeros((), jnp.int32),
            error=jnp.ones(()),
            residual=jnp.ones(columns + 1),
            size=jnp.ones(columns + 1),
            low=jnp.zeros(columns),
            high=jnp.zeros(columns),
        )

    def __call__(
        self, observations: Float[Array, "batch obs"], actions: Float[Array, "batch act"]
    ) -> tuple[Float[Array, "batch obs"], Float[Array, " batch"]]:
        """(s', c), each as its mean"""
        predicted = self.averaged(pairs(observations, actions)) * self.size
        return observations + predicted[:, :-1], jnp.maximum(predicted[:, -1], 0.0)

    @property
    def noise(self) -> Float[Array, " obs"]:
        """The standard deviation of an imagined step's noise."""
        return NOISE * (jnp.sqrt(self.residual) * self.size)[:-1]

    def fit(self, batch: Batch) -> tuple["Plant", Scalar]:
        """One step of Adam on the squared error, and the error: 1 for a model that always says 0."""
        changes = batch.next_observations - batch.observations
        followed = jnp.concatenate([changes, batch.costs[:, None]], -1)
        rate = jnp.maximum(0.01, 1.0 / (1.0 + self.fitted))
        size = jnp.sqrt((1.0 - rate) * self.size**2 + rate * jnp.mean(followed**2, 0)) + 1e-6
        loss, gradient = jax.value_and_grad(plant_loss)(self.network, batch, followed / size)
        network, optimiser = FITTED.step(gradient, self.optimiser, self.network)
        left = (self.averaged(pairs(batch.observations, batch.actions)) - followed / size) ** 2
        return Plant(
            network=network,
            averaged=polyak(self.averaged, network, AVERAGED),
            optimiser=optimiser,
            fitted=self.fitted + 1,
            error=self.error + rate * (loss - self.error),
            residual=self.residual + rate * (jnp.mean(left, 0) - self.residual),
            size=size,
            low=jnp.minimum(self.low, batch.observations.min(0)),
            high=jnp.maximum(self.high, batch.observations.max(0)),
        ), loss


def plant_loss(network: MLP, batch: Batch, followed: Float[Array, "batch obs_and_cost"]) -> Scalar:
    return jnp.mean((network(pairs(batch.observations, batch.actions)) - followed) ** 2)


class Imagined(eqx.Module):
    """Episodes under way: in each model some that follow the actor and some that follow its average. `pace` and
    `from_start` are running averages over the episodes of each model and policy."""

    observations: Float[Array, "models policies episodes obs"]
    times: Int[Array, "models policies episodes"]  # steps since the episode began
    discounted: Float[Array, "models policies episodes"]  # cost since then
    horizon: Int[Array, ""]
    steps: Int[Array, ""]
    pace: Float[Array, "models policies"]  # cost per step in the second half of the horizon
    from_start: Float[
        Array, "models policies"
    ]  # discounted cost of an endless episode, from where logged episodes start

    @classmethod
    def create(cls, spec: Spec, limit: Scalar, discount: float, key: PRNGKeyArray) -> "Imagined":
        """All in the middle of the state space, at times of their own, so that they do not begin anew in the same step."""
        horizon = min(spec.horizon or LONGEST, LONGEST)
        groups, shape = (MODELS, POLICIES), (MODELS, POLICIES, EPISODES)
        return cls(
            observations=jnp.zeros((*shape, spec.observation_dim)),
            times=jax.random.randint(key, shape, 0, horizon),
            discounted=jnp.zeros(shape),
            horizon=jnp.asarray(horizon, jnp.int32),
            steps=jnp.zeros((), jnp.int32),
            pace=jnp.full(groups, (1.0 - discount) * limit, jnp.float32),
            from_start=jnp.full(groups, limit, jnp.float32),
        )

    def advance(
        self,
        plants: Sequence[Plant],
        actors: Sequence[TanhGaussianActor],
        starts: Float[Array, "starts obs"],
        discount: float,
        key: PRNGKeyArray,
    ) -> "Imagined":
        """One step of every episode. One that reaches the horizon, or states far from the log's, begins anew in a state that
        a logged episode starts in."""
        actions = jnp.stack([actor.mode(self.observations[:, i]) for i, actor in enumerate(actors)], 1)
        following, costs = _step_in_each(plants, self.observations, actions, key)
        discounted = self.discounted + discount**self.times * costs

        late = self.times >= self.horizon // 2
        pace = _towards(self.pace, costs, late, 0.005)
        complete = self.times + 1 >= self.horizon
        beyond = discount**self.horizon * pace[..., None] / (1.0 - discount)
        whole = complete & (self.steps >= self.horizon)  # the first ones did not begin at a start
        from_start = _towards(self.from_start, discounted + beyond, whole, 0.05)

        low, high = plants[0].low, plants[0].high  # all have seen the same rows
        margin = OUTSIDE * (high - low)
        lost = jnp.any((following < low - margin) | (following > high + margin), -1)
        anew = complete | lost
        fresh = starts[jnp.arange(anew.size) % starts.shape[0]].reshape(following.shape)
        return replace(
            self,
            observations=jnp.where(anew[..., None], fresh, jnp.clip(following, low, high)),
            times=jnp.where(anew, 0, self.times + 1),
            discounted=jnp.where(anew, 0.0, discounted),
            steps=self.steps + 1,
            pace=pace,
            from_start=from_start,
        )

    def cost(self, discount: float) -> Scalar:
        """The discounted cost to compare with the limit: that of the average or, if the actor costs more, half-way between
        them, because the average follows the actor late. Each is the greater of the cost from the start and that of going
        on at the pace; the model counts in which the cost is greater."""
        actor, average = jnp.maximum(self.from_start, self.pace / (1.0 - discount)).T
        return jnp.max(average + 0.5 * jnp.maximum(actor - average, 0.0))


def _step_in_each(
    plants: Sequence[Plant],
    observations: Float[Array, "models policies episodes obs"],
    actions: Float[Array, "models policies episodes act"],
    key: PRNGKeyArray,
) -> tuple[Float[Array, "models policies episodes obs"], Float[Array, "models policies episodes"]]:
    """(s', c) of every episode in its model, s' with the model's noise."""
    flat = (x.reshape(MODELS, POLICIES * EPISODES, x.shape[-1]) for x in (observations, actions))
    following, costs = zip(*(plant(s, a) for plant, s, a in zip(plants, *flat, strict=True)), strict=True)
    noise = jnp.stack([plant.noise for plant in plants])[:, None, None]
    shape = observations.shape
    noisy = jnp.stack(following).reshape(shape) + noise * jax.random.normal(key, shape)
    return noisy, jnp.stack(costs).reshape(shape[:-1])


def _towards(
    mean: Float[Array, "models policies"],
    values: Float[Array, "models policies episodes"],
    counted: Bool[Array, "models policies episodes"],
    rate: float,
) -> Float[Array, "models policies"]:
    """A running mean for each model and policy, over the episodes that are counted; it stays where none is."""
    now = jnp.sum(jnp.where(counted, values, 0.0), -1) / jnp.maximum(counted.sum(-1), 1)
    return jnp.where(counted.any(-1), mean + rate * (now - mean), mean)


def feedback_rate(step: Int[Array, ""], error: Scalar, feedback: float) -> Scalar:
    """0 until the policy has settled, and where a model leaves more than PREDICTED of what happens unexplained: a model that
    is wrong in single steps is wrong about episodes. Otherwise it falls with the steps: actor and average answer late, and
    feedback of a constant rate swings around the limit."""
    used = (step > SETTLED) & (error <= PREDICTED)
    return jnp.where(used, feedback / (1.0 + step / HALVED), 0.0)


def next_slack(slack: Scalar, cost: Scalar, limit: Scalar, rate: Scalar, within: tuple[float, float]) -> Scalar:
    """Slack rises while the imagined cost is below AIM x l, and falls above."""
    return jnp.clip(slack + rate * (AIM - cost / jnp.maximum(limit, 1e-3)), *within)
