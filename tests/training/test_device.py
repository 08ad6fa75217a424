"""Batches drawn out of a log on the device."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from ringfence.algorithms.batches import Transitions
from ringfence.training.device import diagnostic_sample, spec_of, to_device
from tests.logs import narrow_log

LOG = narrow_log(rows=300, episode_length=50)
DATA = to_device(LOG)
STARTS = (LOG.observations[::50] - LOG.normaliser.mean) / LOG.normaliser.std


def test_starts_are_drawn_alike_from_the_first_states_of_all_episodes():
    drawn = np.asarray(Transitions(3000).draw(DATA, jax.random.key(0), ()).starts)
    which = np.abs(drawn[:, None] - STARTS).max(-1).argmin(1)
    np.testing.assert_allclose(drawn, STARTS[which], atol=1e-5)
    np.testing.assert_allclose(np.bincount(which, minlength=6) / 3000, 1 / 6, atol=0.03)


def test_starts_are_drawn_apart_from_the_transitions():
    """A start says nothing of the transition that stands beside it: else a pair of them would be no two draws."""
    batch = Transitions(3000).draw(DATA, jax.random.key(0), ())
    correlation = np.corrcoef(np.asarray(batch.observations).T, np.asarray(batch.starts).T)[:3, 3:]
    assert np.abs(correlation).max() < 0.08  # 0.02 is the standard error


def test_the_diagnostic_sample_has_every_start_of_a_small_log():
    np.testing.assert_allclose(diagnostic_sample(LOG, DATA, 0.99).starts, STARTS, atol=1e-5)


def test_a_method_is_told_which_share_of_the_episodes_terminated():
    log = narrow_log(rows=500, episode_length=50)
    last = np.arange(49, 500, 50)
    assert 0 < log.terminations[last].sum() < 10
    assert spec_of(log).terminated == pytest.approx(log.terminations[last].sum() / 10)


def test_what_followed_in_episodes_that_were_cut_off_early_is_brought_to_a_sum_without_end():
    """50 steps at 0.99 are 40 % of a sum; beside them every critic that is right would seem to inflate."""
    steady = replace(LOG, rewards=np.ones_like(LOG.rewards), costs=np.full_like(LOG.costs, 0.2))
    ends = LOG.terminations | LOG.truncations
    cut_off = replace(steady, terminations=np.zeros_like(ends), truncations=ends)
    sample = diagnostic_sample(cut_off, to_device(cut_off), 0.99)
    np.testing.assert_allclose(sample.return_to_go, 100.0, rtol=1e-5)
    np.testing.assert_allclose(sample.cost_to_go, 20.0, rtol=1e-5)
    ended = replace(steady, terminations=ends, truncations=np.zeros_like(ends))
    assert diagnostic_sample(ended, to_device(ended), 0.99).return_to_go.max() < 50.0  # nothing follows
