"""Which actions are out of the log's distribution: the paper's detector.

It gives each pair (s, a) a score that is high where the log has little like it. Pairs whose score reaches the threshold d
are out of distribution.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ringfence.algorithms.interface import Batch, Metrics
from ringfence.networks import CVAE, HALF_LOG_TWO_PI


def cvae_loss(
    cvae: CVAE,
    observations: Float[Array, "batch obs"],
    actions: Float[Array, "batch act"],
    key: PRNGKeyArray,
    *,
    beta: float,
    decoder_std: float,
) -> Float[Array, ""]:
    """The negative of the paper's evidence lower bound (Eq. 2), averaged over the batch:

        - E_{z ~ q(z|s,a)} log p(a | s, z) + beta KL(q(z|s,a) || N(0, 1)),   p(a | s, z) = N(decode(s, z), std^2)

    Both terms are sums over dimensions. The paper leaves the decoder's std open; it sets the scale on which beta
    means anything: with 1 (a plain squared error) the posterior collapses onto the prior."""
    posterior = cvae.encode(observations, actions)
    latents = posterior.mean + posterior.std * jax.random.normal(key, posterior.mean.shape)
    errors = (actions - cvae.decode(observations, latents)) / decoder_std
    log_likelihood = jnp.sum(-0.5 * errors**2 - jnp.log(decoder_std) - HALF_LOG_TWO_PI, -1)
    return jnp.mean(-log_likelihood + beta * posterior.kl_to_standard())


class LatentKL(eqx.Module):
    """KL(q(z | s, a) || N(0, 1)) of a conditional beta-VAE of the logged actions, and the threshold d."""

    cvae: CVAE
    threshold: Float[Array, ""]

    @classmethod
    def create(
        cls, observation_dim: int, action_dim: int, hidden: Sequence[int], *, threshold: float, key: PRNGKeyArray
    ) -> Self:
        cvae = CVAE(observation_dim, action_dim, 2 * action_dim, hidden, key=key)
        return cls(cvae, jnp.asarray(threshold))

    def score(
        self, observations: Float[Array, "batch obs"], actions: Float[Array, "*n batch act"]
    ) -> Float[Array, "*n batch"]:
        """For one action of each state, or for n."""
        return self.cvae.encode(observations, actions).kl_to_standard()


def is_ood(detector: LatentKL, scores: Float[Array, "*batch"]) -> Bool[Array, "*batch"]:
    """KL >= d (Algorithm 1, line 11)."""
    return scores >= detector.threshold


def calibrated(
    detector: LatentKL, batch: Batch, key: PRNGKeyArray, threshold: float | None, quantile: float
) -> tuple[LatentKL, Metrics]:
    """The detector with d set, to a number or to a quantile of the log's own scores, and how well it tells the log's
    actions from random ones."""
    logged = detector.score(batch.observations, batch.actions)
    uniform = jax.random.uniform(key, batch.actions.shape, minval=-1.0, maxval=1.0)
    random = detector.score(batch.observations, uniform)
    edge = jnp.quantile(logged, quantile) if threshold is None else threshold
    detector = replace(detector, threshold=jnp.asarray(edge, jnp.float32))
    return detector, {
        "threshold": detector.threshold,
        "kl_data": logged.mean(),
        "kl_random": random.mean(),
        "ood_share_data": is_ood(detector, logged).mean(),
        "ood_share_random": is_ood(detector, random).mean(),
        "auroc_random": auroc(logged, random),
    }


def auroc(inside: Float[Array, " n"], outside: Float[Array, " m"]) -> Float[Array, ""]:
    """The chance that a random outside score exceeds a random inside one: 1 is perfect, 1/2 is blind."""
    ranked = jnp.sort(inside)
    below = jnp.searchsorted(ranked, outside, side="left")
    not_above = jnp.searchsorted(ranked, outside, side="right")
    return jnp.mean(0.5 * (below + not_above)) / inside.shape[0]
