"""A model of the plant, fitted to the log, in which a policy is rolled out: does it stay among the states of the log?

Fitted Q evaluation asks what a policy does in logged states. A policy whose small errors add up leaves them, and no backup
sees that. Here a few small networks learn (state, action) to (next state, reward, cost, whether the episode terminates),
each without one fold of the episodes. The policy then acts in each of them from the states that logged episodes start in.
What the networks say of a policy differs more the less the log says about it (Kidambi et al., "MOReL", 2020; Fu et al.,
"Benchmarks for deep off-policy evaluation", 2021, judge robots best by such models).

The roll-outs take the networks' expected next state. The plant's own noise, if it has any, is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ringfence.algorithms.optimise import Adam
from ringfence.data.dataset import Dataset
from ringfence.evaluation.ope.features import Rows
from ringfence.networks import MLP

Act = Callable[[Rows], Any]
LEAST_ROWS = 20_000  # of a log that a model is fitted to
MEMBERS = 3
HIDDEN = (128, 128)
STEPS, BATCH, RATE = 5000, 256, 1e-3
AVERAGED = 4.0  # the network is averaged over about the last 1/4 of the steps
STARTS = 60  # roll-outs of each member


@dataclass(frozen=True, eq=False)
class RollOuts:
    """What a policy does in each member's plant; rows beyond a termination have `alive` 0."""

    observations: Rows  # (steps, members, roll-outs, obs)
    actions: Rows
    rewards: Rows  # (steps, members, roll-outs)
    costs: Rows
    alive: Rows  # the probability that the episode has not terminated before this step
    discount: float

    @property
    def returned(self) -> NDArray[np.float64]:
        """(members,): mean discounted return."""
        return self._sums(self.rewards)

    @property
    def cost(self) -> NDArray[np.float64]:
        """(members,): mean discounted cost."""
        return self._sums(self.costs)

    def share(self, flags: NDArray[np.bool_]) -> float:
        """The share of the discounted steps, those after a termination left out, that is flagged."""
        weights = self.alive * self._factors
        return float((weights * flags).sum() / weights.sum())

    @property
    def _factors(self) -> Rows:
        return np.asarray(self.discount ** np.arange(len(self.alive)), np.float32)[:, None, None]

    def _sums(self, signal: Rows) -> NDArray[np.float64]:
        return np.asarray((self._factors * self.alive * signal).sum(0, dtype=np.float64).mean(1))


@dataclass(frozen=True, eq=False)
class Dynamics:
    """Networks from scaled (observation, action) to scaled (change of the observation, reward, cost) and the logit of
    a termination."""

    networks: tuple[MLP, ...]
    starts: Rows  # first observations of logged episodes
    low: Rows  # of actions
    high: Rows
    least: Rows  # observations that the log holds; roll-outs stay in their range
    most: Rows
    least_signals: Rows  # reward and cost
    most_signals: Rows
    inputs: tuple[Rows, Rows]  # centre and spread of each column
    outputs: tuple[Rows, Rows]

    def step(self, network: Any, observations: Rows, actions: Rows) -> tuple[Rows, Rows, Rows]:
        """(next observations, (reward, cost), probability of termination)"""
        centre, spread = self.inputs
        raw = np.asarray(_predict(network, (np.concatenate([observations, actions], 1) - centre) / spread))
        centre, spread = self.outputs
        predicted = raw[:, :-1] * spread + centre
        following = np.clip(observations + predicted[:, :-2], self.least, self.most)
        signals = np.clip(predicted[:, -2:], self.least_signals, self.most_signals)
        ends = 1 / (1 + np.exp(-np.clip(raw[:, -1], -30.0, 30.0)))
        return following.astype(np.float32), signals.astype(np.float32), ends.astype(np.float32)

    def roll_out(self, act: Act, horizon: int, discount: float) -> RollOuts:
        """The policy in every member's plant, from the same starts."""
        members, count = len(self.networks), len(self.starts)
        now = np.tile(self.starts, (members, 1))
        alive = np.ones(members * count, np.float32)
        kept: list[tuple[Rows, ...]] = []
        for _ in range(horizon):
            actions = np.clip(np.asarray(act(now), np.float32), self.low, self.high)
            parts = [
                self.step(network, now[i * count : (i + 1) * count], actions[i * count : (i + 1) * count])
                for i, network in enumerate(self.networks)
            ]
            following, signals, ends = (np.concatenate(part) for part in zip(*parts, strict=True))
            kept.append((now, actions, signals[:, 0], signals[:, 1], alive))
            now, alive = following, alive * (1 - ends)
        columns = (np.stack(column) for column in zip(*kept, strict=True))
        states, actions, rewards, costs, living = (x.reshape(horizon, members, count, *x.shape[2:]) for x in columns)
        return RollOuts(states, actions, rewards, costs, living, discount)


