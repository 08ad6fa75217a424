"""A policy is not judged by a log of other actions without a word."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.data.example_logs import columns

from ringfence.data import Dataset
from ringfence.evaluation.ope.columns import check_columns


@pytest.mark.parametrize(("high", "warned"), [(1.0, False), (1.05, False), (50.0, True)])
def test_action_bounds_far_beyond_the_logs_are_warned_of(high, warned):
    log = Dataset.from_arrays(**columns() | {"action_low": -1.0, "action_high": 1.0})
    low, names = np.full(len(log.action_low), -1.0), {"action_names": log.action_names}
    policy = SimpleNamespace(
        observation_names=log.observation_names, **names, action_low=low, action_high=low + 1 + high
    )
    assert [f"[-1, {high:g}] / [-1, 1]" in sentence for sentence in check_columns(policy, log)] == [True] * warned
