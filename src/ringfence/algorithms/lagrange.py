"""Lagrange multipliers: prices on breaking a constraint, which rise while it is broken and fall while it is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Self

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from ringfence.optimise import Adam

Scalar = Float[Array, ""]
RISING_LOGS = 10  # so many log lines in a row, by default 1,000 steps each: shorter rises are the ordinary search


class Multiplier(eqx.Module):
    """A multiplier steered by a PID controller of the cost (Stooke, Achiam and Abbeel 2020, Algorithm 2).

    With the proportional and derivative gains at 0 this is projected dual ascent,
    lambda <- max(lambda + rate violation, 0), where the rate is the integral gain.

    Stooke et al. divide the policy's objective by 1 + lambda besides, to keep its gradient's size. We do not:
    a factor does not change which candidate is best, and hardly a step of Adam, and BEAR's lambda_mmd adapts to it."""

    value: Scalar
    integral: Scalar  # of the violation, never below 0
    previous: Scalar  # the cost one step before, 0 before the first

    @classmethod
    def zero(cls) -> Self:
        nothing = jnp.asarray(0.0, jnp.float32)
        return cls(nothing, nothing, nothing)


def pid_step(
    multiplier: Multiplier,
    cost: Scalar,
    limit: Scalar,
    integral_gain: float,
    proportional: float = 0.0,
    derivative: float = 0.0,
) -> Multiplier:
    """For the cost C = E Qc of this step, C' of the one before and the violation v = C - l:

        I <- max(I + v, 0)
        lambda <- max(Kp v + Ki I + Kd max(C - C', 0), 0)

    The derivative may resist a rise of the cost but not a fall. The authors' code smooths v and C over steps in the
    terms of Kp and Kd; their Algorithm 2 does not, nor do we."""
    violation = cost - limit
    integral = jnp.maximum(multiplier.integral + violation, 0.0)
    rise = jnp.maximum(cost - multiplier.previous, 0.0)
    value = jnp.maximum(proportional * violation + integral_gain * integral + derivative * rise, 0.0)
    return Multiplier(value, integral, cost)


class LogMultiplier(eqx.Module):
    """A multiplier held by its logarithm, as BEAR has its own: it grows and shrinks by factors, so it finds its size
    whatever the units of the objective."""

    log: Scalar
    optimiser: optax.OptState

    @classmethod
    def create(cls, value: float, rate: float) -> Self:
        log = jnp.log(jnp.asarray(value, jnp.float32))
        return cls(log, Adam(rate).init(log))

    @property
    def value(self) -> Scalar:
        return jnp.exp(self.log)


def log_dual_step(
    multiplier: LogMultiplier, violation: Scalar, rate: float, least: float = -5.0, greatest: float = 10.0
) -> LogMultiplier:
    """One Adam step of log lambda up the gradient of lambda violation, which is lambda violation again; then log
    lambda is kept between -5 and 10 (BEAR, Kumar et al. 2019, and its authors' code)."""
    log, optimiser = Adam(rate).step(-multiplier.value * violation, multiplier.optimiser, multiplier.log)
    return replace(multiplier, log=jnp.clip(log, least, greatest), optimiser=optimiser)


def lagrange_warnings(history: Sequence[Mapping[str, float]]) -> list[str]:
    """A multiplier that rises without an effect on the cost: the limit may be out of reach on this log."""
    recent = history[-RISING_LOGS:]
    if len(recent) < RISING_LOGS or not all("lambda_cost" in row for row in recent):
        return []
    rising = all(after["lambda_cost"] > before["lambda_cost"] for before, after in pairwise(recent))
    costs = [row["qc_policy"] for row in recent]
    if rising and costs[-1] >= costs[0]:
        return [
            f"the cost multiplier rises without effect: for {RISING_LOGS} log lines it grew to "
            f"{recent[-1]['lambda_cost']:.3g} while Qc of the policy's actions did not fall ({costs[-1]:.4g}); "
            "the limit may be below what the log supports."
        ]
    return []
