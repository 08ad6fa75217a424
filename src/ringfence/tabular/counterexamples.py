"""The smallest CMDPs on which a printed claim fails, or a condition is seen to be needed.

Most have a single state: then P^pi is pi itself and every number can be checked on paper.
"""

from dataclasses import dataclass

import numpy as np

from ringfence.tabular.cmdp import Cmdp, Mask, Table
from ringfence.tabular.theorems import Case


def one_state(reward: list[float], cost: list[float], limit: float, discount: float = 0.9) -> Cmdp:
    """A single state in which every action leads back to it."""
    actions = len(reward)
    return Cmdp(
        transition=np.ones((1, actions, 1)),
        reward=np.array([reward]),
        cost=np.array([cost]),
        start=np.ones(1),
        discount=discount,
        limit=limit,
    )


def printed_alpha_too_small(epsilon: float = 0.1) -> Case:
    """Theorem 1's alpha, read as an operator or as a row sum, pushes the rare action only to (1 - discount) l.

    Nothing costs anything, pi plays action 0, nu pushes action 1, of which the log holds a share epsilon. Then
    Qc-hat(1) = alpha / (2 epsilon), so alpha must be 2 epsilon l, and (I - discount P^pi) applied to l is
    (1 - discount) l.
    """
    cmdp = one_state(reward=[0.0, 0.0], cost=[0.0, 0.0], limit=1.0)
    return Case(
        cmdp, policy=np.array([[1.0, 0.0]]), behaviour=np.array([[1 - epsilon, epsilon]]), nu=np.array([[0.0, 1.0]])
    )


def no_alpha_separates() -> Case:
    """Any alpha that lifts the rare action over l also lifts the safe logged action that leads to it.

    State 0 has one useful action, of cost 0.9; it leads to state 1, where pi plays a free action that the log hardly
    holds. "Only overestimate OOD actions" (Step 1) is impossible while pi plays them.
    """
    transition = np.zeros((2, 2, 2))
    transition[0, :, 1] = transition[1, :, 1] = 1.0
    cmdp = Cmdp(
        transition,
        reward=np.zeros((2, 2)),
        cost=np.array([[0.9, 0.9], [0.0, 0.0]]),
        start=np.array([1.0, 0.0]),
        discount=0.9,
        limit=1.0,
    )
    return Case(
        cmdp,
        policy=np.array([[1.0, 0.0], [0.0, 1.0]]),
        behaviour=np.array([[0.5, 0.5], [0.98, 0.02]]),
        nu=np.array([[0.0, 0.0], [0.0, 1.0]]),
    )


def unequal_ratios() -> Case:
    """One epsilon for all pairs asks too much: 2 epsilon max (l - Qc) = 0.32, and 0.08 is enough.

    pi plays action 0, which is free. Action 1 has ratio pi_beta / nu = 0.16 and lacks 0.1; action 2 has ratio 0.04 and
    lacks 1.
    """
    return Case(
        one_state(reward=[0.0] * 3, cost=[0.0, 0.9, 0.0], limit=1.0),
        policy=np.array([[1.0, 0.0, 0.0]]),
        behaviour=np.array([[0.9, 0.08, 0.02]]),
        nu=np.array([[0.0, 0.5, 0.5]]),
    )


def average_hides_a_pair() -> Case:
    """Equation (5) stops alpha when nu's average Qc reaches l_c = 1.5 l, with the less rare of two actions at 0.6 l.

    pi plays action 0; nu is even over actions 1 and 2, logged with shares 0.01 and 0.04: ratios 50 and 12.5, so
    Qc-hat is 2.4 l and 0.6 l.
    """
    return Case(
        one_state(reward=[0.0] * 3, cost=[0.0] * 3, limit=1.0),
        policy=np.array([[1.0, 0.0, 0.0]]),
        behaviour=np.array([[0.95, 0.01, 0.04]]),
        nu=np.array([[0.0, 0.5, 0.5]]),
    )


