"""Every method on the hand-made examples, exact and from sampled logs, and the sweep over alpha that is drawn."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ringfence.tabular.cmdp import Cmdp, Table, even_mixture, expected_cost, expected_return, log_states, stirred
from ringfence.tabular.cpq import Outcome, Settings, out_of_distribution, run_cpq, uniform_over
from ringfence.tabular.default import run_default
from ringfence.tabular.examples import Example
from ringfence.tabular.logs import cloned_policy, counted_model, sample_log
from ringfence.tabular.lp import best_deterministic, optimal_policy
from ringfence.tabular.naive import naive_lagrangian
from ringfence.tabular.theorems import Case, printed_alpha, smallest_alpha, sufficient_alpha

OOD_THRESHOLD = 0.05  # pairs of which the log holds a smaller share of their state are out of distribution
NOISE = 0.02  # share of random actions in each behaviour: what puts rare actions into the log
SLOW = 0.05  # step of the slow policy


def always_enough_alpha(cmdp: Cmdp, behaviour: Table, threshold: float = OOD_THRESHOLD) -> float:
    """A little more than 2 epsilon l, epsilon the largest pi_beta / nu over the pushed pairs: enough for any policy."""
    pushed = out_of_distribution(behaviour, threshold) & (behaviour > 0)
    epsilon = (behaviour * pushed.sum(1, keepdims=True))[pushed].max(initial=0.0)
    return float(2 * epsilon * cmdp.limit * 1.01)


Ties = Literal["least cost", "stay"]
TIES: tuple[Ties, ...] = get_args(Ties)
# What each tie rule is called in tables and pictures.
TIE_NAMES: dict[Ties, str] = {"least cost": "recovery", "stay": "stays put"}


def cpq(cmdp: Cmdp, behaviour: Table, step: float, ties: Ties = "least cost", iterations: int = 200) -> Outcome:
    alpha = always_enough_alpha(cmdp, behaviour)
    return run_cpq(cmdp, behaviour, Settings(alpha, OOD_THRESHOLD, ties=ties, step=step, iterations=iterations))


@dataclass(frozen=True)
class Point:
    """One policy of one method: what it truly earns and pays from the start distribution."""

    method: str
    expected_return: float
    expected_cost: float


def behaviour_parts(example: Example) -> dict[str, Table]:
    return {"safe": stirred(example.safe, NOISE), "unsafe": stirred(example.unsafe, NOISE)}


def mixed_behaviour(example: Example) -> Table:
    """pi_beta of the example's logs: half of the transitions from each behaviour, as in the paper's experiments."""
    return even_mixture(example.cmdp, list(behaviour_parts(example).values()))


def exact_methods(example: Example) -> list[Point]:
    """Every method with exact expectations. A cycle of CPQ gives one point for each of its policies."""
    cmdp, parts = example.cmdp, behaviour_parts(example)
    behaviour = mixed_behaviour(example)
    states = log_states(cmdp, behaviour)
    allowed = ~out_of_distribution(behaviour, OOD_THRESHOLD) | cmdp.terminal[:, None]
    optimum = optimal_policy(cmdp, allowed)
    greedy, slow = [], []
    for ties, name in TIE_NAMES.items():
        outcome = cpq(cmdp, behaviour, 1.0, ties)
        greedy += [(f"CPQ, {name}", policy) for policy in outcome.cycle or [outcome.policy]]
        slow.append((f"CPQ slow, {name}", cpq(cmdp, behaviour, SLOW, ties, iterations=1000).policy))
    policies: list[tuple[str, Table | None]] = [
        ("linear program", optimum.policy if optimum else None),
        ("best deterministic", best_deterministic(cmdp, allowed, from_each_state=False)),
        ("best deterministic, limit from each state", best_deterministic(cmdp, allowed, from_each_state=True)),
        *greedy,
        *slow,
        ("default's hinge", run_default(cmdp, behaviour, allowed).policy),
        ("naive, KL ≤ 0.1", naive_lagrangian(cmdp, behaviour, states, xi=0.1).policy),
        ("naive, KL ≤ 1", naive_lagrangian(cmdp, behaviour, states, xi=1.0).policy),
        ("cloning", behaviour),
        ("cloning, safe rows", parts["safe"]),
    ]
    return [_point(cmdp, method, policy) for method, policy in policies if policy is not None]


def sampled_methods(example: Example, rng: np.random.Generator, logs: int, transitions: int = 1000) -> list[Point]:
    """The same methods learning from logs, each policy judged in the true CMDP; one point per log and method."""
    cmdp, parts = example.cmdp, behaviour_parts(example)
    points = []
    for _ in range(logs):
        log = sample_log(cmdp, parts, transitions, rng)
        model = counted_model(log, cmdp.n_actions, cmdp.discount, cmdp.limit)
        no_push = Settings(alpha=0.0, ood_threshold=0.0, step=SLOW)
        # Arriving where the log knows no action is allowed: the counted model makes it as bad as can be.
        unlogged = (model.states == 0)[:, None]
        trusting = optimal_policy(model.cmdp, (model.behaviour > 0) | unlogged)
        support = ~out_of_distribution(model.behaviour, OOD_THRESHOLD) | unlogged
        policies: list[tuple[str, Table | None]] = [
            *(
                (f"CPQ slow, {name}", cpq(model.cmdp, model.behaviour, SLOW, ties).policy)
                for ties, name in TIE_NAMES.items()
            ),
            ("default's hinge", run_default(model.cmdp, cloned_policy(model), support).policy),
            ("CPQ without the push", run_cpq(model.cmdp, model.behaviour, no_push).policy),
            ("linear program on counts", trusting.policy if trusting else None),
            ("naive, KL ≤ 0.1", naive_lagrangian(model.cmdp, cloned_policy(model), model.states, xi=0.1).policy),
            ("naive, KL ≤ 1", naive_lagrangian(model.cmdp, cloned_policy(model), model.states, xi=1.0).policy),
            ("cloning", cloned_policy(model)),
        ]
        points += [_point(cmdp, method, _everywhere(policy)) for method, policy in policies if policy is not None]
    return points


@dataclass(frozen=True, eq=False)
class AlphaSweep:
    """Qc-hat of every pair of the corridor as alpha grows, for one policy, and the alphas the bounds name."""

    title: str
    limit: float
    alphas: Table
    rare: Table  # (alphas, pairs): out of distribution
    logged: Table  # (alphas, pairs): in distribution
    bounds: dict[str, float]


def alpha_sweeps(example: Example) -> list[AlphaSweep]:
    """Theorem 1 seen: CPQ's own policy, and the same policy playing a rare action one time in ten."""
    cmdp, behaviour = example.cmdp, mixed_behaviour(example)
    rare = out_of_distribution(behaviour, OOD_THRESHOLD) & ~cmdp.terminal[:, None]
    logged = ~rare & ~cmdp.terminal[:, None]
    nu = uniform_over(rare)
    settled = cpq(cmdp, behaviour, 1.0).policy
    straying = np.where(rare.any(1, keepdims=True), 0.9 * settled + 0.1 * nu, settled)
    alphas = np.linspace(0, 1.25 * always_enough_alpha(cmdp, behaviour), 101)
    sweeps = []
    for title, policy in (
        ("the policy plays a rare action one time in ten", straying),
        ("the policy plays no rare action", settled),
    ):
        case = Case(cmdp, policy, behaviour, nu)
        values = case.true_cost + alphas[:, None, None] * case.push_per_alpha
        epsilon = float((behaviour[rare] / nu[rare]).max())
        bounds = {
            "smallest": smallest_alpha(case, rare),
            "ours": sufficient_alpha(case, rare),
            "printed, as an operator": printed_alpha(case, epsilon, "operator"),
        }
        sweeps.append(AlphaSweep(title, cmdp.limit, alphas, values[:, rare], values[:, logged], bounds))
    return sweeps


def _everywhere(policy: Table) -> Table:
    """Uniform in states where the learner has no policy because the log never visits them."""
    known = policy.sum(1, keepdims=True) > 0
    return np.where(known, policy, 1.0 / policy.shape[1])


def _point(cmdp: Cmdp, method: str, policy: Table) -> Point:
    return Point(method, expected_return(cmdp, policy), expected_cost(cmdp, policy))
