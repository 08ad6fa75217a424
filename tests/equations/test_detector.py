"""Stage one: the CVAE, its KL as a score, the threshold."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ringfence.algorithms.ood import LatentKL, auroc, cvae_loss, is_ood
from tests.equations import reference
from tests.equations.conftest import small_state

KEY = jax.random.key(3)


def test_the_cvae_loss_is_the_negative_evidence_lower_bound(batch, printed):
    cvae = small_state(printed).detector.cvae
    beta, std = 1.5, 0.2
    noise = np.asarray(jax.random.normal(KEY, (len(batch.rewards), 4)), np.float64)
    total = 0.0
    for s, a, e in zip(np.asarray(batch.observations), np.asarray(batch.actions), noise, strict=True):
        mean, log_std = reference.latent(cvae, s, a)
        z = mean + np.exp(log_std) * e
        decoded = np.tanh(reference.mlp(cvae.decoder, np.concatenate([s, z])))
        log_likelihood = sum(
            -0.5 * ((x - d) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi)) for x, d in zip(a, decoded, strict=True)
        )
        total += -log_likelihood + beta * reference.standard_normal_kl(mean, log_std)
    loss = cvae_loss(cvae, batch.observations, batch.actions, KEY, beta=beta, decoder_std=std)
    assert loss == pytest.approx(total / len(noise), rel=1e-4)


def test_the_score_is_the_latent_kl_of_each_pair(batch, printed):
    detector = small_state(printed).detector
    expected = [
        reference.standard_normal_kl(*reference.latent(detector.cvae, s, a))
        for s, a in zip(np.asarray(batch.observations), np.asarray(batch.actions), strict=True)
    ]
    np.testing.assert_allclose(detector.score(batch.observations, batch.actions), expected, rtol=1e-4)


def test_a_pair_is_out_of_distribution_from_the_threshold_on():
    detector = LatentKL.create(3, 2, (4,), threshold=2.0, key=KEY)
    assert is_ood(detector, jnp.asarray([1.9, 2.0, 2.1])).tolist() == [False, True, True]


def test_the_latent_has_twice_as_many_dimensions_as_the_action(printed):
    mean = small_state(printed).detector.cvae.encode(jnp.zeros((1, 3)), jnp.zeros((1, 2))).mean
    assert mean.shape == (1, 4)


def test_calibration_puts_the_threshold_at_the_quantile_of_the_logs_own_scores(batch, printed):
    method = replace(printed, ood_quantile=0.8)  # of six scores: the fifth
    state = small_state(method)
    after, report = method.calibrate_detector(state, batch, KEY)
    scores = np.sort(np.asarray(state.detector.score(batch.observations, batch.actions)))
    assert after.detector.threshold == pytest.approx(scores[4], rel=1e-4)
    assert 1 / 6 - 1e-6 <= report["ood_share_data"] <= 2 / 6 + 1e-6  # the fifth itself is on the edge


def test_an_absolute_threshold_is_left_alone_by_calibration(batch, printed):
    method = replace(printed, ood_threshold=7.5)
    after, _ = method.calibrate_detector(small_state(method), batch, KEY)
    assert after.detector.threshold == 7.5


def test_auroc_counts_pairs_in_the_right_order_and_half_of_the_ties():
    inside, outside = np.array([0.0, 1.0, 2.0, 2.0]), np.array([2.0, 0.5, 3.0])
    wins = np.mean([[(o > i) + 0.5 * (o == i) for i in inside] for o in outside])
    assert auroc(jnp.asarray(inside), jnp.asarray(outside)) == pytest.approx(wins)


def test_a_collapsed_cvae_is_reported_loudly_and_a_healthy_one_is_not(printed):
    collapsed = printed.warnings("detector", [{"detector_loss": 1.0}, {"kl_data": 0.0001, "auroc_random": 0.9}])
    assert len(collapsed) == 1
    assert collapsed[0].startswith("COLLAPSED CVAE")
    assert printed.warnings("detector", [{"detector_loss": 1.0}]) == []
    assert printed.warnings("detector", [{"kl_data": 3.0, "auroc_random": 0.97}]) == []


@pytest.mark.slow
def test_a_squared_error_decoder_collapses_and_is_reported_while_ours_does_not():
    """The findings' table in small: what the decoder's standard deviation does to the posterior."""
    from ringfence import CPQ
    from ringfence.training import Member, Plan, run
    from tests.logs import narrow_log

    log = narrow_log(rows=3000)
    settings = {"hidden": (32, 32), "batch_size": 64, "cvae_steps": 800, "learning_rate": 1e-3}
    told = {}
    for std in (1.0, 0.05):
        result = run(log, Plan(CPQ(**settings, decoder_std=std), (Member(0, 30.0),), 1), progress=False)
        told[std] = [row["text"].split(":")[0] for row in result.warnings]
        kl = next(row["kl_data"] for row in result.metrics if row["stage"] == "detector" and "kl_data" in row)
        assert (kl < 0.05) == (std == 1.0)
    assert told == {1.0: ["COLLAPSED CVAE"], 0.05: []}
