"""Run one measurement in a process of its own: `python -m benchmarks.child module:function '{"argument": 1}'`.

The result is the last line of its output, as JSON.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class MeasurementFailed(RuntimeError):
    pass


def start(
    function: str,
    arguments: Mapping[str, Any],
    *,
    cores: tuple[int, ...] = (),
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> "subprocess.Popen[str]":
    """Start a measurement, on these cores only if any are named: JAX and PyTorch then make as many threads."""
    command = [python, "-m", "benchmarks.child", function, json.dumps(arguments), json.dumps(cores)]
    variables = {**os.environ, "OMP_NUM_THREADS": str(len(cores) or os.cpu_count() or 1), **(environment or {})}
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process: "subprocess.Popen[str]") -> dict[str, Any]:
    output, errors = process.communicate()
    if process.returncode != 0:
        raise MeasurementFailed(errors.strip().splitlines()[-1] if errors.strip() else f"status {process.returncode}")
    measured: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return measured


def measure(function: str, arguments: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    return result(start(function, arguments, **options))


def main() -> None:
    function, arguments, cores = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    if cores and hasattr(os, "sched_setaffinity"):  # before JAX counts the cores
        os.sched_setaffinity(0, cores)
    module, name = function.split(":")
    print(json.dumps(getattr(importlib.import_module(module), name)(**arguments)))


if __name__ == "__main__":
    main()