def fit_dynamics(log: Dataset, *, members: int = MEMBERS, steps: int = STEPS, seed: int = 0) -> Dynamics:
    """Each member learns from all but one fold of the episodes, or from all where there are fewer episodes than members."""
    rng = np.random.default_rng(seed)
    columns = np.concatenate([log.observations, log.actions], 1)
    changes = log.next_observations - log.observations
    signals = np.stack([log.rewards, log.costs], 1)
    inputs, outputs = (_scaling(x) for x in (columns, np.concatenate([changes, signals], 1)))
    x = jnp.asarray((columns - inputs[0]) / inputs[1])
    scaled = (np.concatenate([changes, signals], 1) - outputs[0]) / outputs[1]
    y = jnp.asarray(np.concatenate([scaled, log.terminations[:, None]], 1), jnp.float32)
    lengths = log.episode_ends - log.episode_starts
    fold = np.repeat(rng.permutation(np.arange(len(lengths)) % members), lengths)
    few = len(lengths) < members
    parts = [rng.permutation(np.flatnonzero((fold != member) | few)) for member in range(members)]
    shortest = min(len(part) for part in parts)  # one shape: compiled once
    networks = tuple(
        _fit(x, y, jnp.asarray(part[:shortest]), jax.random.key(1000 * seed + member), steps)
        for member, part in enumerate(parts)
    )
    count = min(STARTS, len(lengths))
    first = log.observations[rng.choice(log.episode_starts, count, replace=False)]
    return Dynamics(
        networks, first, log.action_low, log.action_high, log.observations.min(0), log.observations.max(0),
        signals.min(0), signals.max(0), inputs, outputs,
    )  # fmt: skip


def _scaling(columns: Rows) -> tuple[Rows, Rows]:
    centre, spread = columns.mean(0, np.float64), columns.std(0, np.float64)
    return centre.astype(np.float32), np.where(spread > 1e-9, spread, 1.0).astype(np.float32)


@eqx.filter_jit
def _fit(x: jax.Array, y: jax.Array, rows: jax.Array, key: jax.Array, steps: int) -> MLP:
    """Squared error of change, reward and cost, log-likelihood of terminations; the network is an average over steps."""
    adam = Adam(RATE)
    first, draw = jax.random.split(key)
    network = MLP(x.shape[1], y.shape[1], HIDDEN, normalise=True, key=first)

    def loss(network: MLP, some: jax.Array) -> jax.Array:
        raw, target = network(x[some]), y[some]
        squares = ((raw[:, :-1] - target[:, :-1]) ** 2).mean(0).sum()
        return jnp.asarray(squares + (jax.nn.softplus(raw[:, -1]) - target[:, -1] * raw[:, -1]).mean())

    def one(i: jax.Array, carried: Any) -> Any:
        network, state, average = carried
        some = rows[jax.random.randint(jax.random.fold_in(draw, i), (BATCH,), 0, len(rows))]
        network, state = adam.step(jax.grad(loss)(network, some), state, network)
        share = AVERAGED / (AVERAGED + i)
        return network, state, jax.tree.map(lambda a, b: a + share * (b - a), average, network)

    average: MLP = jax.lax.fori_loop(0, steps, one, (network, adam.init(network), network))[2]
    return average


@jax.jit
def _predict(network: MLP, x: jax.Array) -> jax.Array:
    return network(x)
