"""CBPL's best response to a multiplier: a policy by fitted Q iteration (FQI), then its return and its cost by fitted Q
evaluation (FQE).

FQI for continuous actions replaces the greatest value over actions by a search for the policy with the greatest
average value (Antos, Munos and Szepesvari, NIPS 2007), as the CPQ paper says it did (Section 6). Nothing keeps that
policy near the log, which is why the CPQ paper finds that CBPL diverges.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.interface import Batch, Spec
from ringfence.networks import MLP, Critic, polyak
from ringfence.optimise import Adam

Scalar = Float[Array, ""]
PerState = Float[Array, " batch"]


class Evaluation(NamedTuple):
    """FQE's critics of a policy."""

    reward: Critic
    cost: Critic


class Response(eqx.Module):
    """A best response to a multiplier: FQI's Q and policy, and FQE's critics of that policy."""

    value: Critic
    target_value: Critic
    actor: MLP  # pi(s) = tanh(actor(s))
    evaluation: Evaluation
    target_evaluation: Evaluation
    value_optimiser: optax.OptState
    actor_optimiser: optax.OptState
    evaluation_optimiser: optax.OptState


def act(actor: MLP, observations: Float[Array, "*batch obs"]) -> Float[Array, "*batch act"]:
    return jnp.tanh(actor(observations))


def fqi_target(target_value: Critic, actor: MLP, batch: Batch, price: Scalar, discount: float) -> PerState:
    """r - lambda c + discount Q(s', pi(s')), where pi has the greatest average Q. lambda l is no part of the reward: it
    is paid once, not in every step, and would make long episodes look better or worse than they are."""
    following = target_value(batch.next_observations, act(actor, batch.next_observations))
    return batch.rewards - price * batch.costs + discount * batch.continues * following


def policy_search_loss(actor: MLP, value: Critic, observations: Float[Array, "batch obs"]) -> Scalar:
    """- E Q(s, pi(s)) over the log's states (Antos et al., Section 3). No gradient reaches Q."""
    return -jnp.mean(value(observations, act(actor, observations)))


def fqe_targets(targets: Evaluation, actor: MLP, batch: Batch, discount: float) -> tuple[PerState, PerState]:
    """r + discount Qr(s', pi(s')) and c + discount Qc(s', pi(s')) of a fixed policy (Le et al., Algorithm 3)."""
    actions = act(actor, batch.next_observations)
    reward, cost = (critic(batch.next_observations, actions) for critic in targets)
    return batch.rewards + discount * batch.continues * reward, batch.costs + discount * batch.continues * cost


def estimate(response: Response, observations: Float[Array, "batch obs"]) -> Float[Array, "2"]:
    """FQE's R(pi) and C(pi), from these states."""
    actions = act(response.actor, observations)
    return jnp.stack([critic(observations, actions).mean() for critic in response.evaluation])


class Fitting(NamedTuple):
    """The steps of FQI and of FQE. Instead of one regression after another the targets follow their networks at the rate
    tau: fitted iterations without a pause, some 1/tau steps each."""

    discount: float
    tau: float
    adam: Adam

    def fresh(self, key: PRNGKeyArray, spec: Spec, hidden: Sequence[int]) -> Response:
        """A response before training."""
        keys = jax.random.split(key, 4)
        sizes = (spec.observation_dim, spec.action_dim, hidden)
        value, reward, cost = (Critic(*sizes, key=k) for k in keys[:3])
        evaluation = Evaluation(reward, cost)
        actor = MLP(*sizes, key=keys[3])
        optimisers = (self.adam.init(value), self.adam.init(actor), self.adam.init(evaluation))
        return Response(value, value, actor, evaluation, evaluation, *optimisers)

    def improve(self, response: Response, price: Scalar, batch: Batch) -> tuple[Response, Scalar]:
        """A step of continuous FQI: Q towards its target, the policy up Q."""
        target = fqi_target(response.target_value, response.actor, batch, price, self.discount)

        def loss(value: Critic) -> Scalar:
            return jnp.mean((value(batch.observations, batch.actions) - target) ** 2)

        error, gradient = jax.value_and_grad(loss)(response.value)
        value, value_optimiser = self.adam.step(gradient, response.value_optimiser, response.value)
        gradient = jax.grad(policy_search_loss)(response.actor, value, batch.observations)
        actor, actor_optimiser = self.adam.step(gradient, response.actor_optimiser, response.actor)
        response = replace(
            response,
            value=value,
            target_value=polyak(response.target_value, value, self.tau),
            actor=actor,
            value_optimiser=value_optimiser,
            actor_optimiser=actor_optimiser,
        )
        return response, error

    def evaluate(self, response: Response, batch: Batch) -> tuple[Response, Scalar]:
        """A step of FQE for reward and cost; the policy stays as it is."""
        reward_target, cost_target = fqe_targets(response.target_evaluation, response.actor, batch, self.discount)

        def loss(evaluation: Evaluation) -> Scalar:
            reward, cost = (critic(batch.observations, batch.actions) for critic in evaluation)
            return jnp.mean((reward - reward_target) ** 2) + jnp.mean((cost - cost_target) ** 2)

        error, gradient = jax.value_and_grad(loss)(response.evaluation)
        evaluation, optimiser = self.adam.step(gradient, response.evaluation_optimiser, response.evaluation)
        response = replace(
            response,
            evaluation=evaluation,
            target_evaluation=polyak(response.target_evaluation, evaluation, self.tau),
            evaluation_optimiser=optimiser,
        )
        return response, error
