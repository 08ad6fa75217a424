"""Fitted Q evaluation of reward and cost, exactly: critics linear in features, backed up over the horizon.

    q_h = argmin_q  sum_i (q(s_i, a_i) - [r_i + discount continues_i q_{h-1}(s'_i, pi(s'_i))])^2 + ridge,    q_0 = 0

With q_h = x'w_h and the moments A = X'X / n, B = X'X_next / n, b = X'r / n every backup is w_h = A^-1 (b + discount B
w_{h-1}), so the value over the log's horizon needs no iteration that could stop too early (Le, Voloshin and Yue, "Batch
policy learning under constraints", 2019; Duan, Jia and Wang, "Minimax-optimal off-policy evaluation with linear
function approximation", 2020). Termination ends the sum of rewards and of costs, truncation does not.

Linear critics extrapolate without bound, and such backups can diverge. The leverage x' A^-1 x of a pair says how unlike the
logged pairs it is. A next pair that is more unlike than all but one in two hundred logged ones is moved towards the mean of
the log until it is as unlike as those: what the log does not show is valued like the most unusual that it does show.

The same numbers give more: the variance of an episode's cost (a backup of second moments), the weight of each logged row
in the estimate (a marginalised importance weight), and how far the estimates of other samples of episodes would scatter.

Random features are a draw too. On few rows estimates by other draws differ by more than the sample of episodes explains, so
that several draws are evaluated there, and how far they differ is a part of the spread (`AveragedFittedQ`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from ringfence.data.dataset import Dataset
from ringfence.evaluation.ope.features import Features, Rows
from ringfence.limits import discounted_steps

Vector = NDArray[np.float64]
RIDGE = 1e-3  # of each feature's own size
FOREIGN = 0.995  # a pair is foreign if its leverage is above that of this share of the logged pairs
GROUPS = 25  # of episodes, whose influence on the estimates is looked at
LEVERAGE_ROWS = 20_000
CHUNK = 20_000  # rows of features at a time


@dataclass(frozen=True, eq=False)
class Values:
    """What fitted Q evaluation says of one policy, from the states that logged episodes start in."""

    returned: float  # expected discounted reward over the horizon
    cost: float  # expected discounted cost over the horizon
    cost_spread: float  # standard deviation of an episode's discounted cost
    influences: Vector  # (groups, 2): derivative of return and cost by how often a group of episodes counts
    weights: Vector  # (rows,): the weight of each logged row in the estimates; they sum to the discounted steps
    critics: Vector  # (features, 2): of return and cost, with the whole horizon to go
    in_range: bool  # whether both values are possible at all, given the least and greatest step of the log
    feature_spread: Vector = field(default_factory=lambda: np.zeros(2))  # standard deviation over draws of features

    @property
    def effective_rows(self) -> float:
        """(sum w)^2 / sum w^2: how many rows the estimate really rests on."""
        return float(self.weights.sum() ** 2 / max((self.weights**2).sum(), 1e-300))

    @property
    def sampling_spread(self) -> Vector:
        """(2,): standard deviation of return and cost over samples of episodes, by the infinitesimal jackknife (Jaeckel,
        1972; Efron, 1982): what bootstrap samples of groups of episodes give to first order, without their refits."""
        groups = len(self.influences)
        return np.asarray(np.sqrt((self.influences**2).sum(0) * groups / max(groups - 1, 1)))

    @property
    def amplification(self) -> float:
        """sum |w| / |sum w|. An error of e in what the critics say of each row moves the estimate by up to e sum |w|: it is
        1 where the policy does what some mixture of logged rows does, and grows with what is extrapolated from them."""
        return float(np.abs(self.weights).sum() / max(abs(self.weights.sum()), 1e-300))


class FittedQ:
    """Fitted Q evaluation on one log, for any number of policies: what does not depend on the policy is computed once."""

    def __init__(
        self,
        log: Dataset,
        features: Features,
        discount: float,
        horizon: int | None = None,
        *,
        ridge: float = RIDGE,
        groups: int = GROUPS,
        seed: int = 0,
    ):
        self.log, self.features, self.discount, self.ridge = log, features, discount, ridge
        self.horizon = log.horizon if horizon is None else int(horizon)
        lengths = log.episode_ends - log.episode_starts
        episodes = len(lengths)
        rng = np.random.default_rng(seed)
        self.group_of_episode = rng.permutation(np.arange(episodes) % min(groups, episodes))
        self.group_of_row = np.repeat(self.group_of_episode, lengths)
        self.groups = int(self.group_of_episode.max()) + 1
        self.continues = (~log.terminations).astype(np.float32)
        self.pairs = _in_chunks(features, log.observations, log.actions)
        signals = np.stack([log.rewards, log.costs, log.costs**2], 1).astype(np.float32)
        self.gram, self.targets = self._by_group(self.pairs), self._by_group(signals)
        self.rows = np.bincount(self.group_of_row, minlength=self.groups).astype(float)
        gram = self.gram.sum(0) / len(log)
        self.factor = linalg.cho_factor(gram + np.diag(self._penalty(gram)), lower=True)
        self.mean_pair = self.pairs.mean(0)
        sample = rng.choice(len(log), min(LEVERAGE_ROWS, len(log)), replace=False)
        self.most_leverage = float(np.quantile(self.leverage(self.pairs[sample]), FOREIGN))

    def _by_group(self, right: Rows) -> NDArray[np.float64]:
        """X'R of each group of episodes, shape (groups, features, columns of R)."""
        out = np.zeros((self.groups, self.pairs.shape[1], right.shape[1]))
        order = np.argsort(self.group_of_row, kind="stable")
        edges = np.searchsorted(self.group_of_row[order], np.arange(self.groups + 1))
        for group in range(self.groups):
            for first in range(edges[group], edges[group + 1], CHUNK):
                rows = order[first : min(first + CHUNK, edges[group + 1])]
                out[group] += self.pairs[rows].T @ right[rows]
        return out

    def leverage(self, pairs: Rows) -> Vector:
        """x' A^-1 x of each pair: how unlike the logged pairs it is. Its mean over these is the number of features."""
        half = linalg.solve_triangular(self.factor[0].astype(np.float32), pairs.T, lower=True, check_finite=False)
        return np.asarray((half**2).sum(0), np.float64)

    def following(self, next_actions: Rows) -> Rows:
        """Features of the next pairs, none more unlike the log than `most_leverage`; 0 after a termination."""
        log, parts = self.log, []
        for i in range(0, len(log), CHUNK):
            rows = slice(i, i + CHUNK)
            pairs = np.asarray(self.features(log.next_observations[rows], next_actions[rows]), np.float32)
            share = np.sqrt(self.most_leverage / np.maximum(self.leverage(pairs), 1e-12))
            limited = self.mean_pair + np.minimum(share, 1.0).astype(np.float32)[:, None] * (pairs - self.mean_pair)
            parts.append(limited * self.continues[rows, None])
        return np.concatenate(parts)

    def _penalty(self, gram: Vector) -> Vector:
        size = np.diag(gram)
        penalty = self.ridge * (size + 1e-3 * size.mean())
        penalty[0] = 1e-9  # of the constant
        return np.asarray(penalty)

    def evaluate(self, next_actions: Rows, start_actions: Rows) -> Values:
        """The policy that takes `next_actions` in the log's next observations and `start_actions` in the first ones."""
        log = self.log
        following = self.following(next_actions)
        cross = self._by_group(following)
        costly = self._by_group(following * log.costs[:, None]).sum(0)
        firsts = _in_chunks(self.features, log.observations[log.episode_starts], start_actions)
        starts = np.zeros((self.groups, firsts.shape[1]))
        np.add.at(starts, self.group_of_episode, firsts)
        counts = np.bincount(self.group_of_episode, minlength=self.groups).astype(float)

        ones = np.ones(self.groups)
        backup, once, factor = self._solve(ones, cross)
        start = ones @ starts / counts.sum()
        values, visits, spread = self._over_horizon(backup, once, start, factor, costly)
        critics = values[-1]
        value = start @ critics
        dual = linalg.cho_solve(factor, visits.T)
        weights = self.pairs @ dual.sum(1).astype(np.float32)
        starts -= counts[:, None] * start
        return Values(
            returned=float(value[0]),
            cost=float(value[1]),
            cost_spread=spread,
            influences=self._influences(values, dual, cross) + starts @ critics / counts.sum(),
            weights=np.asarray(weights, np.float64) / len(log),
            critics=critics,
            in_range=self._possible(value),
        )

    def critics_at(self, observations: Rows, actions: Rows, values: Values) -> Vector:
        """(rows, 2): what the critics of `values` say of these pairs, return and cost, with the whole horizon to go."""
        return np.asarray(_in_chunks(self.features, observations, actions) @ values.critics)

    def _solve(self, weights: Vector, cross: NDArray[np.float64]) -> tuple[Vector, Vector, tuple[Vector, bool]]:
        """A^-1 B, A^-1 b and the factor of A, with each group of episodes counted `weights` times."""
        rows = weights @ self.rows
        gram = np.tensordot(weights, self.gram, 1) / rows
        factor = linalg.cho_factor(gram + np.diag(self._penalty(gram)), lower=True)
        right = np.concatenate([np.tensordot(weights, cross, 1), np.tensordot(weights, self.targets, 1)], 1) / rows
        solved = linalg.cho_solve(factor, right)
        return solved[:, :-3], solved[:, -3:], factor

    def _over_horizon(
        self, backup: Vector, once: Vector, start: Vector, factor: tuple[Vector, bool], costly: Vector
    ) -> tuple[NDArray[np.float64], Vector, float]:
        """Critics with 0 to `horizon` steps to go, the discounted visits of features at each step, and the spread of an
        episode's cost.

        Second moments: E[(c + discount C')^2] = E[c^2] + 2 discount E[c C'] + discount^2 E[C'^2].
        """
        costly = linalg.cho_solve(factor, costly) / len(self.log)
        values = np.zeros((self.horizon + 1, len(start), 2))
        visits, second = np.zeros((self.horizon, len(start))), np.zeros(len(start))
        visit = start
        for step in range(self.horizon):
            before = values[step]
            second = once[:, 2] + 2 * self.discount * costly @ before[:, 1] + self.discount**2 * backup @ second
            values[step + 1] = once[:, :2] + self.discount * backup @ before
            visits[step] = visit
            visit = self.discount * (backup.T @ visit)
        mean = start @ values[-1]
        return values, visits, float(np.sqrt(max(start @ second - mean[1] ** 2, 0.0)))

    def _influences(self, values: NDArray[np.float64], dual: Vector, cross: NDArray[np.float64]) -> Vector:
        """(groups, 2): d value / d weight of each group of episodes, by way of the moments A, B and b:

            sum_h  u_h' (db + discount dB w_{h-1} - dA w_h),    u_h = A^-1 (visits with h steps to go)

        The sums over h are matrices, which every group's moments are multiplied with."""
        rows = len(self.log)
        gram, crossed, target = (moments.sum(0) / rows for moments in (self.gram, cross, self.targets))
        out = np.zeros((self.groups, 2))
        for signal in range(2):
            behind = dual @ values[1:, :, signal][::-1]  # (features, features): sum_h u_h w_h'
            ahead = self.discount * dual @ values[:-1, :, signal][::-1]
            once = dual.sum(1)
            for group in range(self.groups):
                share = self.rows[group]
                moved = self.gram[group] - share * gram
                penalty = self._penalty(moved)
                penalty[0] = 0.0
                out[group, signal] = (
                    once @ (self.targets[group, :, signal] - share * target[:, signal])
                    + np.vdot(ahead, cross[group] - share * crossed)
                    - np.vdot(behind, moved)
                    - np.diag(behind) @ penalty
                ) / rows
        return out

    def _possible(self, value: Vector) -> bool:
        steps = discounted_steps(self.discount, self.horizon)
        log = self.log
        least = np.array([min(float(log.rewards.min()), 0.0), 0.0]) * steps
        most = np.array([max(float(log.rewards.max()), 0.0), float(log.costs.max())]) * steps
        room = 0.1 * steps * np.array([float(np.abs(log.rewards).mean()), float(log.costs.mean())])
        return bool(np.isfinite(value).all() and (value >= least - room).all() and (value <= most + room).all())


