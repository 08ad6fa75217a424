"""What a policy and a guard cost at run time: import, one call, memory over many calls. NumPy and safetensors alone.

    python -m benchmarks.policy_call [--calls 1000000] [--width 256] [--json FILE]

Goals, for networks of 256 x 256 on one core: import under 0.2 s, a median call under 50 microseconds, its 99th percentile
under four times that, nothing kept after a million calls. A guard runs three networks: the policy, the detector and the
cost critic. The last two are computed by the compiled library where it was built, with RINGFENCE_KERNELS=xla by NumPy. A
guard is measured with all rules, with a line in its log for every step, and with the detector's rule off. Times are given on
the clock and of the processor; on a busy machine only the second means the code, and of it the 10th percentile most: other
programs empty the caches.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy: one core is what is measured
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

OBSERVATIONS, ACTIONS, LATENT = 11, 3, 6
IMPORT = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import ringfence
ringfence.Guard
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def import_seconds(times: int = 5) -> dict[str, float]:
    """The shortest of several fresh interpreters, without the interpreter's own start."""
    found = []
    for _ in range(times):
        ran = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        found.append([float(word) for word in ran.stdout.split()])
    wall, cpu = np.min(found, axis=0)
    return {"wall": float(wall), "cpu": float(cpu)}


def artifact_of(width: int) -> Any:
    """CPQ's networks with random weights: actor, detector and cost critic, and what a guard must know of a log."""
    from ringfence.deploy import Artifact, Network

    rng = np.random.default_rng(0)
    pair, state = ("observation", "action"), ("observation",)
    networks = (
        (Network("actor", state, "tanh-gaussian"), OBSERVATIONS, 2 * ACTIONS),
        (Network("cost", pair, "value", layer_norm=True), OBSERVATIONS + ACTIONS, 1),
        (Network("encoder", pair, "latent-gaussian"), OBSERVATIONS + ACTIONS, 2 * LATENT),
    )
    tensors = {"threshold": [1e9], "guard_distance": [1e9], "guard_stillness": np.full(OBSERVATIONS, 1e9)}
    tensors |= {"guard_centre": np.zeros(OBSERVATIONS), "guard_whitening": np.eye(OBSERVATIONS)}
    for network, inputs, outputs in networks:
        sizes = [inputs, width, width, outputs]
        for i in range(3):
            tensors[f"{network.name}.{i}.weight"] = rng.normal(size=sizes[i : i + 2]) / np.sqrt(sizes[i])
            tensors[f"{network.name}.{i}.bias"] = np.zeros(sizes[i + 1])
    return Artifact(
        "tanh-gaussian",
        {network.name: network for network, *_ in networks},
        tensors,
        np.zeros(OBSERVATIONS),
        np.ones(OBSERVATIONS),
        -np.ones(ACTIONS),
        np.ones(ACTIONS),
        observation_low=np.full(OBSERVATIONS, -10.0),
        observation_high=np.full(OBSERVATIONS, 10.0),
        limit=1e9,
        discount=0.99,
    )


def call_times(call: Callable[[np.ndarray], Any], calls: int) -> dict[str, Any]:
    """Microseconds of a call with one observation, and what is kept of memory after all of them."""
    rows = np.random.default_rng(1).normal(size=(1000, OBSERVATIONS)).astype(np.float32)
    wall, cpu = np.full(calls, 0.0), np.full(calls, 0.0)  # in memory before we count
    for i in range(-max(1000, calls // 10), calls):  # the first calls fill caches and are not counted
        if i == 0:
            blocks, memory = sys.getallocatedblocks(), resident_bytes()
        row = rows[i % 1000]
        began, used = time.perf_counter_ns(), time.thread_time_ns()
        call(row)
        cpu[i % calls] = time.thread_time_ns() - used
        wall[i % calls] = time.perf_counter_ns() - began
    kept = {"blocks_kept": sys.getallocatedblocks() - blocks, "bytes_kept": resident_bytes() - memory}
    return {
        "wall": _percentiles(wall),
        "cpu": _percentiles(cpu),
        **kept,  # counted before the statistics, which need memory of their own
    }


def _percentiles(nanoseconds: np.ndarray) -> dict[str, float]:
    p10, median, p99 = np.percentile(nanoseconds, (10, 50, 99)) / 1e3
    return {"p10": float(p10), "median": float(median), "p99": float(p99)}


def resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(width: int, calls: int) -> dict[str, Any]:
    from ringfence.deploy import Guard, Policy
    from ringfence.kernels.library import chosen

    policy, nothing = Policy(artifact_of(width)), np.zeros(ACTIONS)

    def guarded(**options: Any) -> dict[str, Any]:
        guard = Guard(policy, nothing, **options)
        times = call_times(lambda row: guard(row, cost=0.0), calls)
        guard.close()
        return times

    with tempfile.TemporaryDirectory() as folder:
        return {
            "width": width,
            "calls": calls,
            "load_average": round(os.getloadavg()[0], 1),
            "scores_computed_by": "numpy" if chosen().path is None else f"kernels/{chosen().name}",
            "import_seconds": import_seconds(),
            "policy": call_times(policy, calls),
            "guard": guarded(),
            "guard_without_detector": guarded(rules={"detector": None}),
            "guard_with_log": guarded(log=Path(folder) / "guard.jsonl"),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    found = measure(options.width, options.calls)
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
