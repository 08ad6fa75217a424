"""The benchmarks count right and run; how fast anything is, no test says."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.evaluation import share_of_run
from benchmarks.flops import matrix_flops
from benchmarks.osrl_methods import episode_limit
from benchmarks.report import rounded
from benchmarks.time_to_policy import STAGES, judged, notes, train_ours

from ringfence.algorithms import Spec
from ringfence.behaviour.collect import collect_dataset
from ringfence.data import save
from ringfence.kernels import calls
from ringfence.networks import MLP

ROOT = Path(__file__).parents[2]


def flops_of(function, *arguments):
    return matrix_flops(jax.jit(function).lower(*arguments).compile().as_text())


def test_a_product_counts_two_operations_for_each_term():
    a, b = jnp.ones((32, 48)), jnp.ones((48, 64))
    assert flops_of(lambda a, b: a @ b, a, b) == 2 * 32 * 48 * 64
    assert flops_of(lambda a, b: a.T @ b, jnp.ones((48, 32)), b) == 2 * 32 * 48 * 64
    assert flops_of(lambda a, b: a @ b, jnp.ones((5, 32, 48)), jnp.ones((5, 48, 64))) == 5 * 2 * 32 * 48 * 64


def test_a_loop_counts_as_one_turn_of_it():
    a = jnp.ones((32, 32))
    assert flops_of(lambda a: jax.lax.fori_loop(0, 100, lambda _, x: jnp.tanh(x @ a), a), a) == 2 * 32**3


def test_a_step_of_cpq_does_the_matrix_work_counted_by_hand():
    """Of the paper's step with one kept action, in passes of a batch through the square layer between the hidden ones,
    which is most of the work: actor 2, encoder n, targets 3, reward critics 2 x 3 and cost critic 2 x 3 with their
    gradients, then for the actor 3 critics forward and back to the action, and its own gradient twice."""
    from benchmarks.workload import HOPPER, Workload, method_called, random_data

    batch, width, n = 16, 64, 10
    method = method_called("cpq paper, one", batch_size=batch, hidden=(width, width))
    counted = matrix_flops(Workload(method, random_data(100, *HOPPER), Spec(*HOPPER)).compiled().as_text())
    passes = 2 + n + 3 + 6 + 6 + 6 + 2
    square = passes * 2 * batch * width**2
    assert square < counted < square * (1 + 2.2 * (11 + 3 + 12) / width)


@pytest.mark.skipif(not calls.available(), reason="XLA computes")
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("of", [0, 1, (0, 1)])
def test_a_call_of_the_kernels_counts_as_the_products_it_stands_for(normalise, of):
    mlp = MLP(14, 3, (64, 32), normalise=normalise, key=jax.random.key(0))
    x = jnp.ones((128, 14))
    layers = 2 * 128 * np.array([14 * 64, 64 * 32, 32 * 3])
    wanted = {0: layers.sum() * 3 - layers[0], 1: layers.sum() * 2, (0, 1): layers.sum() * 3}[of]
    counted = flops_of(jax.grad(lambda mlp, x: jnp.sum(mlp(x) ** 2), of), mlp, x)
    assert counted == wanted


def test_the_time_to_a_policy_is_that_of_the_first_good_one_and_of_the_first_after_which_all_are():
    """Inside the limit of 40 and above the clone's 1000: the second, the fourth and the fifth."""
    scores = {"1": (900, 30), "2": (1200, 38), "3": (1500, 41), "4": (1300, 40), "5": (1400, 35)}
    saved = {step: {"seconds": 10.0 * int(step)} for step in scores}
    found = judged(
        saved, 1000.0, 40.0, lambda step: dict(zip(("return", "discounted_cost"), scores[step], strict=True))
    )
    assert (found["first_good_seconds"], found["good_from_then_on_seconds"]) == (20.0, 40.0)
    assert (
        judged(saved, 2000.0, 40.0, lambda step: {"return": 0.0, "discounted_cost": 0.0})["first_good_seconds"] is None
    )


