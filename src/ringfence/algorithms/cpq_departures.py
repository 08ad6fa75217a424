"""The departures from the paper that make CPQ learn: one function for each, with its reason.

As printed CPQ stalls (docs/cpq.md has the evidence). The default, `CPQ` (`cpq_default.py`), is Algorithm 1 (`cpq.py`) with
some of its lines replaced by these functions, and by those of `cpq_imagined.py`, `cpq_handout.py` and `cpq_limits.py`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ringfence.algorithms.cpq import Actions, OODActions, PerState, Scalar, Values, cost_bellman_target
from ringfence.algorithms.cpq_limits import in_bands
from ringfence.algorithms.critics import Critics, smaller_value
from ringfence.algorithms.interface import Batch
from ringfence.networks import Critic


def one_ood_action(actions: Float[Array, "n batch act"], kept: Bool[Array, "n batch"], key: PRNGKeyArray) -> OODActions:
    """One of the m kept actions of each state, drawn uniformly, in place of the mean over them: the same gradient in
    expectation, and the cost critic sees one action of each state instead of n."""
    has_ood = (kept.sum(0) > 0).astype(actions.dtype)
    scores = jnp.where(kept, jax.random.uniform(key, kept.shape), -1.0)
    chosen = jnp.argmax(scores, 0)
    picked = jnp.take_along_axis(actions, chosen[None, :, None], 0)
    return OODActions(picked, has_ood[None])


def alpha_step_where_ood(
    alpha: Scalar, ood_values: PerState, has_ood: PerState, ood_limit: Scalar, rate: float
) -> Scalar:
    """Automatic alpha without the states that have no OOD action: as printed they count as Qc = 0 and
    raise alpha, although they have no action to push up."""
    return jnp.maximum(alpha + rate * jnp.mean(has_ood * (ood_limit - ood_values)), 0.0)


def smoothed_actions(actions: Actions, std: float, key: PRNGKeyArray) -> Actions:
    """The policy's most likely next actions with noise, as in TD3 (Fujimoto, van Hoof and Meger, 2018). Logged actions
    are their controllers' means plus noise, and in several dimensions hardly any of them is near the mean. The most likely
    action is there, where critics have no data, and their errors are backed up over the whole horizon."""
    return jnp.clip(actions + std * jax.random.normal(key, actions.shape), -1.0, 1.0)


def cost_target_beyond_the_end(
    target_cost_critic: Critic, batch: Batch, next_actions: Actions, discount: float, cost_of_end: Scalar
) -> PerState:
    """T^pi Qc(s, a) where the episode goes on, c + discount cost_of_end where it terminated. As printed the cost of an
    episode stops with it, so that a robot lowers its cost by falling."""
    while_running = cost_bellman_target(target_cost_critic, batch, next_actions, discount)
    return while_running + discount * (1.0 - batch.continues) * cost_of_end


def reward_bellman_target(targets: Critics, batch: Batch, next_actions: Actions, discount: float) -> PerState:
    """T^pi Qr(s, a) = r + discount Qr(s', a'), the plain Bellman operator, with the smaller of the two target critics.
    Backing up 0 for unsafe a' makes Qr short-sighted while the policy is at its limit, and rewards unsafe actions where
    Qr < 0."""
    following = smaller_value(targets.reward, batch.next_observations, next_actions)
    return batch.rewards + discount * batch.continues * following


@in_bands
def penalised_value(qr: Values, qc: Values, limit: Scalar, weight: float) -> Values:
    """Qr / mean |Qr| - weight max(Qc - l, 0) / l. The printed objective has the gradient 0 wherever the indicator is 0, so
    a policy that is unsafe everywhere cannot come back; this one lowers the excess of Qc and keeps Qr in unsafe states."""
    scale = jax.lax.stop_gradient(jnp.mean(jnp.abs(qr))) + 1e-6
    return qr / scale - weight * jnp.maximum(qc - limit, 0.0) / jnp.maximum(limit, 1e-3)


LEAST_SAFE = 0.3  # of a batch


@in_bands
def safe_weights(logged_cost: PerState, limit: Scalar, unsafe: float) -> PerState:
    """1 for the logged actions with Qc(s, a) <= l and `unsafe` for others, scaled to a mean of 1: the paper's indicator
    on the anchor. Not 0: in states where no logged action is safe the policy would be free, and critics would back up
    actions that nobody ever took. Where less than `LEAST_SAFE` of the batch is safe, its part with the least Qc / l is."""
    relative = jnp.maximum(limit, 1e-3) / jnp.maximum(jnp.mean(limit), 1e-3)  # 1 unless each row has a limit of its own
    edge = jnp.maximum(limit, relative * jnp.quantile(logged_cost / relative, LEAST_SAFE))
    weights = jnp.where(logged_cost <= edge, 1.0, unsafe)
    return weights / jnp.mean(weights)


def anchor_loss(actions: Actions, logged: Actions, weights: PerState) -> Scalar:
    """E weight(s, logged a) (a - logged a)^2, a ~ pi: Qr alone draws the policy away from the log, where nothing corrects
    its errors. The loss is against Qr over its mean size, as in TD3+BC (Fujimoto and Gu, 2021)."""
    return jnp.mean(weights[:, None] * (actions - logged) ** 2)


def anchor_growth(terminated: float, growth: float) -> float:
    """What the anchor's weight is multiplied by on a log of which the share `terminated` of the episodes terminated. Those
    episodes show that the log's own noise was enough to fail. A displacement of the same size that does not change sign
    from step to step leaves the states of the log sooner than noise does, and no critic of single actions sees that."""
    return 1.0 + growth * terminated


def averaging_rate(step: Int[Array, ""]) -> Scalar:
    """The share of the newest actor in the average of actors. The weight of an actor in it grows linearly with its step: the
    random start is forgotten, and three quarters of the average are the last half of the steps so far."""
    return 2.0 / (2.0 + step)