class AveragedFittedQ(FittedQ):
    """Fitted Q evaluation by several draws of features: the mean of what they say, and how far they differ. What else is
    asked of it, such as leverages and critics, is of the first."""

    def __init__(
        self, log: Dataset, draws: Sequence[Features], discount: float, horizon: int | None = None, *, seed: int = 0
    ):
        super().__init__(log, draws[0], discount, horizon, seed=seed)
        self.others = tuple(FittedQ(log, features, discount, horizon, seed=seed) for features in draws[1:])

    def evaluate(self, next_actions: Rows, start_actions: Rows) -> Values:
        first = super().evaluate(next_actions, start_actions)
        return mean_of([first, *(other.evaluate(next_actions, start_actions) for other in self.others)])


def mean_of(draws: Sequence[Values]) -> Values:
    """The mean over the draws of features whose values are possible, with the critics of the first draw. It is in range only
    if all of them are: if one draw diverges, none is used."""
    kept = [each for each in draws if each.in_range] or draws

    def mean(name: str) -> Vector:
        return np.asarray(np.mean([getattr(each, name) for each in kept], axis=0))

    signals = np.array([[each.returned, each.cost] for each in kept])
    return replace(
        draws[0],
        returned=float(mean("returned")),
        cost=float(mean("cost")),
        cost_spread=float(mean("cost_spread")),
        influences=mean("influences"),
        weights=mean("weights"),
        in_range=all(each.in_range for each in draws),
        feature_spread=signals.std(0, ddof=1) if len(kept) > 1 else np.zeros(2),
    )


def _in_chunks(features: Features, observations: Rows, actions: Rows) -> Rows:
    parts = [
        np.asarray(features(observations[i : i + CHUNK], actions[i : i + CHUNK]), np.float32)
        for i in range(0, len(observations), CHUNK)
    ]
    return np.concatenate(parts)
