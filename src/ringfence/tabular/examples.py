"""Constrained MDPs to try things on: random ones (Garnet) and three made by hand."""

from dataclasses import dataclass

import numpy as np

from ringfence.tabular.cmdp import Cmdp, Table, deterministic_policy, expected_cost, uniform_policy


@dataclass(frozen=True, eq=False)
class Example:
    """A CMDP with the two behaviours that wrote its log: one careful, one that earns more and breaks the limit."""

    name: str
    cmdp: Cmdp
    safe: Table
    unsafe: Table


def garnet(
    rng: np.random.Generator,
    states: int = 6,
    actions: int = 3,
    branching: int = 2,
    discount: float = 0.9,
    limit_share: float = 0.8,
) -> Cmdp:
    """A random CMDP: every pair leads to `branching` random states; rewards in [0, 1]; half the costs are 0.

    The limit is a share of what uniformly random actions cost, so that it usually binds and sometimes cannot be
    met.
    """
    transition = np.zeros((states, actions, states))
    for s, a in np.ndindex(states, actions):
        successors = rng.choice(states, size=branching, replace=False)
        transition[s, a, successors] = rng.dirichlet(np.ones(branching))
    reward = rng.random((states, actions))
    cost = rng.random((states, actions)) * (rng.random((states, actions)) < 0.5)
    cmdp = Cmdp(transition, reward, cost, rng.dirichlet(np.ones(states)), discount, limit=0.0)
    return cmdp.with_limit(limit_share * expected_cost(cmdp, uniform_policy(cmdp)))


def random_policy(rng: np.random.Generator, cmdp: Cmdp, concentration: float = 1.0) -> Table:
    """Rows drawn from a Dirichlet; a small concentration gives some actions a very small probability."""
    return rng.dirichlet(np.full(cmdp.n_actions, concentration), size=cmdp.n_states)


def corridor(length: int = 6, discount: float = 0.9, limit: float = 1.5) -> Example:
    """A corridor whose middle is hot: running (action 0) pays 1 in each hot cell, creeping (1) is slow and free.

    Creeping advances every other time on average. Turning back (2) is never useful. Reaching the end pays 1.
    """
    run, creep, back = range(3)
    end = length
    transition = np.zeros((length + 1, 3, length + 1))
    reward, cost = np.zeros((length + 1, 3)), np.zeros((length + 1, 3))
    for s in range(length):
        transition[s, run, s + 1] = 1.0
        transition[s, creep, [s, s + 1]] = 0.5
        transition[s, back, max(s - 1, 0)] = 1.0
    reward[:length] = transition[:length, :, end]
    cost[1 : length - 1, run] = 1.0
    transition[end, :, end] = 1.0
    cmdp = Cmdp(transition, reward, cost, np.eye(length + 1)[0], discount, limit)
    everywhere = [0] * (length + 1)
    return Example(
        "corridor",
        cmdp,
        safe=deterministic_policy([creep for _ in everywhere], 3),
        unsafe=deterministic_policy([run for _ in everywhere], 3),
    )


def hazard_grid(width: int = 5, height: int = 3, discount: float = 0.95, limit: float = 0.4) -> Example:
    """A grid crossed from left to right, with a hazardous block in the middle of the upper rows.

    Actions are up, right, down, left; one move in ten slips to a neighbouring direction. Each step taken from a
    hazardous cell costs 1. The goal, top right, pays 1 and ends the episode. The unsafe behaviour crosses the
    block, the safe one goes around it along the bottom row.
    """
    up, right, down = range(3)
    moves = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)])
    cells = width * height
    goal = width - 1
    transition = np.zeros((cells, 4, cells))
    for cell, action in np.ndindex(cells, 4):
        for move, chance in ((action, 0.9), ((action + 1) % 4, 0.05), ((action - 1) % 4, 0.05)):
            row, column = np.clip(np.array(divmod(cell, width)) + moves[move], 0, [height - 1, width - 1])
            transition[cell, action, row * width + column] += chance
    transition[goal] = 0.0
    transition[goal, :, goal] = 1.0
    reward = transition[:, :, goal].copy()
    reward[goal] = 0.0
    hazardous = [row * width + column for row in range(height - 1) for column in range(1, width - 1)]
    cost = np.zeros((cells, 4))
    cost[hazardous] = 1.0
    cmdp = Cmdp(transition, reward, cost, np.eye(cells)[0], discount, limit)

    def around(cell: int) -> int:
        row, column = divmod(cell, width)
        if column == width - 1:
            return up
        return right if row == height - 1 else down

    across = [up if cell % width == width - 1 else right for cell in range(cells)]
    return Example(
        "hazard grid",
        cmdp,
        safe=deterministic_policy([around(cell) for cell in range(cells)], 4),
        unsafe=deterministic_policy(across, 4),
    )


def stitching(discount: float = 0.9, limit: float = 1.0) -> Example:
    """The case of the paper's Section 3.2: take the best of a safe and of an unsafe behaviour.

    A machine repeats three stages. In each, `gentle` (0) or `hard` (1); and a third way, `leap` (2), that hardly
    any log holds.

        stage   gentle          hard             what is best
        0       r 0.2           r 1.0            hard: it is free
        1       r 1.0           r 0.2, c 1.0     gentle: it earns more and is free
        2       r 0.3           r 1.0, c 0.5     a trade-off

    The safe behaviour is always gentle, the unsafe one always hard. Hard, gentle, gentle is safe and earns more
    than either. Leaping pays 2 and breaks the machine one time in five; mending it costs 15.
    """
    gentle, hard, leap = range(3)
    broken = 3
    transition = np.zeros((4, 3, 4))
    for stage in range(3):
        transition[stage, [gentle, hard], (stage + 1) % 3] = 1.0
        transition[stage, leap, [(stage + 1) % 3, broken]] = [0.8, 0.2]
    transition[broken, :, 0] = 1.0
    reward = np.array([[0.2, 1.0, 2.0], [1.0, 0.2, 2.0], [0.3, 1.0, 2.0], [0.0, 0.0, 0.0]])
    cost = np.array([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.0], [15.0, 15.0, 15.0]])
    cmdp = Cmdp(transition, reward, cost, np.eye(4)[0], discount, limit)
    return Example(
        "stitching", cmdp, safe=deterministic_policy([gentle] * 4, 3), unsafe=deterministic_policy([hard] * 4, 3)
    )


def hand_made() -> list[Example]:
    return [corridor(), hazard_grid(), stitching()]
