"""The default with each of its parts removed: three tasks, seeds 0, 1 and 2 in one program.

    PYTHONPATH=../../../src python run.py LOGS trials.jsonl [--tasks hopper ...] [--parts NAME ...] [--limit 40]

LOGS has halfcheetah.h5, hopper.h5 and walker2d.h5 (`ringfence collect --task T-torque --size 500000 --seed 0 --out T.h5`). Networks of
128 x 128, 15,000 steps, the last iterate, 20 episodes a policy: of what is handed out, and of the averaged actor itself, because a clone that is handed
out in its place hides what a part does ("no choice"). A row for each part and task is written when it is done, and what the file has already is left
out: start the command again after a stop."""

import argparse
import json
import time
from dataclasses import fields
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from ringfence import CPQ
from ringfence.algorithms.cpq import PaperCPQ
from ringfence.algorithms.cpq_departures import penalised_value
from ringfence.data import load_file
from ringfence.evaluation import Evaluator
from ringfence.training.compilation import use_compilation_cache
from ringfence.training.configuration import Member
from ringfence.training.loop import Plan, run

SEEDS, STEPS, DISCOUNT = (0, 1, 2), 15_000, 0.99
TASKS = {"halfcheetah": 50.0, "hopper": 30.0, "walker2d": 30.0}  # each with its limit
SIZE = {"hidden": (128, 128)}


class LastActor(CPQ):
    def policy_actor(self, state):
        return state.actor

    def hand_out(self, state):
        return None


class WithAverage:
    """The averaged actor is exported too."""

    def export(self, state):
        export = super().export(state)
        return export._replace(networks={**export.networks, "averaged_actor": state.averaged_actor})


def with_average(method):
    settings = {field.name: getattr(method, field.name) for field in fields(method)}
    return type(f"WithAverage{type(method).__name__}", (WithAverage, type(method)), {})(**settings)


class EndOfCost(CPQ):
    def cost_of_end(self, limit):
        return 0.0 * limit


class PrintedTarget(CPQ):
    reward_target = PaperCPQ.reward_target


class PrintedObjective(CPQ):
    """Eq. (4), on the scale on which the anchor is weighed."""

    def actor_objective(self, qr, qc, limit):
        return jnp.where(qc <= limit, penalised_value(qr, qc, limit, 0.0), 0.0)


class PrintedCritics(CPQ):
    fresh_critics = PaperCPQ.fresh_critics


class PrintedAlpha(CPQ):
    choose_ood, next_alpha = PaperCPQ.choose_ood, PaperCPQ.next_alpha


TERMINATING = ("hopper", "walker2d")
PARTS = {  # name: method, tasks on which it differs from the default
    "the default": (CPQ(**SIZE), TASKS),
    "no feedback": (CPQ(feedback=1e-12, **SIZE), TASKS),  # 0 would leave the model out, and with it the choice
    "no anchor": (CPQ(anchor=0.0, **SIZE), TASKS),
    "no push (alpha 0)": (CPQ(alpha=0.0, **SIZE), TASKS),
    "an anchor that does not grow with terminations": (CPQ(termination_anchor=0.0, **SIZE), TERMINATING),
    "an anchor to all logged actions alike": (CPQ(unsafe_anchor=1.0, **SIZE), TASKS),
    "the reward target as printed": (PrintedTarget(**SIZE), TASKS),
    "the actor's objective as printed": (PrintedObjective(**SIZE), TASKS),
    "critics as printed (no LayerNorm, no scale)": (PrintedCritics(**SIZE), TASKS),
    "no noise on the next actions": (CPQ(target_noise=0.0, **SIZE), TASKS),
    "an episode's end is the end of its cost": (EndOfCost(**SIZE), TERMINATING),
    "the last actor, and no choice": (LastActor(**SIZE), TASKS),
    "the push as printed": (PrintedAlpha(**SIZE), TASKS),
    "equal weights and no noise": (CPQ(unsafe_anchor=1.0, target_noise=0.0, **SIZE), ("halfcheetah",)),
}


def numbers(found):
    return {
        "return": [round(float(f.returns.mean()), 1) for f in found],
        "discounted_cost": [round(float(f.discounted_costs.mean()), 2) for f in found],
        "cost_per_step": [round(float(np.sum(f.costs) / np.sum(f.lengths)), 4) for f in found],
        "length": [round(float(f.lengths.mean()), 1) for f in found],
    }


def trial(part, task, limit, log, evaluator):
    method = with_average(PARTS[part][0])
    curves = {seed: [] for seed in SEEDS}

    def watch(policy, member):
        found = evaluator(policy, 3, seed=10_000, limit=limit, discount=DISCOUNT)
        curves[member.seed].append(round(float(found.returns.mean())))
        return {"return": float(found.returns.mean()), "discounted_cost": float(found.discounted_costs.mean())}

    began = time.time()
    members = tuple(Member(seed, limit) for seed in SEEDS)
    plan = Plan(method, members, steps=STEPS, log_every=2_500, evaluate_every=5_000, checkpoint_every=10**9)
    metrics = []
    done = run(log, plan, evaluate=watch, progress=False, observe=metrics.append)
    found = [evaluator(policy, 20, seed=50_000, limit=limit, discount=DISCOUNT) for policy in done.policies]
    averages = [
        evaluator(lambda o, a=policy.artifact: np.tanh(a.evaluate("averaged_actor", o).mean), 20, seed=50_000, limit=limit, discount=DISCOUNT)
        for policy in done.policies
    ]
    last = [row for row in metrics if "indicator" in row][-len(SEEDS) :]
    shown = ("indicator", "ood_rate", "alpha", "qr_policy", "qc_policy", "slack")
    return {
        "part": part,
        "task": task,
        "limit": limit,
        "seeds": SEEDS,
        **numbers(found),
        "averaged": numbers(averages),
        "handed_out": [policy.metadata.get("handed_out", {}).get("policy", "averaged actor") for policy in done.policies],
        "curves": curves,
        "metrics": [{key: float(f"{row[key]:.4g}") for key in shown if key in row} for row in last],
        "seconds": round(time.time() - began, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--limit", type=float, help="in place of the tasks' own")
    options = parser.parse_args()
    use_compilation_cache()
    rows = map(json.loads, options.out.read_text().splitlines()) if options.out.exists() else ()
    done = {(row["part"], row["task"], row["limit"]) for row in rows}
    given = {task: (load_file(options.logs / f"{task}.h5"), Evaluator(f"{task}-torque", parallel=10)) for task in options.tasks}
    for part in options.parts:
        for task in options.tasks:
            limit = options.limit or TASKS[task]
            if (part, task, limit) in done or task not in PARTS[part][1]:
                continue
            row = trial(part, task, limit, *given[task])
            with open(options.out, "a") as file:
                file.write(json.dumps(row) + "\n")
            print(task, part, row["return"], row["cost_per_step"], row["length"], "|", *row["averaged"].values(), row["seconds"], flush=True)


if __name__ == "__main__":
    main()
