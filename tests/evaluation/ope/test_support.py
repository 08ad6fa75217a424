"""How well a log covers a policy."""

from types import SimpleNamespace

import numpy as np
import pytest

from ringfence.deploy import Policy
from ringfence.evaluation.ope.support import _by_detector


class Watched(Policy):
    """A policy whose detector's score is the observation, foreign from 0.5 on."""

    def __init__(self):
        self.artifact = SimpleNamespace(
            detector_threshold=0.5, detector_score=lambda observations, _: observations[:, 0]
        )


def test_the_detector_looks_at_rows_of_the_whole_log():
    """The first half of the log is familiar, the second half foreign."""
    rows = np.linspace(0, 1, 10_000, dtype=np.float32)[:, None]
    assert _by_detector(Watched(), rows, rows) == pytest.approx(0.5, abs=0.03)
    assert _by_detector(Watched(), rows, rows) == _by_detector(Watched(), rows, rows)
    assert _by_detector(lambda observations: observations, rows, rows) is None
