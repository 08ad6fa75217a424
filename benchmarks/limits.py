"""`python -m benchmarks.limits`: one policy for every limit beside a policy trained for each.

    python -m benchmarks.limits train LOG.h5 --task halfcheetah-torque --limits 30 40 45 50 60 --seed 20 --how separate
    python -m benchmarks.limits train LOG.h5 --task halfcheetah-torque --limits 30 40 45 50 60 --seed 20 --how range
    python -m benchmarks.limits speed --width 128
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


def speed(options: argparse.Namespace) -> None:
    """Steps of the policy stage with a range and with one limit, in turns; the fastest of each."""
    import jax
    import jax.numpy as jnp

    from ringfence.training.device import spec_of, to_device
    from ringfence.training.population import compile_programs, zero_sums

    rng, rows = np.random.default_rng(0), 20_000
    log = ringfence.Dataset.from_arrays(
        observations=rng.normal(size=(rows, 17)), actions=rng.uniform(-1, 1, size=(rows, 6)),
        rewards=rng.uniform(size=rows), costs=rng.uniform(size=rows), episode=np.arange(rows) // 1000,
    )  # fmt: skip
    data, spec, seeds = to_device(log), spec_of(log), jnp.zeros(1, jnp.uint32)
    advance = {}
    for name, changed in (("one limit", {}), ("range", {"limits": (30.0, 60.0)})):
        method = ringfence.CPQ(hidden=(options.width, options.width), **changed)
        programs = compile_programs(method, spec, 1, 1)
        state = compile_programs(method, spec, 0, 1).init(seeds, jnp.full(1, 45.0))
        carry = (state, zero_sums(method, spec, 1, 1, state, data))
        advance[name] = (programs.advance, carry)
    best = dict.fromkeys(advance, float("inf"))
    for _ in range(options.rounds):
        for name, (run, carry) in advance.items():
            began = time.process_time()
            after = run((data, seeds), carry, jnp.asarray(0), jnp.asarray(options.steps[0]))
            jax.block_until_ready(after)
            advance[name] = (run, after)
            best[name] = min(best[name], (time.process_time() - began) / options.steps[0])
    for name, seconds in best.items():
        print(f"width {options.width}, {name}: {1e3 * seconds:.3f} ms a step, {seconds / best['one limit']:.3f} times")


def report(options: argparse.Namespace) -> None:
    """The table, and a picture of it, from the rows."""
    rows = [json.loads(line) for line in (FOLDER / "rows.jsonl").read_text().splitlines()]
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        alone = {r["limit"]: r for r in rows if r["task"] == task and r["how"] == "separate"}
        ranged = [r for r in rows if r["task"] == task and r["how"] == "range"]
        lines += [f"## {task}", ""] if not lines else ["", f"## {task}", ""]
        lines += table(
            alone, {steps: {r["limit"]: r for r in ranged if r["steps"] == steps} for steps in steps_of(ranged)}
        )
    (FOLDER / "results.md").write_text(
        "# One policy for every limit, beside a policy trained for each\n\n"
        f"Seed {rows[0]['seed']}, networks of 128 x 128, 500,000 rows, last iterate, {EPISODES} test episodes; means, in "
        "brackets standard deviations\nover episodes. Written by `python -m benchmarks.limits report`; commands that make "
        "the rows are at the top of `benchmarks/limits.py`.\n\n" + "\n".join(lines) + "\n"
    )
    draw(rows)
    print("\n".join(lines))


def steps_of(rows: list[dict[str, Any]]) -> list[int]:
    return sorted({row["steps"] for row in rows})


def table(alone: dict[float, Any], ranged: dict[int, dict[float, Any]]) -> list[str]:
    def cell(row: Any) -> str:
        if row is None:
            return "- | - | -"
        spread = f" ({row['return_std']:.0f})" if "return_std" in row else ""
        outside = "" if row["discounted_cost"] <= row["limit"] else ", OUTSIDE"
        return f"{row['return']:.0f}{spread} | {row['discounted_cost']:.1f}{outside} | {row['length']:.0f}"

    heads = ["trained for it", *(f"range, {steps:,} steps" for steps in ranged)]
    lines = ["| limit | " + " | ".join(f"{head}: return | cost | length" for head in heads) + " |"]
    lines += ["|" + "---|" * (1 + 3 * len(heads))]
    limits = sorted({limit for group in ranged.values() for limit in group} | set(alone))
    for limit in limits:
        cells = [cell(group.get(limit)) for group in (alone, *ranged.values())]
        lines.append(f"| {limit:g} | {' | '.join(cells)} |")
    lines.append("")
    seconds = [row["seconds"] for row in alone.values() if "seconds" in row]
    for steps, group in ranged.items():
        both = sorted(set(group) & set(alone))
        inside = [sum(one[x]["discounted_cost"] <= x for x in both) for one in (group, alone)]
        ratios = [group[x]["return"] / alone[x]["return"] for x in both]
        took = next(iter(group.values()))["seconds"]
        time_ratio = (
            f"{took / np.mean(seconds):.2f} times the time of one ({took:.0f} s)" if seconds else f"{took:.0f} s"
        )
        lines.append(
            f"- range, {steps:,} steps: {inside[0]} of {len(both)} cells inside, trained for it {inside[1]}; return from "
            f"{min(ratios):.2f} to {max(ratios):.2f} of theirs, 0.9 or more in {sum(r >= 0.9 for r in ratios)}; {time_ratio}"
        )
    return lines


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = plt.subplots(2, len(tasks), figsize=(5 * len(tasks), 6), sharex="col", squeeze=False)
    for column, task in enumerate(tasks):
        mine = [row for row in rows if row["task"] == task]
        groups = {"trained for each limit": [r for r in mine if r["how"] == "separate"]}
        for steps in steps_of([r for r in mine if r["how"] == "range"]):
            groups[f"one policy, {steps:,} steps"] = [r for r in mine if r["how"] == "range" and r["steps"] == steps]
        for axis, what in zip(axes[:, column], ("return", "discounted_cost"), strict=True):
            for style, (label, group) in zip(("k.--", "C0o-", "C1s-"), groups.items(), strict=False):
                group = sorted(group, key=lambda row: row["limit"])
                axis.plot([r["limit"] for r in group], [r[what] for r in group], style, label=label)
            axis.set_ylabel(what.replace("_", " "))
            axis.spines[["top", "right"]].set_visible(False)
        limits = sorted({row["limit"] for row in mine})
        axes[1, column].plot(limits, limits, "r:", label="the limit")
        axes[1, column].set_xlabel("limit")
        axes[0, column].set_title(task)
    axes[1, 0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(FOLDER / "limits.png", dpi=120)


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
    two = verbs.add_parser("speed")
    two.set_defaults(run=speed)
    two.add_argument("--width", type=int, default=128)
    two.add_argument("--rounds", type=int, default=12)
    two.add_argument("--steps", type=int, nargs=1, default=[200])
    verbs.add_parser("report").set_defaults(run=report)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
