"""How well policies are judged from a log alone: estimates against the truth, for many policies.

    python -m benchmarks.ope results/ope --tasks tabular reactor                  # goes on where it stopped
    python -m benchmarks.ope results/ope --tasks hopper halfcheetah walker2d --logs DIRECTORY
    python -m benchmarks.ope results/ope --report                                 # tables and pictures of what is there

A row per policy goes to `policies.jsonl` as soon as it is judged. Truth is exact in finite problems, and the mean of
fresh episodes elsewhere. No policy is judged by episodes that it was trained on. Trained policies and true episodes are
kept under `--work`, so that they need not be made again when estimates change. Seconds are of processor time: what a
judgement takes on one core that does nothing else.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from benchmarks.ope_finite import tabular
from benchmarks.ope_policies import PARTS, ROBOTS, TRAINED, reactor_policies, robot_policies, saved_policies
from ringfence.behaviour.collect import collect_dataset
from ringfence.evaluation import Evaluator
from ringfence.evaluation.ope.judge import Judge
from ringfence.evaluation.ope.judge_inputs import at_most
from ringfence.training.defaults import CONFIDENCE

TAIL = 0.1
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99)  # bounds of the cost are kept at these confidences


def append(out, row):
    with open(out / "policies.jsonl", "a") as file:
        print(json.dumps(row), file=file, flush=True)
    print(
        f"{row['task']} {row['policy']}: cost {row['cost']:.2f} <= {row['cost_upper']:.2f}, true {row['true_cost']:.2f}; "
        f"return {row['return']:.1f}, true {row['true_return']:.1f}; {row['verdict']} "
        f"(judgeable {row['judgeable']}, {row['seconds']:.0f} s)",
        flush=True,
    )


def done(out):
    file = out / "policies.jsonl"
    return (
        {(r["task"], r["policy"]) for r in map(json.loads, file.read_text().splitlines())} if file.exists() else set()
    )


def record(out, task, kind, name, judge, policy, limit, truth, part="development"):
    """Judge a policy and write the judgement beside the truth (true_* of the row)."""
    began = time.process_time()
    evidence = judge.evidence(policy, limit)
    j = judge.judgement(evidence, limit, CONFIDENCE, name)
    seconds = time.process_time() - began
    bounds = [judge.judgement(evidence, None, level, name).cost.upper for level in LEVELS]
    append(out, {
        "task": task, "kind": kind, "policy": name, "part": part, "limit": limit, "rows": j.rows,
        "return": j.returned.value, "return_lower": j.returned.lower, "return_upper": j.returned.upper,
        "cost": j.cost.value, "cost_lower": j.cost.lower, "cost_upper": j.cost.upper,
        **truth(), "share_over": j.share_over_limit, "worst_tenth": j.worst_tenth,
        "judgeable": j.judgeable, "verdict": j.verdict, "reason": j.reason,
        "foreign_on_path": j.support.foreign_on_path, "nearest": j.support.nearest,
        "effective_episodes": j.support.effective_episodes, "amplification": j.support.amplification,
        "sampling": j.sampling_spread, "distance": j.support.distance, "foreign_modelled": j.support.foreign_modelled,
        "leaving": j.support.leaving,
        "return_is_bounded": j.return_is_bounded, "backups": [j.backups.value, j.backups.upper],
        "modelled": j.modelled and [j.modelled.value, j.modelled.upper],
        "calibration": j.calibration_spread, "importance_episodes": j.second_opinion.effective_episodes,
        "largest_source": max(source.cost for source in j.sources), "noisy": j.noisy, "seconds": seconds,
        "levels": LEVELS, "cost_bounds": bounds, "plants": by_plant(evidence.rolled),
    })  # fmt: skip


def by_plant(rolled):
    """What each plant of the model says of the cost: the least, the most, and the most without ends by levels."""
    if rolled is None:
        return None
    return [[round(float(x), 4) for x in costs] for costs in (*rolled.ends("cost"), rolled.greatest_cost)]


def measured(evaluator, policy, episodes, limit, kept):
    """The truth by fresh episodes, kept in a file."""
    if not kept.exists():
        result = evaluator(policy, episodes, seed=2_000_000, discount=0.99)
        sums = {"returns": result.discounted_returns, "costs": result.discounted_costs, "lengths": result.lengths}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({name: values.tolist() for name, values in sums.items()}))
    sums = json.loads(kept.read_text())
    costs = np.sort(sums["costs"])
    return {
        "true_return": float(np.mean(sums["returns"])), "true_cost": float(costs.mean()),
        "true_cost_error": float(costs.std() / len(costs) ** 0.5), "true_episodes": len(costs),
        "true_share_over": float(np.mean(costs > limit)),
        "true_worst_tenth": float(costs[-max(int(TAIL * len(costs)), 1) :].mean()),
        "true_length": float(np.mean(sums["lengths"])),
    }  # fmt: skip


def judge_all(out, task, judge, cases, limit, options, horizon=None):
    """Measure and judge what is not yet there. Without a judge only make the policies and the truth."""
    known, evaluator = done(out), Evaluator(task, parallel=10, horizon=horizon)
    for case in cases:
        kept = options.work / "truth" / task / f"{case.name.replace(' ', '_')}.json"
        truth = measured(evaluator, case.policy, options.episodes, limit, kept)
        if judge is not None and (task, case.name) not in known:
            record(out, task, case.kind, case.name, judge, case.policy, limit, lambda truth=truth: truth, case.part)
        elif judge is None:
            print(task, case.name, {name: round(value, 2) for name, value in truth.items()}, flush=True)


def reactor(out, options, rows=24_000):
    learned, judging, reference = (
        collect_dataset("reactor", n, seed=s, workers=1) for n, s in ((rows, 50), (rows, 60), (rows // 2, 61))
    )
    judge = None if options.truth_only else Judge(judging, reference)
    judge_all(out, "reactor", judge, reactor_policies(learned, options.work, options.methods), 20.0, options)


def robot(out, name, options):
    """Policies learn from three fifths of the log in `--logs`. What no policy has seen judges: the other two fifths, or the
    log in `--judging`."""
    import ringfence

    learned, judging = ringfence.load(options.logs / f"{name}.h5").hold_out(0.4, 0)
    judge = None
    if not options.truth_only:
        judging = ringfence.load(options.judging / f"{name}.h5") if options.judging else judging
        judge = Judge(at_most(judging, options.rows, 0), learned, horizon=options.horizon)
    cases = []
    for part in options.parts if options.policies else ():
        cases += saved_policies(options.policies / part / name, part)
    cases += robot_policies(name, learned, options.work, options.methods, options.parts)
    judge_all(out, f"{name}-torque", judge, cases, ROBOTS[name][0], options, options.horizon)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=[], choices=("tabular", "reactor", *ROBOTS))
    parser.add_argument(
        "--logs", type=Path, help="directory of ROBOT.h5, made by `ringfence collect --task ROBOT-torque`"
    )
    parser.add_argument(
        "--judging",
        type=Path,
        help="another such directory, collected with another seed, to judge policies saved elsewhere",
    )
    parser.add_argument("--rows", type=int, default=200_000, help="of a robot's log that judge, in whole episodes")
    parser.add_argument("--policies", type=Path, help="saved policies to judge as well: PART/ROBOT/NAME.safetensors")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="which of them")
    parser.add_argument("--horizon", type=int, default=300, help="of a robot's sums, in steps (0.99^300 = 0.05)")
    parser.add_argument("--episodes", type=int, default=100, help="that tell the truth")
    parser.add_argument("--methods", nargs="*", default=TRAINED, choices=TRAINED, help="whose policies are judged")
    parser.add_argument("--work", type=Path, default=Path("ope-work"), help="keeps trained policies and true episodes")
    parser.add_argument(
        "--truth-only", action="store_true", help="make policies and their true episodes, judge nothing"
    )
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for task in options.tasks:
        if task == "tabular":
            tabular(options.out, record, done(options.out))
        elif task == "reactor":
            reactor(options.out, options)
        else:
            robot(options.out, task, options)
    if options.report:
        from benchmarks.ope_report import report

        report(options.out)


if __name__ == "__main__":
    main()