def negative_rewards() -> Cmdp:
    """One choice, then the end: waiting (0) earns -1 and is free, jumping (1) earns -5 and costs 10.

    The limit is 1. The unsafe jump counts as 0 in Equation (4), more than the -1 of waiting.
    """
    transition = np.zeros((2, 2, 2))
    transition[:, :, 1] = 1.0
    return Cmdp(
        transition,
        reward=np.array([[-1.0, -5.0], [0.0, 0.0]]),
        cost=np.array([[0.0, 10.0], [0.0, 0.0]]),
        start=np.array([1.0, 0.0]),
        discount=0.9,
        limit=1.0,
    )


def cost_exactly_at_limit() -> Cmdp:
    """One action whose Qc is l itself: 1 / (1 - 0.5) = 2. The indicator's limit depends on where Qc started."""
    return one_state(reward=[1.0], cost=[1.0], limit=2.0, discount=0.5)


def no_safe_action() -> Cmdp:
    """Every action costs 1 for ever, 10 in all, against a limit of 2."""
    return one_state(reward=[1.0, 0.5], cost=[1.0, 1.0], limit=2.0)


def greedy_cycle() -> Cmdp:
    """Safe once, unsafe for ever: from a policy that never pays, paying 1 once stays below the limit of 2.

    So improvement turns to the costly action, whose cost for ever is 10; then nothing is safe, it turns back, and so
    on. The best policy pays one time in five.
    """
    return one_state(reward=[1.0, 0.1], cost=[1.0, 0.0], limit=2.0)


def rare_but_good() -> tuple[Cmdp, Table]:
    """A rare action (share 0.02) that is safe and earns more. Pushed only while pi plays it, it comes back for ever."""
    return one_state(reward=[0.5, 1.0], cost=[0.0, 0.0], limit=1.0), np.array([[0.98, 0.02]])


@dataclass(frozen=True, eq=False)
class Theorem2Case:
    """The arguments of `theorems.theorem2`."""

    cmdp: Cmdp
    behaviour: Table
    states: Table
    policy: Table
    q_reward: Table
    safe: Mask
    best: Table


def first_step_uncounted() -> Theorem2Case:
    """Both errors of Theorem 2 are 0, and so is the sketch's, yet V* - V-hat = 0.495.

    One decision, then the end: (r 0.01, c 0) or (r 1, c 2), with a limit of 1. The optimum tosses a coin and earns
    0.505 at cost 1; CPQ plays the safe action and earns 0.01. T^pi looks at pi only after the first step, so Q* = T^pi Q*.
    """
    transition = np.zeros((2, 2, 2))
    transition[:, :, 1] = 1.0
    reward, cost = np.array([[0.01, 1.0], [0.0, 0.0]]), np.array([[0.0, 2.0], [0.0, 0.0]])
    cmdp = Cmdp(transition, reward, cost, np.array([1.0, 0.0]), discount=0.9, limit=1.0)
    return Theorem2Case(
        cmdp,
        behaviour=np.full((2, 2), 0.5),
        states=np.array([1.0, 0.0]),
        policy=np.array([[1.0, 0.0], [1.0, 0.0]]),
        q_reward=reward,
        safe=np.array([[True, False], [True, True]]),
        best=np.array([[0.5, 0.5], [1.0, 0.0]]),
    )


def rare_action_uncounted(share: float = 1e-4) -> Theorem2Case:
    """The density ratio is pi / pi_beta <= 1 / epsilon, but the printed constant has epsilon where 1 / epsilon belongs.

    One state, pi = pi* plays an action that the log holds with a small share; Qr-hat is 1 too high there. The error's
    norm in the log is sqrt(share), so the printed bound vanishes with the share while the gap stays at 1.
    """
    cmdp = one_state(reward=[0.0, 1.0], cost=[0.0, 0.0], limit=1.0, discount=0.5)
    policy = np.array([[0.0, 1.0]])
    exact = np.array([[1.0, 2.0]])
    return Theorem2Case(
        cmdp,
        behaviour=np.array([[1 - share, share]]),
        states=np.ones(1),
        policy=policy,
        q_reward=exact + np.array([[0.5, 1.0]]),
        safe=np.ones((1, 2), bool),
        best=policy,
    )