def test_the_time_at_which_each_stage_ended_is_kept(tmp_path):
    log = tmp_path / "log.npz"
    save(collect_dataset("reactor", 1200, seed=0, workers=1), log)
    settings = {"hidden": [16, 16], "batch_size": 32, "ood_samples": 2, "cvae_steps": 30}
    began = time.time()
    saved = train_ours(str(log), "cpq", str(tmp_path), began, limit=20.0, steps=20, every=10, settings=settings)
    ended = json.loads((tmp_path / STAGES).read_text())
    assert list(saved) == ["10", "20"]  # and nothing else: the policies' steps
    assert list(ended) == ["detector", "policy"]
    assert 0 < ended["detector"] < saved["10"]["seconds"] < saved["20"]["seconds"] <= ended["policy"]
    assert ended["policy"] <= time.time() - began


def test_a_note_says_what_share_of_the_time_to_a_policy_the_detector_took():
    """Five of fifty seconds; the clone has no detector, a peer has no stages."""
    good = {"curve": [], "good_from_then_on_seconds": 50.0, "stages": {"detector": 5.0, "policy": 60.0}}
    methods = {
        "ringfence CPQ": good,
        "BC-Safe": {"return": 1.0, "stages": {"policy": 9.0}},
        "osrl-lib CPQ": {"failed": ""},
    }
    (note,) = notes({"limits": {"60": methods}})
    assert "after 5 s" in note
    assert "10 % of the time" in note
    (never,) = notes({"limits": {"60": {"ringfence CPQ": {**good, "good_from_then_on_seconds": None}}}})
    assert "%" not in never


def test_a_peer_gets_the_episode_limit_that_it_turns_into_our_discounted_one():
    limit, discount, horizon = 40.0, 0.99, 1000
    per_step = episode_limit(limit, discount, horizon) / horizon
    assert sum(per_step * discount**t for t in range(horizon)) == pytest.approx(limit)


def test_a_trained_state_is_measured_again_where_it_was_left(tmp_path):
    from benchmarks.workload import HOPPER, Workload, method_called, random_data

    method = method_called("cpq", hidden=(8, 8), batch_size=8)
    first, second = (Workload(method, random_data(200, *HOPPER), Spec(*HOPPER)) for _ in range(2))
    first.train(earlier=3, steps=4)
    first.save(tmp_path / "state.npz")
    second.load(tmp_path / "state.npz", done=4)
    first.advance(2)
    second.advance(2)
    for ours, theirs in zip(jax.tree.leaves(first.carry[0]), jax.tree.leaves(second.carry[0]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_evaluations_take_their_time_out_of_the_whole():
    assert share_of_run(evaluation_seconds=5.0, steps_per_second=100.0, every=5000) == pytest.approx(5 / 55)


def test_numbers_are_kept_to_four_digits():
    assert rounded({"a": 123456.7, "b": {"c": 0.00012345678, "d": 7, "e": "x"}}) == {
        "a": 123500.0,
        "b": {"c": 0.0001235, "d": 7, "e": "x"},
    }


@pytest.mark.slow
def test_the_quick_benchmark_measures_and_prints_the_sections_asked_for(tmp_path):
    out = tmp_path / "numbers.json"
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--quick", "--only", "peak", "large_log", "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},  # how fast it is does not matter here
        check=True,
        capture_output=True,
        text=True,
    )
    numbers = json.loads(out.read_text())
    assert {"machine", "peak", "large_log"} <= set(numbers)
    columns = 2 * 17 + 6 + 2  # Walker2d: two observations, an action, reward and cost
    megabytes = numbers["large_log"]["rows"] * columns * 4 / 2**20
    for read in (numbers["large_log"][suffix] for suffix in ("h5", "parquet")):
        assert read["data_megabytes"] == pytest.approx(megabytes, rel=1e-3)
        assert read["peak_over_data"] == pytest.approx(read["peak_megabytes"] / megabytes, rel=2e-3)
    assert "Matrix-multiply" in ran.stdout


def test_the_benchmark_of_a_policy_call_measures_policy_and_guard(tmp_path):
    options = ["--calls", "50", "--width", "8", "--json", str(tmp_path / "found.json")]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.policy_call", *options], check=True, cwd=ROOT, capture_output=True
    )
    found = json.loads((tmp_path / "found.json").read_text())
    for part in ("policy", "guard", "guard_without_detector", "guard_with_log"):
        assert 0 < found[part]["wall"]["median"] <= found[part]["wall"]["p99"]
    assert found["import_seconds"]["cpu"] > 0
    assert found["scores_computed_by"] in ("numpy", "kernels/avx2", "kernels/avx512")
