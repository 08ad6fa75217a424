"""The best policy for one signal on a set of allowed pairs, from every state at once, by policy iteration."""

import numpy as np

from ringfence.tabular.cmdp import Cmdp, Mask, Table, deterministic_policy, state_values


def viable_pairs(cmdp: Cmdp, allowed: Mask) -> Mask:
    """The allowed pairs from which one can go on for ever without meeting a state that has no allowed pair."""
    pairs = allowed.copy()
    while True:
        dead = ~pairs.any(1)
        remaining = pairs & ~(cmdp.transition[:, :, dead] > 0).any(2)
        if (remaining == pairs).all():
            return pairs
        pairs = remaining


def best_values(cmdp: Cmdp, signal: Table, allowed: Mask) -> tuple[Table, Table]:
    """The largest V of the signal over policies on the allowed pairs, and a policy that reaches it in every state.

    A state that cannot avoid a state without allowed pairs has the value -infinity; the policy there is uniform over
    what is allowed, or over everything.
    """
    pairs = viable_pairs(cmdp, allowed)
    alive: Mask = np.asarray(pairs.any(1))
    actions = pairs.argmax(1)
    # Finite stand-ins for dead states: no viable pair leads to one, so their values are never used.
    inner = np.where(pairs, signal, 0.0)
    for _ in range(10_000):
        values = state_values(cmdp, deterministic_policy(actions.tolist(), cmdp.n_actions), inner)
        q = np.where(pairs, signal + cmdp.discount * cmdp.transition @ values, -np.inf)
        q[~alive] = 0.0
        # A change must be worth more than rounding, so that ties do not go round for ever.
        gain = q.max(1) - np.take_along_axis(q, actions[:, None], 1)[:, 0]
        better: Mask = alive & (gain > 1e-12 * (1 + np.abs(values)))
        if not better.any():
            break
        actions = np.where(better, q.argmax(1), actions)
    policy = deterministic_policy(actions.tolist(), cmdp.n_actions)
    elsewhere = np.where(allowed.any(1, keepdims=True), allowed, True)
    policy = np.where(alive[:, None], policy, elsewhere / elsewhere.sum(1, keepdims=True))
    return np.where(alive, values, -np.inf), policy


def least_costs(cmdp: Cmdp, allowed: Mask | None = None) -> Table:
    """The smallest Vc from each state over policies on the allowed pairs; infinity where no such policy exists.

    `lp.least_cost` is this averaged over the start: it can be inside the limit while some state is not.
    """
    mask = np.ones(cmdp.cost.shape, bool) if allowed is None else allowed
    values: Table = -best_values(cmdp, -cmdp.cost, mask)[0]
    return values
