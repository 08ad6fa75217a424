"""Logs of tabular behaviours as a `Dataset`, and back again to the model that a log counts.

A state is a one-hot observation. A discrete action becomes one continuous action in [-1, 1]: the interval is cut
into as many equal bins as there are actions and an action is the centre of its bin, so that a continuous policy can
be read back by asking which bin it hits.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringfence.data.dataset import Dataset
from ringfence.tabular.cmdp import Cmdp, Mask, Table, uniform_policy


def embed_actions(indices: ArrayLike, n_actions: int) -> NDArray[np.float64]:
    """The centre of each action's bin in [-1, 1], shape (..., 1)."""
    centres: NDArray[np.float64] = (2 * np.asarray(indices, dtype=np.float64) + 1) / n_actions - 1
    return centres[..., None]


def action_indices(actions: ArrayLike, n_actions: int) -> NDArray[np.int64]:
    """The bin that each continuous action of shape (..., 1) falls into."""
    unit = (np.asarray(actions, dtype=np.float64)[..., 0] + 1) / 2
    return np.clip(np.floor(unit * n_actions), 0, n_actions - 1).astype(np.int64)


def sample_log(cmdp: Cmdp, behaviours: Mapping[str, Table], transitions: int, rng: np.random.Generator) -> Dataset:
    """A log of about equal parts of each behaviour, one episode after another.

    An episode is truncated after each step with probability 1 - discount, so the states in the log follow the
    discounted distribution mu^beta that the paper samples from. Transitions are shared out equally between the
    behaviours, what is left over to the first ones; every behaviour's last episode is cut where its share ends.
    """
    each, left = divmod(transitions, len(behaviours))
    rows: list[tuple[int, int, int, bool, bool, int]] = []
    start, transition, terminal = cmdp.start.cumsum(), cmdp.transition.cumsum(2), cmdp.terminal
    for source, policy in enumerate(behaviours.values()):
        written, state, choice = 0, _draw(rng, start), policy.cumsum(1)
        quota = each + (source < left)
        while written < quota:
            written += 1
            action = _draw(rng, choice[state])
            following = _draw(rng, transition[state, action])
            terminated = bool(terminal[following])
            last = written == quota
            truncated = not terminated and (last or bool(rng.random() >= cmdp.discount))
            rows.append((state, action, following, terminated, truncated, source))
            state = _draw(rng, start) if terminated or truncated else following
    states, actions, following_states, terminated_rows, truncated_rows, sources = map(np.array, zip(*rows, strict=True))
    one_hot = np.eye(cmdp.n_states)
    return Dataset.from_arrays(
        observations=one_hot[states],
        actions=embed_actions(actions, cmdp.n_actions),
        rewards=cmdp.reward[states, actions],
        costs=cmdp.cost[states, actions],
        next_observations=one_hot[following_states],
        terminations=terminated_rows,
        truncations=truncated_rows,
        source=sources,
        source_names=tuple(behaviours),
        action_low=[-1.0],
        action_high=[1.0],
        name="tabular",
        metadata={"discount": cmdp.discount},
    )


@dataclass(frozen=True, eq=False)
class CountedModel:
    """What a log says about a CMDP: its counted model, pi_beta and the share of rows that start in each state."""

    cmdp: Cmdp
    behaviour: Table  # zero for pairs the log never holds, and in every pair of a state it never visits
    states: Table
    counts: Table  # (states, actions, next states)
    over: Mask  # (states,), where the log says that an episode terminated

    @property
    def rows(self) -> Table:
        """How often the log holds each pair."""
        pairs: Table = self.counts.sum(2)
        return pairs

    @property
    def known(self) -> Mask:
        """Pairs whose cost and next state need no guess: logged ones, and those after the end of an episode."""
        pairs: Mask = (self.rows > 0) | self.over[:, None]
        return pairs


def counted_model(
    log: Dataset, n_actions: int, discount: float, limit: float, worst_cost: float | None = None
) -> CountedModel:
    """Maximum-likelihood transition, mean reward and mean cost of each logged pair; pi_beta of Section 3.1.

    A pair the log never holds stays where it is, pays `worst_cost` (the largest logged cost, if not given) and earns the
    least logged reward. So a state that the log arrives in but never acts in, as after a truncation, is not taken for
    free. Only where the log says that an episode terminated does nothing more happen.
    """
    n_states = log.observations.shape[1]
    states, following = log.observations.argmax(1), log.next_observations.argmax(1)
    actions = action_indices(log.actions, n_actions)
    counts = np.zeros((n_states, n_actions, n_states))
    np.add.at(counts, (states, actions, following), 1.0)
    pairs = counts.sum(2)
    visits = pairs.sum(1, keepdims=True)
    seen = pairs > 0
    divisor = np.where(seen, pairs, 1.0)
    stay = np.broadcast_to(np.eye(n_states)[:, None, :], counts.shape)
    reward, cost = np.zeros_like(pairs), np.zeros_like(pairs)
    np.add.at(reward, (states, actions), log.rewards)
    np.add.at(cost, (states, actions), log.costs)
    over = (np.bincount(following[log.terminations], minlength=n_states)[:, None] > 0) & (visits == 0)
    worst = float(log.costs.max()) if worst_cost is None else worst_cost
    start = np.bincount(states[_first_rows(log)], minlength=n_states).astype(np.float64)
    model = Cmdp(
        transition=np.where(seen[..., None], counts / divisor[..., None], stay),
        reward=np.where(seen, reward / divisor, np.where(over, 0.0, float(log.rewards.min()))),
        cost=np.where(seen, cost / divisor, np.where(over, 0.0, worst)),
        start=start / start.sum(),
        discount=discount,
        limit=limit,
    )
    behaviour = pairs / np.where(visits > 0, visits, 1.0)
    return CountedModel(model, behaviour, visits[:, 0] / len(states), counts, over[:, 0])


def cloned_policy(model: CountedModel) -> Table:
    """pi_beta, uniform where the log knows nothing: behaviour cloning on tables."""
    known = model.behaviour.sum(1, keepdims=True) > 0
    return np.where(known, model.behaviour, uniform_policy(model.cmdp))


def _first_rows(log: Dataset) -> NDArray[np.bool_]:
    ended: NDArray[np.bool_] = log.terminations | log.truncations
    return np.concatenate([[True], ended[:-1]])


def _draw(rng: np.random.Generator, cumulative: Table) -> int:
    # Much faster than Generator.choice for one draw. The last sum may round to just below 1.
    return min(int(cumulative.searchsorted(rng.random(), side="right")), len(cumulative) - 1)
