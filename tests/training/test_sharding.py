"""Several devices give the numbers of one."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
import pytest

from ringfence import CPQ
from ringfence.algorithms.batches import Transitions
from ringfence.algorithms.bc import BC
from ringfence.training import Member, Plan, run
from ringfence.training.compilation import use_compilation_cache
from tests.logs import narrow_log

DEVICES = 4
# Seeds and batch size: what is spread over the four devices. CPQ takes a minute to compile for four devices, so that it has
# the case with both axes, and cloning the others.
CASES = {
    "members": (BC, (0, 1, 2, 3), 16),
    "batch": (BC, (0,), 16),
    "members and batch": (CPQ, (0, 1), 16),
    "neither": (BC, (0,), 15),
}
OWN_SAMPLER = "own sampler"
SMALL = {BC: {}, CPQ: {"cvae_steps": 10, "ood_samples": 3}}
WATCHED = {BC: "actor_loss", CPQ: "qc_data"}
pytestmark = pytest.mark.usefixtures("quick_compilation")


def trained(kind, seeds, batch_size):
    method = kind(hidden=(8, 8), batch_size=batch_size, **SMALL[kind])
    plan = Plan(method, tuple(Member(seed, 5.0) for seed in seeds), 15, log_every=5, checkpoint_every=5)
    return run(narrow_log(rows=600), plan, progress=False)


@dataclass(frozen=True)
class LargerBatches(BC):
    """Draws other batches than `batch_size` says, which could not be split over four devices."""

    def stages(self, steps):
        (stage,) = super().stages(steps)
        return (replace(stage, sampler=Transitions(16)),)


def trained_on_larger_batches():
    plan = Plan(LargerBatches(hidden=(8, 8), batch_size=6), (Member(0, 5.0),), 15, log_every=5, checkpoint_every=5)
    return run(narrow_log(rows=600), plan, progress=False)


def devices_used(case):
    """How the mesh lies: devices along the members and along the batch."""
    from ringfence.training.sharding import layout_for

    _, seeds, batch_size = CASES[case]
    mesh = layout_for(len(seeds), batch_size).mesh
    return None if mesh is None else list(mesh.devices.shape)


def numbers(result):
    return [{**policy.tensors} for policy in result.policies], result.metrics[-1]


def main(folder):
    """What the test below runs where JAX sees four devices."""
    use_compilation_cache()
    jax.config.update("jax_disable_most_optimizations", True)
    assert len(jax.devices()) == DEVICES
    for case, settings in CASES.items():
        policies, metrics = numbers(trained(*settings))
        for i, tensors in enumerate(policies):
            np.savez(Path(folder) / f"{case}-{i}.npz", **tensors)
        (Path(folder) / f"{case}.json").write_text(json.dumps({"metrics": metrics, "devices": devices_used(case)}))
    ((tensors,), _) = numbers(trained_on_larger_batches())
    np.savez(Path(folder) / f"{OWN_SAMPLER}.npz", **tensors)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    code = f"from tests.training.test_sharding import main; main({str(folder)!r})"
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    # XLA aborts where one of the devices' threads gets no core for 40 seconds, on a machine that is busy otherwise.
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, check=False)
        if ended.returncode != -signal.SIGABRT:
            break
    assert ended.returncode == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_four_devices_give_the_numbers_of_one(folder, case):
    policies, metrics = numbers(trained(*CASES[case]))
    for i, tensors in enumerate(policies):
        sharded = np.load(folder / f"{case}-{i}.npz")
        for name, tensor in tensors.items():
            np.testing.assert_allclose(sharded[name], tensor, rtol=1e-3, atol=2e-4, err_msg=name)
    seen = json.loads((folder / f"{case}.json").read_text())["metrics"]
    watched = WATCHED[CASES[case][0]]
    assert seen[watched] == pytest.approx(metrics[watched], rel=1e-2, abs=1e-3)


@pytest.mark.slow
def test_a_stage_with_a_sampler_of_its_own_runs_on_four_devices(folder):
    ((tensors,), _) = numbers(trained_on_larger_batches())
    sharded = np.load(folder / f"{OWN_SAMPLER}.npz")
    for name, tensor in tensors.items():
        np.testing.assert_allclose(sharded[name], tensor, rtol=1e-3, atol=2e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "devices"), [("members", [4, 1]), ("batch", [1, 4]), ("members and batch", [2, 2]), ("neither", None)]
)
def test_devices_go_to_members_first_and_the_rest_to_their_batches(folder, case, devices):
    assert json.loads((folder / f"{case}.json").read_text())["devices"] == devices


def test_one_device_needs_no_layout():
    assert devices_used("members") is None
