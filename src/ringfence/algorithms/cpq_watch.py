"""What to measure while CPQ trains, and what to tell the user when the numbers show a known way to fail."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from ringfence.algorithms.critics import smaller_value
from ringfence.algorithms.interface import Metrics, Sample
from ringfence.networks import TanhGaussianActor, sample_tanh

COLLAPSED_KL = 0.05  # nats; healthy posteriors measured 0.4 to 8, collapsed ones 0.000
STALLED_INDICATOR = 0.01
STALLED_LOGS = 5  # so many log lines in a row, by default 1,000 steps each
RISING_LOGS = 4
CEILING_SLACK = 1.25  # a stitched policy may earn somewhat more than any one logged episode


def cpq_diagnostics(state: Any, policy: TanhGaussianActor, sample: Sample, key: PRNGKeyArray) -> Metrics:
    """How the critics compare with what the log shows really followed, and what the detector says. `policy` is the learned
    policy: the actor, or with `CPQ` its average. It is measured as it is, even if it is handed out with a gain or a clone is
    handed out in its place."""
    batch, critics = sample.batch, state.critics
    actions, _ = sample_tanh(state.actor(batch.observations), key)
    start_actions = policy.mode(sample.starts)
    return {
        "qc_start": critics.cost(sample.starts, start_actions).mean(),
        "qr_start": smaller_value(critics.reward, sample.starts, start_actions).mean(),
        "sample_qc_data": critics.cost(batch.observations, batch.actions).mean(),
        "sample_cost_to_go": sample.cost_to_go.mean(),
        "sample_qr_data": smaller_value(critics.reward, batch.observations, batch.actions).mean(),
        "sample_qr_policy": smaller_value(critics.reward, batch.observations, actions).mean(),
        "sample_return_to_go": sample.return_to_go.mean(),
        "greatest_return_to_go": sample.return_to_go.max(),
        "kl_data": state.detector.score(batch.observations, batch.actions).mean(),
        "policy_std": jnp.exp(state.actor(batch.observations).log_std).mean(),
        "policy_distance": jnp.sqrt(jnp.mean((policy.mode(batch.observations) - batch.actions) ** 2)),
    }


def cpq_warnings(stage: str, history: Sequence[Mapping[str, float]]) -> list[str]:
    """Known failures that show in the stage's metrics so far (oldest first)."""
    if not history:
        return []
    return detector_warnings(history[-1]) if stage == "detector" else policy_warnings(history)


def detector_warnings(last: Mapping[str, float]) -> list[str]:
    if "kl_data" not in last:  # only the calibration at the end of the stage measures it
        return []
    if last["kl_data"] < COLLAPSED_KL:
        return [
            f"COLLAPSED CVAE: the latent KL of logged actions is {last['kl_data']:.4f}, so no threshold tells "
            "foreign actions from logged ones; lower decoder_std or beta."
        ]
    if last["auroc_random"] < 0.75:
        return [
            f"weak detector: it ranks a random action above a logged one only {last['auroc_random']:.0%} of the "
            "time (50% is blind); logged actions may simply cover the whole range."
        ]
    return []


def policy_warnings(history: Sequence[Mapping[str, float]]) -> list[str]:
    found = []
    recent = [row["indicator"] for row in history[-STALLED_LOGS:] if "indicator" in row]
    if len(recent) == STALLED_LOGS and max(recent) < STALLED_INDICATOR:
        found.append(
            f"stalled: for {STALLED_LOGS} log lines fewer than 1% of the policy's actions counted as safe "
            f"(Qc of its actions {history[-1]['qc_policy']:.3g}). The limit may be below what the log supports; with the "
            "paper preset an unsafe policy has no gradient that would make it safe again."
        )
    rows = [row for row in history[-RISING_LOGS:] if "sample_qr_policy" in row]
    values = [row["sample_qr_policy"] for row in rows]
    if len(rows) == RISING_LOGS and all(b > a for a, b in pairwise(values)):
        ceiling = CEILING_SLACK * max(rows[-1]["greatest_return_to_go"], 0.0)
        if values[-1] > ceiling:
            found.append(
                f"Qr inflates: it promises {values[-1]:.4g} where no logged row earned more than "
                f"{rows[-1]['greatest_return_to_go']:.4g} (discounted, over an infinite horizon), and it keeps rising; "
                "do not trust this policy. With the default preset a larger anchor helps; the paper preset has none."
            )
    return found
