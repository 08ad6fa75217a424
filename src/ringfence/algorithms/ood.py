"""Which actions are out of the log's distribution.

A detector gives each pair (s, a) a score that is high where the log has little like it. Pairs whose score reaches
the threshold d are out of distribution. To add a detector, write a class like `LatentKL` with `create`, `loss` (how it
learns from the log) and `score`, and put it into `DETECTORS`.
"""

from collections.abc import Sequence
from typing import Protocol, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ringfence.networks import CVAE, HALF_LOG_TWO_PI


class Detector(Protocol):
    """What CPQ asks of a detector. It is a pytree; the threshold is part of it."""

    threshold: Float[Array, ""]

    def loss(
        self, observations: Float[Array, "batch obs"], actions: Float[Array, "batch act"], key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """What stage one minimises on the log."""

    def score(
        self, observations: Float[Array, "batch obs"], actions: Float[Array, "*n batch act"]
    ) -> Float[Array, "*n batch"]:
        """High where the log has little like (s, a). Takes one action of each state, or n."""


def cvae_loss(
    cvae: CVAE,
    observations: Float[Array, "batch obs"],
    actions: Float[Array, "batch act"],
    key: PRNGKeyArray,
    *,
    beta: float,
    decoder_std: float,
) -> Float[Array, ""]:
    """The negative of the paper's evidence lower bound (Section 4, Step 1), averaged over the batch:

        - E_{z ~ q(z|s,a)} log p(a | s, z) + beta KL(q(z|s,a) || N(0, 1)),   p(a | s, z) = N(decode(s, z), std^2)

    Both terms are sums over dimensions. The paper leaves the decoder's std open; it sets the scale on which beta
    means anything: with 1 (a plain squared error) the posterior collapses onto the prior."""
    posterior = cvae.encode(observations, actions)
    latents = posterior.mean + posterior.std * jax.random.normal(key, posterior.mean.shape)
    errors = (actions - cvae.decode(observations, latents)) / decoder_std
    log_likelihood = jnp.sum(-0.5 * errors**2 - jnp.log(decoder_std) - HALF_LOG_TWO_PI, -1)
    return jnp.mean(-log_likelihood + beta * posterior.kl_to_standard())


class LatentKL(eqx.Module):
    """The paper's detector: KL(q(z | s, a) || N(0, 1)) of a conditional beta-VAE of the logged actions."""

    cvae: CVAE
    threshold: Float[Array, ""]
    beta: float = eqx.field(static=True)
    decoder_std: float = eqx.field(static=True)

    @classmethod
    def create(
        cls,
        observation_dim: int,
        action_dim: int,
        hidden: Sequence[int],
        *,
        threshold: float,
        beta: float,
        decoder_std: float,
        key: PRNGKeyArray,
    ) -> Self:
        cvae = CVAE(observation_dim, action_dim, 2 * action_dim, hidden, key=key)
        return cls(cvae, jnp.asarray(threshold), beta, decoder_std)

    def loss(
        self, observations: Float[Array, "batch obs"], actions: Float[Array, "batch act"], key: PRNGKeyArray
    ) -> Float[Array, ""]:
        return cvae_loss(self.cvae, observations, actions, key, beta=self.beta, decoder_std=self.decoder_std)

    def score(
        self, observations: Float[Array, "batch obs"], actions: Float[Array, "*n batch act"]
    ) -> Float[Array, "*n batch"]:
        return self.cvae.encode(observations, actions).kl_to_standard()


DETECTORS = {"latent-kl": LatentKL}


def is_ood(detector: Detector, scores: Float[Array, "*batch"]) -> Bool[Array, "*batch"]:
    """score >= d (Algorithm 1, line 10)."""
    return scores >= detector.threshold


def auroc(inside: Float[Array, " n"], outside: Float[Array, " m"]) -> Float[Array, ""]:
    """The chance that a random outside score exceeds a random inside one: 1 is perfect, 1/2 is blind."""
    ranked = jnp.sort(inside)
    below = jnp.searchsorted(ranked, outside, side="left")
    not_above = jnp.searchsorted(ranked, outside, side="right")
    return jnp.mean(0.5 * (below + not_above)) / inside.shape[0]
