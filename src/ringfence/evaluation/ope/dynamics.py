"""A model of the plant, fitted to the log, in which a policy is rolled out: does it stay among the states of the log?

Fitted Q evaluation asks what a policy does in logged states. A policy whose small errors add up leaves them, and no backup
sees that. Here a few networks learn (state, action) to (next state, reward, cost, whether the episode terminates), each
without one fold of the episodes. A plant is the mean of all networks but one: errors of single networks, which would add up
over an episode, cancel in part. The policy acts in each of these plants from the states that logged episodes start in. The
plants differ more the less the log says about the policy, which gives a standard deviation (`network_spread`; Kidambi et
al., "MOReL", 2020; Fu et al., "Benchmarks for deep off-policy evaluation", 2021, judge robots best by such models).

An episode ends in a plant when its state passes a level beyond which logged episodes ended (`data/trips.py`), or by the
probability of an end that the networks have learned. Some gaits come close to a level and return, and there a small error
of the model decides. So an end is beyond doubt only some way behind the level, and until there what goes on is imagined
too. The upper bound of the cost goes further: it counts no end by a level, because an early end lowers the cost.

Roll-outs begin where episodes do, and an error there is in all that follows, so that the networks learn more from the first
steps of episodes, of which a log has few.

The roll-outs take the networks' expected next state, so that the plant's own noise is left out. Where that noise is a good
part of what happens (`noisy`), they are not used at all: a cost that only large disturbances cause would be imagined away.
But also where a policy may change from one gait to another, small errors decide when it does, and roll-outs without any
noise show one of the two. So there are others, with the networks' own error as noise, where hardly any logged episode
terminated: elsewhere disturbed controllers are imagined to fall. What a policy earns and costs lies between what both say.

A policy that does not stay among the log's states comes to where the networks contradict each other. A mean of networks
goes on there as if nothing had happened: robots that fall are imagined to run. So a roll-out may make as many disputed
steps as nearly all logged episodes have. What it earns and costs after that is between nothing, as if the episode had ended
(MOReL ends it there), and what is imagined.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ringfence.data.dataset import Dataset
from ringfence.data.trips import Trips, find_trips
from ringfence.evaluation.ope.features import Rows
from ringfence.evaluation.ope.regression import draw_weights, fit_networks, scaling
from ringfence.evaluation.ope.rollouts import RollOuts
from ringfence.networks import MLP

Act = Callable[[Rows], Any]
LEAST_ROWS = 30_000  # of a log that a model is fitted to; with fewer, backups alone are sharper (docs/how-sure.md)
MEMBERS = 4
HIDDEN = (256, 256, 256)
STEPS = 12_000
BEHIND = 0.1  # of a column's standard deviation: so far behind its level an end is beyond doubt
STARTS = 40  # roll-outs in each plant
USUAL = 0.97  # a step is disputed if the networks differ more than on this share of logged rows
USUAL_EPISODES = 0.97  # a roll-out that has more of them than this share of logged episodes has left the log
EPISODES = 100  # so many of them are looked at
DISTURBED = 0.7  # of the networks' error on rows that they have not seen
UNSEEN = 5_000  # so many of these rows for each network
NOISY = 1 / 3  # of the variance of a column's change: a plant of which the networks leave more unexplained is noisy
ROUNDING = 1e-3  # of a column's standard deviation: changes that differ by less, as a clock's do, are as good as known
RARELY = 0.05  # of the logged episodes terminated: where more did, there are no disturbed roll-outs


@dataclass(frozen=True, eq=False)
class Dynamics:
    """Networks from scaled (observation, action) to scaled (change of the observation, reward, cost) and the logit of
    a termination; two or more."""

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
    trips: Trips
    beyond_doubt: Trips
    usual: float = 1.0  # how far the networks differ at most on nearly all logged rows
    allowed: float = np.inf  # disputed steps that nearly all logged episodes do not exceed
    unknown_reward: float = 0.0  # of a step after that: the log's poorest episode's mean, or 0 if that is positive
    residual: Rows | float = 0.0  # root mean square error of each observation, on rows that a network did not see
    terminates: bool = True  # whether logged episodes do, more than rarely
    unexplained: Rows | float = 0.0  # of the variance of each column's change

    @property
    def noisy(self) -> tuple[int, ...]:
        """The columns of which a good part of what happens is not in the expected next state."""
        return tuple(int(column) for column in np.flatnonzero(np.asarray(self.unexplained) > NOISY))

    def step(self, observations: Rows, actions: Rows) -> tuple[Rows, Rows, Rows, Rows]:
        """(next observations, (reward, cost), probabilities of termination, how far the networks differ) in each plant, from
        (plants, rows, columns). The probabilities are with levels, with levels beyond doubt, and without."""
        centre, spread = self.inputs
        scaled = (np.concatenate([observations, actions], 2) - centre) / spread
        raw, apart = (np.asarray(x) for x in _predict(self.networks, scaled))
        centre, spread = self.outputs
        predicted = raw[..., :-1] * spread + centre
        reached = observations + predicted[..., :-2]
        following = np.clip(reached, self.least, self.most)
        signals = np.clip(predicted[..., -2:], self.least_signals, self.most_signals)
        learned = 1 / (1 + np.exp(-np.clip(raw[..., -1], -30.0, 30.0)))
        by_level, surely = (np.where(passed(reached), 1.0, learned) for passed in (self.trips, self.beyond_doubt))
        ends = np.stack([by_level, surely, learned])
        following, signals, ends, apart = (x.astype(np.float32) for x in (following, signals, ends, apart / self.usual))
        return following, signals, ends, apart

    def roll_out(self, act: Act, horizon: int, discount: float) -> RollOuts:
        """The policy in every plant, from the same starts. If hardly any logged episode terminated, also in disturbed
        plants."""
        calm = self._roll_out(act, horizon, discount, 0.0)
        return calm if self.terminates else replace(calm, disturbed=self._roll_out(act, horizon, discount, DISTURBED))

    def _roll_out(self, act: Act, horizon: int, discount: float, noise: float) -> RollOuts:
        rng = np.random.default_rng(0)
        now = np.stack([self.starts] * len(self.networks))
        alive, disputed = np.ones((3, *now.shape[:2]), np.float32), np.zeros(now.shape[:2], np.float32)
        kept: list[tuple[Rows, ...]] = []
        for _ in range(horizon):
            wanted = np.asarray(act(now.reshape(-1, now.shape[-1])), np.float32)
            actions = np.clip(wanted.reshape(*now.shape[:2], -1), self.low, self.high)
            following, signals, ends, apart = self.step(now, actions)
            if noise:
                moved = (
                    noise * self.residual * rng.standard_normal(following.shape[1:], np.float32)
                )  # in all plants alike
                following = np.clip(following + moved, self.least, self.most)
            disputed = disputed + (apart > 1)
            known = (disputed <= self.allowed).astype(np.float32)
            kept.append((now, actions, signals[..., 0], signals[..., 1], *alive, known))
            now, alive = following, alive * (1 - ends)
        states, acted, rewards, costs, living, perhaps, longest, inside = (
            np.stack(column) for column in zip(*kept, strict=True)
        )
        return RollOuts(states, acted, rewards, costs, living, perhaps, longest, inside, discount, self.unknown_reward)


def network_spread(leaving_out: NDArray[np.float64]) -> float:
    """The standard deviation of what single networks say, given the n means of all but one: each lies 1 / (n - 1) times as
    far from the mean as the network that it leaves out. That of the mean of n independent networks is smaller by sqrt(n).
    It is not divided: the networks share most of their rows, and a mean does not reduce an error that they share."""
    count = len(leaving_out)
    return float(np.sqrt(count * (count - 1) * leaving_out.var()))  # (n - 1)^2 times their sample variance


def fit_dynamics(log: Dataset, horizon: int, *, members: int = MEMBERS, steps: int = STEPS, seed: int = 0) -> Dynamics:
    """Each member learns from all but one fold of the episodes, or from all where there are fewer episodes than members.
    Roll-outs will be `horizon` steps long."""
    rng = np.random.default_rng(seed)
    columns = np.concatenate([log.observations, log.actions], 1)
    changes = log.next_observations - log.observations
    signals = np.stack([log.rewards, log.costs], 1)
    inputs, outputs = (scaling(x) for x in (columns, np.concatenate([changes, signals], 1)))
    x = (columns - inputs[0]) / inputs[1]
    scaled = (np.concatenate([changes, signals], 1) - outputs[0]) / outputs[1]
    y = np.concatenate([scaled, log.terminations[:, None]], 1)
    trips = find_trips(log)
    lengths = log.episode_ends - log.episode_starts
    weights = draw_weights(lengths)
    fold = np.repeat(rng.permutation(np.arange(len(lengths)) % members), lengths)
    few = len(lengths) < members
    draws = [np.where((fold != member) | few, weights, 0.0) for member in range(members)]
    networks = fit_networks(x, y, draws, HIDDEN, transition_loss, steps, seed)
    usual, allowed = _disputes(networks, x, log, horizon, rng)
    residual = _residual(networks, x, scaled[:, : changes.shape[1]], draws)
    change_spread, spread = outputs[1][: changes.shape[1]], inputs[1][: changes.shape[1]]
    unexplained = (residual * np.minimum(change_spread / (ROUNDING * spread), 1.0)) ** 2
    terminated = float(log.terminations[log.episode_ends - 1].mean())
    count = min(STARTS, len(lengths))
    first = log.observations[rng.choice(log.episode_starts, count, replace=False)]
    poorest = min((np.add.reduceat(log.rewards, log.episode_starts) / lengths).min(), 0.0)
    states = log.observations.shape[1]
    beyond_doubt = trips.moved_out(BEHIND * inputs[1][:states])
    least = np.minimum(log.observations.min(0), np.where(np.isfinite(beyond_doubt.low), beyond_doubt.low, np.inf))
    most = np.maximum(log.observations.max(0), np.where(np.isfinite(beyond_doubt.high), beyond_doubt.high, -np.inf))
    return Dynamics(
        networks, first, log.action_low, log.action_high, least, most, signals.min(0), signals.max(0),
        inputs, outputs, trips, beyond_doubt, usual, allowed, float(poorest), residual * change_spread,
        terminated > RARELY, unexplained,
    )  # fmt: skip


def transition_loss(raw: jax.Array, target: jax.Array) -> jax.Array:
    """Squared error of change, reward and cost, log-likelihood of terminations."""
    squares = ((raw[:, :-1] - target[:, :-1]) ** 2).mean(0).sum()
    return jnp.asarray(squares + (jax.nn.softplus(raw[:, -1]) - target[:, -1] * raw[:, -1]).mean())


def _residual(networks: tuple[MLP, ...], x: Rows, changes: Rows, draws: Sequence[NDArray[np.float64]]) -> Rows:
    """The root mean square error of each column, of networks on rows that they did not learn from, if there are any."""
    squares = []
    for network, drawn in zip(networks, draws, strict=True):
        unseen = np.flatnonzero(drawn == 0) if (drawn == 0).any() else np.arange(len(x))
        some = unseen[np.linspace(0, len(unseen) - 1, min(len(unseen), UNSEEN)).astype(int)]
        squares.append(
            ((np.asarray(network(jnp.asarray(x[some])))[:, : changes.shape[1]] - changes[some]) ** 2).mean(0)
        )
    return np.asarray(np.sqrt(np.mean(squares, 0)), np.float32)


def _disputes(
    networks: tuple[MLP, ...], x: Rows, log: Dataset, horizon: int, rng: np.random.Generator
) -> tuple[float, float]:
    """How far the networks differ at most on nearly all logged rows, and in how many steps, of as many as a roll-out has,
    logged episodes are above that. From some episodes, drawn at random."""
    starts = rng.permutation(log.episode_starts)[:EPISODES]
    ends = np.minimum(starts + horizon, log.episode_ends[np.searchsorted(log.episode_starts, starts)])
    rows = np.concatenate([np.arange(start, end) for start, end in zip(starts, ends, strict=True)])
    apart = np.asarray(_apart(networks, x[rows]))  # in one call: each length of an episode would be compiled
    usual = max(float(np.quantile(apart, USUAL)), 1e-9)
    counts = [episode.sum() for episode in np.split(apart > usual, np.cumsum(ends - starts)[:-1])]
    return usual, float(np.quantile(counts, USUAL_EPISODES))


@jax.jit
def _predict(networks: tuple[MLP, ...], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(plants, rows, outputs) of x (plants, rows, inputs): plant i is the mean of all networks but the i-th. And how far the
    networks differ, (plants, rows)."""
    every = jnp.stack([network(x) for network in networks])
    plants = jnp.arange(len(networks))
    return (every.sum(0) - every[plants, plants]) / (len(networks) - 1), _spread(every)


@jax.jit
def _apart(networks: tuple[MLP, ...], x: jax.Array) -> jax.Array:
    """(rows,): how far the networks differ on x (rows, inputs)."""
    return _spread(jnp.stack([network(x) for network in networks]))


def _spread(every: jax.Array) -> jax.Array:
    """The root mean square, over the columns of the next state, of the networks' standard deviation."""
    return jnp.sqrt(every[..., :-3].var(0).mean(-1))
