"""The smallest CMDPs on which the ideas of ringfence's own default (`tabular.default`) do not keep the limit, or diverge.

A hinge that is too weak needs no CMDP of its own: on `counterexamples.greedy_cycle` a hinge of weight k rests where
Qc(costly) = l + 0.9 / k, and Vc = (l + 0.9 / k - 1) / 0.9 exceeds l = 2 for k < 1.125; for k < 0.9 it pays for ever, 10.
"""

import numpy as np

from ringfence.tabular.cmdp import Cmdp, Table
from ringfence.tabular.counterexamples import one_state


def limit_does_not_chain() -> Cmdp:
    """Every state can meet the limit of 1, and the fixed points of CPQ and of the hinge break it at the start.

    State 0 has no choice and pays 1. State 1 may pay 1 and earn 1, or neither; then comes rest. State 1 pays, as far as
    its own limit goes, so state 0 has 1 + 0.9 and no safe action. If state 1 did not pay, state 0 would have 1.
    """
    transition = np.zeros((3, 2, 3))
    transition[0, :, 1] = transition[1:, :, 2] = 1.0
    reward, cost = np.zeros((3, 2)), np.zeros((3, 2))
    cost[0] = cost[1, 1] = reward[1, 1] = 1.0
    reward[2] = 0.1  # so that rest is not the end of the episode
    return Cmdp(transition, reward, cost, np.eye(3)[0], discount=0.9, limit=1.0)


def ending_is_cheap() -> Cmdp:
    """Going on costs 0.3 a step, 3 in all; stopping costs 1 once. The limit is 2.5.

    Without a cost after the end only stopping is inside the limit. With it stopping costs 1 + 0.9 * 2.5 = 3.25: the limit
    cannot be met, and going on is the cheaper way to break it.
    """
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 0] = transition[0, 1, 1] = transition[1, :, 1] = 1.0
    reward, cost = np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[0.3, 1.0], [0.0, 0.0]])
    return Cmdp(transition, reward, cost, np.eye(2)[0], discount=0.9, limit=2.5)


def log_hides_the_start() -> Cmdp:
    """Costs are paid in state 0, at the start; the log is mostly of state 1, where nothing costs.

    Paying 2 in state 0 earns 1. State 1 is stayed in for ever. With a limit of 1 the mean Vc over the log, (1 - 0.9) * 2 =
    0.2, is inside while the cost from the start is 2: a multiplier that looks at the log's states stays at 0.
    """
    transition = np.zeros((2, 2, 2))
    transition[:, :, 1] = 1.0
    reward, cost = np.array([[0.0, 1.0], [0.1, 0.1]]), np.array([[0.0, 2.0], [0.0, 0.0]])
    return Cmdp(transition, reward, cost, np.eye(2)[0], discount=0.9, limit=1.0)


def diverging_critic(share: float = 0.1) -> tuple[Cmdp, Table, Table]:
    """A critic linear in the action: Q = w (1 for the small action, 2 for the large one). CMDP, pi_beta and features.

    The log holds the large action with the given share q. If pi plays it with probability p, one round of fitted
    evaluation multiplies w by discount (1 + p) (1 + q) / (1 + 3 q): with p = 1 and discount 0.9 above 1 for q < 2/3, so
    training diverges though T^pi contracts. An anchor of weight k against Q over its size rests at 1 + p =
    1 / (k (1 - 2 q)), and training converges if k > discount (1 + q) / ((1 + 3 q) (1 - 2 q)).
    """
    cmdp = one_state(reward=[0.1, 0.2], cost=[0.0, 0.0], limit=1.0)
    return cmdp, np.array([[1 - share, share]]), np.array([[[1.0], [2.0]]])
