"""The printed algorithm's fair trial: what the paper leaves open, one change at a time and some together, three seeds.

    PYTHONPATH=../../../src:. python run.py LOG.h5 trials.jsonl [NAME...]

LOG.h5: `ringfence collect --task halfcheetah-torque --size 500000 --seed 0 --out LOG.h5`. HalfCheetah has no terminations, and l = 50 lies between
the costs of its two behaviours (30 and 68). Networks of 128 x 128, 5,000 steps of the CVAE, 10,000 of the policy, last iterate, 10 episodes."""

import json
import math
import sys
import time

import numpy as np
from printed import Printed

from ringfence.data import load_file
from ringfence.evaluation import Evaluator
from ringfence.training.compilation import use_compilation_cache
from ringfence.training.configuration import Member
from ringfence.training.loop import Plan, run

TASK, LIMIT, SEEDS, STEPS = "halfcheetah-torque", 50.0, (0, 1, 2), 10_000
TOGETHER = {"reward_offset": True, "cloned_start": True, "tau": 0.02, "actor_learning_rate": 3e-5}
TRIALS = {
    "as printed": {},
    "d at the 0.9 quantile": {"ood_quantile": 0.9},
    "d at the 0.5 quantile": {"ood_quantile": 0.5},
    "alpha fixed at 1": {"alpha": 1.0},
    "alpha starts at 1": {"alpha_start": 1.0},
    "alpha's rate 0.01": {"alpha_rate": 1e-2},
    "alpha at most 0.1": {"alpha_cap": 0.1},
    "no push (alpha 0)": {"alpha": 0.0},
    "tau 0.02": {"tau": 0.02},
    "learning rates 1e-4": {"learning_rate": 1e-4, "actor_learning_rate": 1e-4},
    "actor's rate 3e-5": {"actor_learning_rate": 3e-5},
    "score-function gradient": {"actor_gradient": "score"},
    "cloned start": {"cloned_start": True},
    "non-negative rewards": {"reward_offset": True},
    "cloned start, non-negative rewards, tau 0.02, actor's rate 3e-5": TOGETHER,
    "the same, score-function gradient": {**TOGETHER, "actor_gradient": "score"},
    "the same, no push": {**TOGETHER, "alpha": 0.0},
    "the same, l_c = 3 l": {**TOGETHER, "ood_limit_ratio": 3.0},
}


def trial(name, log, evaluator):
    settings = dict(TRIALS[name])
    if settings.pop("reward_offset", False):
        settings["reward_offset"] = -float(log.rewards.min())
    method = Printed(hidden=(128, 128), cvae_steps=5_000, **settings)
    curves, metrics = {seed: [] for seed in SEEDS}, []

    def watch(policy, member):
        found = evaluator(policy, 3, seed=10_000, limit=LIMIT, discount=0.99)
        curves[member.seed].append([round(float(found.returns.mean())), round(float(found.discounted_costs.mean()), 1)])
        return {"return": float(found.returns.mean()), "discounted_cost": float(found.discounted_costs.mean())}

    began = time.time()
    members = tuple(Member(seed, LIMIT) for seed in SEEDS)
    plan = Plan(method, members, steps=STEPS, log_every=500, evaluate_every=2_500, checkpoint_every=10**9)
    done = run(log, plan, evaluate=watch, progress=False, observe=metrics.append)
    found = [evaluator(policy, 10, seed=50_000, limit=LIMIT, discount=0.99) for policy in done.policies]
    rows = [row for row in metrics if "indicator" in row]
    shown = ("indicator", "alpha", "ood_rate", "qr_policy", "qc_policy", "qc_data")
    history = {seed: {key: [float(f"{row[key]:.4g}") for row in rows if row.get("seed", seed) == seed] for key in shown} for seed in SEEDS}
    return {
        "name": name,
        "settings": {k: v for k, v in settings.items() if not (isinstance(v, float) and math.isinf(v))},
        "return": [round(float(f.returns.mean()), 1) for f in found],
        "discounted_cost": [round(float(f.discounted_costs.mean()), 2) for f in found],
        "cost_per_step": [round(float(np.sum(f.costs) / np.sum(f.lengths)), 4) for f in found],
        "curves": curves,
        "history": history,
        "seconds": round(time.time() - began, 1),
    }


def main():
    use_compilation_cache()
    log, evaluator = load_file(sys.argv[1]), Evaluator(TASK, parallel=10)
    for name in sys.argv[3:] or TRIALS:
        row = trial(name, log, evaluator)
        with open(sys.argv[2], "a") as file:
            file.write(json.dumps(row) + "\n")
        ends = {k: [h[k][-1] for h in row["history"].values() if h[k]] for k in ("indicator", "qc_policy", "alpha")}
        print(name, row["return"], row["discounted_cost"], ends, row["seconds"], flush=True)


if __name__ == "__main__":
    main()
