"""The default with another upper bound of the slack than 1.2."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from ringfence.algorithms.cpq_departures import CPQ
from ringfence.algorithms.cpq_imagined import AIM, feedback_rate
from ringfence.algorithms.cpq_limits import band_limits


@dataclass(frozen=True)
class Proto(CPQ):
    most: float = 1.6

    def _imagine(self, state, metrics, batch):
        after, metrics = super()._imagine(state, metrics, batch)
        rate = feedback_rate(state.step, state.plant.error, self.feedback)
        limits = band_limits(self.limits, state.limit)
        slack = state.slack + rate * (AIM - after.imagined.cost(self.discount) / limits)
        slack = jnp.clip(slack, 0.8, self.most)
        return replace(after, slack=slack), {**metrics, "slack": slack.mean()}
