"""`python -m benchmarks.limits`: one policy for every limit beside a policy trained for each.

    python -m benchmarks.limits train LOG.h5 --task halfcheetah-torque --limits 30 40 45 50 60 --seed 20 --how separate
    python -m benchmarks.limits train LOG.h5 --task halfcheetah-torque --limits 30 40 45 50 60 --seed 20 --how range
    python -m benchmarks.limits report

Logs are those of `ringfence collect --task T --size 500000 --seed 0 --out LOG.h5`. A row is kept for every policy and limit:
the last iterate, 20 test episodes that no training has seen. Times are seconds of the processor, so that they do not depend
on what else the machine does.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import ringfence
from benchmarks.child import ROOT
from ringfence.data import load_file
from ringfence.evaluation import Evaluator
from ringfence.experiments.cell import TEST_SEED

FOLDER = ROOT / "results" / "limits"
EPISODES = 20
SETTINGS: dict[str, Any] = {"hidden": (128, 128)}
SILENT = {"progress": False, "log_every": 1_000, "checkpoint_every": 7_500}


def measured(evaluator: Evaluator, policy: Any, limit: float) -> dict[str, Any]:
    found = evaluator(policy, EPISODES, seed=TEST_SEED, limit=limit)
    return {
        "limit": limit,
        "return": float(found.returns.mean()),
        "return_std": float(found.returns.std(ddof=1)),
        "discounted_cost": float(found.discounted_costs.mean()),
        "discounted_cost_std": float(found.discounted_costs.std(ddof=1)),
        "episode_cost": float(found.costs.mean()),
        "length": float(found.lengths.mean()),
        "over": float(np.mean(found.discounted_costs > limit)),
    }


def critics_say(row: dict[str, Any], policy: Any, log: Any) -> dict[str, Any]:
    """What the policy's own critics expect at the starts of logged episodes, at this limit."""
    starts = log.observations[log.episode_starts][:500]
    own = policy.artifact.at_limit(row["limit"]) if policy.artifact.takes_limit else policy.artifact
    return {**row, "qc_start": float(own.cost_to_go(starts).mean()), "qr_start": float(own.return_to_go(starts).mean())}


def train(options: argparse.Namespace) -> None:
    log, evaluator = load_file(options.log), Evaluator(options.task)
    named = {"task": options.task, "seed": options.seed, "how": options.how, "note": options.note}
    changed = dict(pair.split("=") for pair in options.set)
    settings = SETTINGS | {name: json.loads(value) for name, value in changed.items()}
    if options.how == "separate":
        for limit in options.limits:
            began = time.process_time()
            run = ringfence.train(
                log, ringfence.CPQ(limit=limit, **settings), steps=options.steps[0], seeds=[options.seed], **SILENT
            )
            took = {"steps": options.steps[0], "seconds": round(time.process_time() - began, 1)}
            keep(options.out, [critics_say(measured(evaluator, run.policy, limit), run.policy, log) | took | named])
        return
    with tempfile.TemporaryDirectory() as folder:
        seconds, path = 0.0, Path(folder) / "run"
        method = ringfence.CPQ(limits=(min(options.limits), max(options.limits)), **settings)
        for i, steps in enumerate(options.steps):
            began = time.process_time()
            if i == 0:
                run = ringfence.train(log, method, steps=steps, seeds=[options.seed], out=path, **SILENT)
            else:
                run = ringfence.resume(path, log, steps=steps, progress=False)
            seconds += time.process_time() - began
            took = {"steps": steps, "seconds": round(seconds, 1)}
            rows = [measured(evaluator, run.policy, limit) for limit in options.limits]
            keep(options.out, [critics_say(row, run.policy, log) | took | named for row in rows])


def keep(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for row in rows:
            print(
                json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items() if v != ""}),
                file=file,
            )
            print(f"{row['task']} {row['how']} {row['steps']} limit {row['limit']:g}: return {row['return']:.0f}, "
                  f"cost {row['discounted_cost']:.1f}, Qc {row['qc_start']:.1f}, length {row['length']:.0f}, "
                  f"{row['seconds']} s", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("train")
    one.set_defaults(run=train)
    one.add_argument("log", type=Path)
    one.add_argument("--task", required=True)
    one.add_argument("--limits", type=float, nargs="+", required=True)
    one.add_argument("--how", choices=("separate", "range"), required=True)
    one.add_argument("--seed", type=int, default=20)
    one.add_argument("--steps", type=int, nargs="+", default=[15_000])
    one.add_argument("--set", nargs="+", default=[], metavar="NAME=JSON")
    one.add_argument("--note", default="")
    one.add_argument("--out", type=Path, default=FOLDER / "rows.jsonl")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
