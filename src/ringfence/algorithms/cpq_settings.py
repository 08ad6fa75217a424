"""CPQ's hyper-parameters and its state, and what the training loop asks of CPQ that Algorithm 1 of the paper does not say:
the choice of d, diagnostics, warnings, what is exported."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ringfence.algorithms.checks import at_most_one, check_settings, fraction, positive
from ringfence.algorithms.cpq_watch import cpq_diagnostics, cpq_warnings
from ringfence.algorithms.critics import Critics, describe_critics
from ringfence.algorithms.interface import Batch, Export, Metrics, Sample
from ringfence.algorithms.ood import LatentKL, calibrated
from ringfence.limits import DISCOUNT
from ringfence.networks import TanhGaussianActor, describe_cvae
from ringfence.optimise import Adam
from ringfence.steps import steps_with_critics


class State(eqx.Module):
    """Everything that training changes, and the limit."""

    limit: Float[Array, ""]  # l
    detector: LatentKL  # the CVAE and the threshold d
    critics: Critics
    targets: Critics
    actor: TanhGaussianActor
    alpha: Float[Array, ""]
    detector_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    actor_optimiser: optax.OptState


@dataclass(frozen=True)
class CPQSettings:
    """The hyper-parameters of CPQ as printed. What the paper's main text leaves open (d, beta, learning rates, network
    sizes) has our values."""

    shown: ClassVar[tuple[str, ...]] = ("detector_loss", "indicator", "ood_rate", "alpha", "qr_policy", "qc_policy")
    small: ClassVar[Mapping[str, Any]] = {"cvae_steps": 200, "ood_samples": 4, "actor_learning_rate": 3e-3}

    limit: float | None = None  # l: bound on the expected discounted cost from each state
    discount: float = DISCOUNT
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4  # of the CVAE and the critics (Adam)
    actor_learning_rate: float = 3e-4
    tau: float = 0.005  # of the target critics

    # VAE training
    cvae_steps: int = 20_000  # M
    beta: float = 1.0
    decoder_std: float = 0.05  # sets the scale of beta and d; at 1 the posterior collapses
    ood_threshold: float | None = None  # d as an absolute KL; None takes the quantile below
    ood_quantile: float = 0.99  # d as a quantile of the log's own KL: it means the same on every log

    # Policy training
    ood_samples: int = 10  # n
    ood_limit_ratio: float = 1.5  # l_c / l
    alpha: float | None = None  # None tunes it from 0, Eq. (5)
    alpha_rate: float = 1e-3

    def __post_init__(self) -> None:
        check_settings(self)
        positive(self, "actor_learning_rate", "cvae_steps", "ood_samples", "beta", "decoder_std", "ood_limit_ratio")
        at_most_one(self, "tau")
        positive(self, "alpha_rate", *(() if self.alpha is None else ("alpha",)), zero=True)
        fraction(self, "ood_quantile")

    @property
    def default_steps(self) -> int:
        return steps_with_critics(self.tau, self.discount)

    @property
    def _critic_adam(self) -> Adam:
        return Adam(self.learning_rate)

    @property
    def _actor_adam(self) -> Adam:
        return Adam(self.actor_learning_rate)

    def calibrate_detector(self, state: State, batch: Batch, key: PRNGKeyArray) -> tuple[State, Metrics]:
        """Set d, and measure how well the detector tells the log's actions from random ones."""
        detector, report = calibrated(state.detector, batch, key, self.ood_threshold, self.ood_quantile)
        return replace(state, detector=detector), report

    def policy_actor(self, state: State) -> TanhGaussianActor:
        """The learned policy: the actor itself; in `CPQ` its average over the steps."""
        return state.actor

    def diagnose(self, state: State, sample: Sample, key: PRNGKeyArray) -> Metrics:
        return cpq_diagnostics(state, self.policy_actor(state), sample, key)

    def warnings(self, stage: str, history: list[Mapping[str, float]]) -> list[str]:
        return cpq_warnings(stage, history)

    def export(self, state: State) -> Export:
        cvae, critics = describe_cvae(state.detector.cvae), describe_critics(state.critics)
        networks = {"actor": self.policy_actor(state), **critics, **cvae}
        return Export("tanh-gaussian", networks, {"threshold": state.detector.threshold[None]})
