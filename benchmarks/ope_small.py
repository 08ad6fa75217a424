"""How well small logs judge: bounds of the cost of clones of the reactor's controllers, against the truth.

    python -m benchmarks.ope_small results/ope/small.jsonl --rows 20000 60000 110000 --seeds 401 402 403 404
    python -m benchmarks.ope_small results/ope/small.jsonl --report

For each size and seed a log is collected, four fifths of its episodes train five clones (three of all rows, two of the
safe episodes), and the others judge them: with one draw of random features, and with as many as `ringfence judge` has. The
truth is the mean of 200 fresh episodes. What the file has already is left out."""

import argparse
import json
from pathlib import Path

import numpy as np

import ringfence
from ringfence.behaviour.collect import collect_dataset
from ringfence.evaluation import Evaluator
from ringfence.evaluation.ope.judge import DRAWS, Judge

LIMIT, EPISODES = 20.0, 200
CLONE = {"limit": LIMIT, "hidden": (32,), "learning_rate": 3e-3, "batch_size": 64}


def judged(rows, seed, evaluator):
    """A row for each clone and number of draws."""
    learned, judging = collect_dataset("reactor", rows, seed=seed, workers=1).hold_out(0.2, 0)
    policies = []
    for method, seeds in ((ringfence.BC(**CLONE), (0, 1, 2)), (ringfence.BCSafe(**CLONE), (0, 1))):
        policies += ringfence.train(learned, method, seeds=seeds, steps=1500, progress=False).policies
    judges = {draws: Judge(judging, learned, draws=draws) for draws in (1, DRAWS)}
    for number, policy in enumerate(policies):
        costs = evaluator(policy, EPISODES, seed=9_000_000, discount=0.99).discounted_costs
        for draws, judge in judges.items():
            found = judge(policy, LIMIT)
            yield {
                "rows": rows, "seed": seed, "policy": number, "draws": draws, "judging_rows": found.rows,
                "true_cost": float(costs.mean()), "true_cost_error": float(costs.std() / EPISODES**0.5),
                "cost": found.cost.value, "cost_lower": found.cost.lower, "cost_upper": found.cost.upper,
                "judgeable": found.judgeable,
            }  # fmt: skip


def report(found):
    """A line for each size and number of draws."""
    for rows, draws in sorted({(row["rows"], row["draws"]) for row in found}):
        mine = [row for row in found if (row["rows"], row["draws"]) == (rows, draws)]
        sure = [row for row in mine if row["judgeable"]]
        under = sum(row["cost_upper"] >= row["true_cost"] for row in sure)
        width = np.median([row["cost_upper"] / row["true_cost"] - 1 for row in sure]) if sure else np.nan
        print(
            f"{rows} rows, {draws} draws: {len(sure)} of {len(mine)} judgeable, {under} of {len(sure)} truly under the "
            f"bound, which lies {width:.0%} above the truth (median)"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    found = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    evaluator = Evaluator("reactor", parallel=10)
    for rows in options.rows:
        for seed in options.seeds:
            if any((row["rows"], row["seed"]) == (rows, seed) for row in found):
                continue
            new = list(judged(rows, seed, evaluator))
            found += new
            with options.out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
            report(new)
    if options.report:
        report(found)


if __name__ == "__main__":
    main()
