"""The neural CPQ on one-hot states of a small CMDP comes to what CPQ on tables comes to."""

import numpy as np
import pytest

from ringfence.algorithms import CPQ
from ringfence.tabular.cmdp import expected_cost, expected_return, stirred
from ringfence.tabular.cpq import Settings, run_cpq
from ringfence.tabular.examples import stitching
from ringfence.tabular.logs import action_indices, counted_model, sample_log
from ringfence.training import Member, Plan, run

TIGHT, LOOSE = 0.5, 2.2  # the third stage's harder way costs 1.8 from there on: too much for one, not for the other


@pytest.mark.slow
def test_the_neural_cpq_agrees_with_the_tabular_one_at_two_limits():
    """Same log, two limits as one population. The continuous action is read back as the bin it falls into. Agreement:
    the same action in every stage of the machine, and critics that tell their values apart."""
    example = stitching()
    behaviours = {"safe": stirred(example.safe, 0.1), "unsafe": stirred(example.unsafe, 0.1)}
    log = sample_log(example.cmdp, behaviours, 4000, np.random.default_rng(0))
    method = CPQ(
        hidden=(32, 32),
        batch_size=64,
        discount=example.cmdp.discount,
        cvae_steps=500,
        learning_rate=1e-3,
        actor_learning_rate=1e-3,
        anchor=0.1,
    )
    result = run(log, Plan(method, (Member(0, TIGHT), Member(0, LOOSE)), 4000), progress=False)
    for limit, policy in zip((TIGHT, LOOSE), result.policies, strict=True):
        model = counted_model(log, example.cmdp.n_actions, example.cmdp.discount, limit)
        tabular = run_cpq(model.cmdp, model.behaviour, Settings(alpha=5.0, ood_threshold=0.1, step=0.1, iterations=300))
        stages = slice(0, 3)  # the fourth state is the broken machine, which no choice helps
        chosen = action_indices(policy(np.eye(4, dtype=np.float32)), example.cmdp.n_actions)
        np.testing.assert_array_equal(chosen[stages], tabular.policy.argmax(1)[stages])

        table = np.eye(example.cmdp.n_actions)[chosen]
        earned, spent = expected_return(example.cmdp, table), expected_cost(example.cmdp, table)
        assert spent <= limit
        last = [row for row in result.metrics if row["limit"] == limit][-1]
        # Close enough to tell the two policies apart (they earn 7.9 and 10, and cost 0 and 1.5), and either from its limit.
        assert last["qr_start"] == pytest.approx(earned, abs=0.5)
        assert last["qc_start"] == pytest.approx(spent, abs=TIGHT / 2)
