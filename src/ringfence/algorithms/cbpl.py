"""CBPL, Constrained Batch Policy Learning (Le, Voloshin and Yue, ICML 2019), with continuous actions.

    max over policies, min over 0 <= lambda <= B:   L(pi, lambda) = R(pi) - lambda (C(pi) - l)

is played as a game in rounds (their Algorithm 2). In round t the learner answers lambda_t with a policy pi_t that is
best for the reward r - lambda_t c, found by fitted Q iteration (FQI). Fitted Q evaluation (FQE) estimates R(pi_t) and
C(pi_t). The multiplier answers by exponentiated gradient. The result is the mixture of pi_1 ... pi_T, one of them drawn
for each episode. The primal-dual gap says how far the mixture is from solving the game, if the estimates are right. This
file has the game; FQI and FQE are in `cbpl_response.py`.

R(pi) and C(pi) are FQE's values at the states that the log's episodes start in: Le et al. define both as expectations
over the initial distribution (Section 2). The other methods average over all logged states.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ringfence.algorithms.cbpl_response import Fitting, Response, Scalar, act, estimate
from ringfence.algorithms.checks import at_most_one, check_settings, positive
from ringfence.algorithms.interface import Batch, Export, Metrics, Sample, Spec, Stage
from ringfence.errors import InvalidSetting
from ringfence.limits import DISCOUNT
from ringfence.networks import MLP, Described
from ringfence.optimise import Adam
from ringfence.steps import STEPS

DIVERGED = 1.25  # times the return of the best logged row: where FQE estimates more, a warning is given


class State(eqx.Module):
    step: Int[Array, ""]
    limit: Scalar  # l
    responses: Response  # two, stacked: to lambda_t, and to the average multiplier (only for the gap)
    fresh: Response  # what `restart` goes back to
    components: MLP  # the policies pi_1 ... pi_T, stacked, with room for `rounds`
    log_odds: Float[Array, " rounds"]  # log(lambda_t / (B - lambda_t))
    returns: Float[Array, " rounds"]  # R(pi_t) and C(pi_t) by FQE
    costs: Float[Array, " rounds"]
    sums: Float[Array, "response=2 value=2"]  # of FQE's estimates at the end of the round
    gap: Scalar


def exponentiated_gradient(log_odds: Scalar, violation: Scalar, rate: float) -> Scalar:
    """lambda <- B lambda e^(rate z) / (lambda e^(rate z) + B - lambda), z = C(pi_t) - l (Le et al., Algorithm 2): the
    weights of the constraint and of a slack, which add up to B. In log-odds it is a sum, which cannot overflow."""
    return log_odds + rate * violation


def primal_dual_gap(
    mixture: tuple[Scalar, Scalar], response: tuple[Scalar, Scalar], average_price: Scalar, bound: float, limit: Scalar
) -> Scalar:
    """max_pi L(pi, average lambda) - min_lambda L(mixture, lambda), from (R, C) of the mixture and of the best response
    to the average multiplier (Le et al., Algorithm 2). It is at least 0 if FQI and FQE are exact."""
    (mixture_return, mixture_cost), (best_return, best_cost) = mixture, response
    upper = best_return - average_price * (best_cost - limit)
    lower = mixture_return - bound * jnp.maximum(mixture_cost - limit, 0.0)
    return upper - lower


@dataclass(frozen=True)
class CBPL:
    """CBPL's hyper-parameters. A round takes `fqi_steps + fqe_steps` updates; a run has as many whole rounds as its
    steps allow, at most `rounds`."""

    name: ClassVar[str] = "cbpl"
    shown: ClassVar[tuple[str, ...]] = ("lambda_cost", "gap", "qr_policy", "qc_policy")
    small: ClassVar[Mapping[str, Any]] = {
        "fqi_steps": 100,
        "fqe_steps": 50,
        "tau": 0.05,
        "price_rate": 1.0,
        "price_bound": 3.0,
    }

    limit: float | None = None  # l: bound on the expected discounted cost
    discount: float = DISCOUNT
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4  # of all networks (Adam)
    tau: float = 0.02  # of the targets, see `Fitting`

    fqi_steps: int = 5_000
    fqe_steps: int = 5_000
    rounds: int = 50  # room for so many policies
    restart: bool = False  # each round from fresh networks, as in Le et al.; otherwise from those of the round before
    price_bound: float = 10.0  # B, in reward per cost
    price_rate: float = 0.05  # of the exponentiated gradient, per unit of discounted cost

    def __post_init__(self) -> None:
        check_settings(self)
        positive(self, "fqi_steps", "fqe_steps", "rounds", "price_bound")
        at_most_one(self, "tau")
        positive(self, "price_rate", zero=True)

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Every round from fresh networks, as printed, which needs longer rounds."""
        return cls(**{"restart": True, "fqi_steps": 20_000, "fqe_steps": 20_000, **changes})

    @property
    def round_steps(self) -> int:
        return self.fqi_steps + self.fqe_steps

    @property
    def default_steps(self) -> int:
        """As many as the rounds have room for, at most STEPS."""
        return min(STEPS, self.rounds * self.round_steps)

    @property
    def fitting(self) -> Fitting:
        return Fitting(self.discount, self.tau, Adam(self.learning_rate))

    def init(self, key: PRNGKeyArray, limit: Scalar, spec: Spec) -> State:
        responses = jax.vmap(lambda k: self.fitting.fresh(k, spec, self.hidden))(jax.random.split(key))
        components = jax.tree.map(lambda x: jnp.zeros((self.rounds, *x.shape[1:]), x.dtype), responses.actor)
        nothing = jnp.zeros(self.rounds)
        return State(
            step=jnp.asarray(0),
            limit=jnp.asarray(limit, jnp.float32),
            responses=responses,
            fresh=responses,
            components=components,
            log_odds=nothing,  # lambda_1 = B / 2
            returns=nothing,
            costs=nothing,
            sums=jnp.zeros((2, 2)),
            gap=jnp.asarray(0.0),
        )

    def stages(self, steps: int) -> tuple[Stage, ...]:
        if steps > self.rounds * self.round_steps:
            raise InvalidSetting(
                f"{steps} steps are more than {self.rounds} rounds of {self.round_steps}; "
                "raise rounds, fqi_steps or fqe_steps"
            )
        return (Stage("policy", steps, self.update),)

    def update(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """One step of FQI or of FQE, whichever the round has come to; at the round's end, the multiplier's move."""
        number, within = state.step // self.round_steps, state.step % self.round_steps
        played = jnp.arange(self.rounds) <= number
        prices = self.price_bound * jax.nn.sigmoid(state.log_odds)
        pair = jnp.stack([prices[number], jnp.mean(prices, where=played)])

        responses = state.responses
        if self.restart:
            responses = jax.tree.map(lambda new, old: jnp.where(within == 0, new, old), state.fresh, responses)
        fitting = within < self.fqi_steps
        responses, losses = jax.lax.cond(
            fitting,
            lambda r: jax.vmap(self.fitting.improve, in_axes=(0, 0, None))(r, pair, batch),
            lambda r: jax.vmap(self.fitting.evaluate, in_axes=(0, None))(r, batch),
            responses,
        )

        # FQE's estimates, averaged over the last tenth of the round: one batch alone is noisy
        averaged = max(self.fqe_steps // 10, 1)
        estimates = jax.vmap(estimate, in_axes=(0, None))(responses, batch.starts)
        late = within >= self.round_steps - averaged
        sums = jnp.where(within == 0, 0.0, state.sums) + jnp.where(late, estimates, 0.0)
        (round_return, round_cost), (best_return, best_cost) = sums / averaged

        ended = within == self.round_steps - 1
        returns = state.returns.at[number].set(jnp.where(ended, round_return, 0.0))
        costs = state.costs.at[number].set(jnp.where(ended, round_cost, 0.0))
        mixture = jnp.mean(returns, where=played), jnp.mean(costs, where=played)
        gap = primal_dual_gap(mixture, (best_return, best_cost), pair[1], self.price_bound, state.limit)
        answer = exponentiated_gradient(state.log_odds[number], round_cost - state.limit, self.price_rate)
        state = replace(
            state,
            step=state.step + 1,
            responses=responses,
            components=jax.tree.map(lambda all, now: all.at[number].set(now[0]), state.components, responses.actor),
            # What round t + 1 begins with; after the last there is no room, and none is needed
            log_odds=state.log_odds.at[number + 1].set(jnp.where(ended, answer, 0.0), mode="drop"),
            returns=returns,
            costs=costs,
            sums=sums,
            gap=jnp.where(ended, gap, state.gap),
        )
        return state, {
            "value_loss": losses[0],  # FQI's in the first part of a round, FQE's in the second
            "fitting": fitting.astype(jnp.float32),  # share of FQI steps in what is averaged here
            "round": number.astype(jnp.float32),
            "lambda_cost": pair[0],
            "qr_policy": estimates[0, 0],
            "qc_policy": estimates[0, 1],
            "gap": state.gap,  # of the last whole round; 0 before
        }

    def diagnose(self, state: State, sample: Sample, key: PRNGKeyArray) -> Metrics:
        """`qr_start` and `qc_start` are of the policy that is handed out: what FQE said of the chosen part when it was made.
        The rest is of the newest response; of the mixture, what FQE said of each part."""
        batch, response = sample.batch, jax.tree.map(lambda x: x[0], state.responses)
        finished = jnp.arange(self.rounds) < state.step // self.round_steps
        chosen = best_part(state.returns, state.costs, state.limit, finished)
        of_chosen = jnp.stack([state.returns[chosen], state.costs[chosen]])
        start_return, start_cost = jnp.where(finished.any(), of_chosen, estimate(response, sample.starts))
        actions = act(response.actor, batch.observations)
        count = jnp.maximum(finished.sum(), 1)
        return {
            "qc_start": start_cost,
            "qr_start": start_return,
            "mixture_return": jnp.sum(state.returns * finished) / count,
            "mixture_cost": jnp.sum(state.costs * finished) / count,
            "sample_cost_to_go": sample.cost_to_go.mean(),
            "sample_return_to_go": sample.return_to_go.mean(),
            "sample_qr_policy": response.evaluation.reward(batch.observations, actions).mean(),
            "greatest_return_to_go": sample.return_to_go.max(),
            "policy_distance": jnp.sqrt(jnp.mean((actions - batch.actions) ** 2)),
        }

    def export(self, state: State) -> Export:
        """The mixture of all whole rounds. Its `chosen` part is the one that FQE finds best, see `best_part`."""
        finished = int(state.step) // self.round_steps
        if finished == 0:  # stopped in the first round: the unfinished response is all there is
            parts = [jax.tree.map(lambda x: x[0], state.responses.actor)]
            chosen = 0
        else:
            parts = [jax.tree.map(lambda x, i=i: x[i], state.components) for i in range(finished)]
            chosen = int(best_part(state.returns[:finished], state.costs[:finished], state.limit))
        networks = {f"component.{i}": Described(part, ("observation",), "tanh") for i, part in enumerate(parts)}
        return Export("mixture", networks, {"chosen": np.asarray([chosen], np.float32)})

    def warnings(self, stage: str, history: list[Mapping[str, float]]) -> list[str]:
        if not history:
            return []
        last = history[-1]
        if abs(last["sample_qr_policy"]) > DIVERGED * max(abs(last["greatest_return_to_go"]), 1.0):
            return [
                f"FQE does not fit the log: it promises the newest response {last['sample_qr_policy']:.4g} where the "
                f"best logged row earned {last['greatest_return_to_go']:.4g} (discounted, over an infinite horizon). "
                f"Its policy is far from the log (root mean square distance {last['policy_distance']:.2g} of half the "
                "action range); neither its estimates nor the gap mean anything then."
            ]
        return []


def best_part(
    returns: Float[Array, " parts"],
    costs: Float[Array, " parts"],
    limit: Scalar,
    counted: Bool[Array, " parts"] | bool = True,
) -> Int[Array, ""]:
    """The index of the greatest return within the limit, or of the least cost if none is within, of those that count."""
    inside = counted & (costs <= limit)
    merit = jnp.where(inside.any(), jnp.where(inside, returns, -jnp.inf), jnp.where(counted, -costs, -jnp.inf))
    return jnp.argmax(merit)
