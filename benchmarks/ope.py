"""How well policies are judged from a log alone: estimates against the truth, for many policies.

    python -m benchmarks.ope results/ope --tasks tabular reactor        # judge and measure; goes on where it stopped
    python -m benchmarks.ope results/ope --report                       # tables and pictures of what is there

A row per policy goes to `policies.jsonl` as soon as it is measured. Truth is exact in finite problems, and the mean of
fresh episodes elsewhere. Judging logs are other logs than those that policies were trained on.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from ringfence.behaviour.collect import collect_dataset
from ringfence.behaviour.controllers import pi_controller
from ringfence.behaviour.shipped import shipped_policy
from ringfence.data import Dataset
from ringfence.evaluation import Evaluator
from ringfence.evaluation.ope.judge import Judge
from ringfence.tabular.cmdp import deterministic_policy
from ringfence.tabular.examples import garnet, random_policy
from ringfence.tabular.logs import action_indices, embed_actions

ROBOTS = ("hopper", "halfcheetah", "walker2d")


def append(out, row):
    with open(out / "policies.jsonl", "a") as file:
        print(json.dumps(row), file=file, flush=True)
    print(
        f"{row['task']} {row['policy']}: cost {row['cost']:.2f} <= {row['cost_upper']:.2f}, true {row['true_cost']:.2f}; "
        f"return {row['return']:.1f}, true {row['true_return']:.1f}; {row['verdict']} ({row['seconds']:.0f} s)",
        flush=True,
    )


def done(out):
    file = out / "policies.jsonl"
    return (
        {(r["task"], r["policy"]) for r in map(json.loads, file.read_text().splitlines())} if file.exists() else set()
    )


def record(out, task, kind, name, judge, policy, limit, truth):
    began = time.monotonic()
    j = judge(policy, limit, name=name)
    seconds = time.monotonic() - began
    returned, cost, error, episodes = truth()
    append(out, {
        "task": task, "kind": kind, "policy": name, "limit": limit, "rows": j.rows,
        "return": j.returned.value, "return_lower": j.returned.lower, "return_upper": j.returned.upper,
        "cost": j.cost.value, "cost_lower": j.cost.lower, "cost_upper": j.cost.upper,
        "true_return": returned, "true_cost": cost, "true_cost_error": error, "true_episodes": episodes,
        "share_over": j.share_over_limit, "worst_tenth": j.worst_tenth,
        "judgeable": j.judgeable, "verdict": j.verdict, "reason": j.reason,
        "foreign_on_path": j.support.foreign_on_path, "nearest": j.support.nearest,
        "effective_episodes": j.support.effective_episodes, "sampling": j.sampling_spread,
        "calibration": j.calibration_spread, "importance_episodes": j.second_opinion.effective_episodes,
        "largest_source": max(source.cost for source in j.sources), "seconds": seconds,
    })  # fmt: skip


def measured(evaluator, policy, episodes):
    def truth():
        result = evaluator(policy, episodes, seed=2_000_000, discount=0.99)
        costs = result.discounted_costs
        return (
            float(result.discounted_returns.mean()),
            float(costs.mean()),
            float(costs.std() / episodes**0.5),
            episodes,
        )

    return truth


# Finite problems

STEPS, DISCOUNT = 40, 0.95


def finite_log(cmdp, behaviours, episodes, rng):
    """Episodes of 40 steps; states one-hot, actions embedded in [-1, 1]."""
    columns = []
    for source, policy in enumerate(behaviours):
        state = rng.choice(cmdp.n_states, episodes, p=cmdp.start)
        for step in range(STEPS):
            action = (policy[state].cumsum(1) > rng.random((episodes, 1))).argmax(1)
            following = (cmdp.transition[state, action].cumsum(1) > rng.random((episodes, 1))).argmax(1)
            columns.append((np.arange(episodes) + source * episodes, np.full(episodes, step), state, action, following))
            state = following
    episode, step, state, action, following = (np.concatenate(c) for c in zip(*columns, strict=True))
    order = np.lexsort((step, episode))
    episode, step, state, action, following = (c[order] for c in (episode, step, state, action, following))
    one_hot = np.eye(cmdp.n_states)
    return Dataset.from_arrays(
        observations=one_hot[state], actions=embed_actions(action, cmdp.n_actions),
        rewards=cmdp.reward[state, action], costs=cmdp.cost[state, action], next_observations=one_hot[following],
        terminations=np.zeros(len(state), bool), truncations=step == STEPS - 1, source=episode // episodes,
        source_names=("first", "second"), action_low=[-1], action_high=[1],
    )  # fmt: skip


def sampled(table):
    """The controller of a table of probabilities, on one-hot states."""

    def act(observations, rng):
        choice = (table[observations.argmax(1)].cumsum(1) > rng.random((len(observations), 1))).argmax(1)
        return embed_actions(choice, table.shape[1]).astype(np.float32)

    return act


def finite_truth(cmdp, policy):
    moved = np.einsum("sa,sat->st", policy, cmdp.transition)
    values = np.zeros((2, cmdp.n_states))
    for _ in range(STEPS):
        values = (
            np.stack([(policy * signal).sum(1) for signal in (cmdp.reward, cmdp.cost)]) + DISCOUNT * values @ moved.T
        )
    return float(cmdp.start @ values[0]), float(cmdp.start @ values[1]), 0.0, None


def tabular(out, problems=4, policies=12):
    known = done(out)
    for problem in range(problems):
        rng = np.random.default_rng(100 + problem)
        cmdp = garnet(rng, states=12, actions=4, branching=3, discount=DISCOUNT)
        tables = [0.6 * random_policy(rng, cmdp, 0.3) + 0.1 for _ in range(2)]
        log, reference = (finite_log(cmdp, tables, episodes, rng) for episodes in (60, 40))

        def one_hot(observations, actions, cmdp=cmdp):
            pairs = observations.argmax(1) * cmdp.n_actions + action_indices(actions, cmdp.n_actions)
            return np.concatenate([np.ones((len(pairs), 1)), np.eye(cmdp.n_states * cmdp.n_actions)[pairs]], 1).astype(
                np.float32
            )

        behaviours = {name: sampled(t) for name, t in zip(("first", "second"), tables, strict=True)}
        judge = Judge(log, reference, discount=DISCOUNT, features=one_hot, behaviours=behaviours)
        for number in range(policies):
            score = rng.random(cmdp.reward.shape)
            if number % 3 == 0:  # greedy for reward, with some cost in mind: what training would find
                score = cmdp.reward - rng.uniform(0, 3) * cmdp.cost + 0.1 * score
            if number % 3 == 1:  # the modes of behaviours, some actions changed
                score = tables[number % 2] + 0.5 * score
            policy = deterministic_policy(score.argmax(1), cmdp.n_actions)
            name = f"garnet {problem}, policy {number}"
            if ("tabular", name) not in known:
                act = sampled(policy)
                record(out, "tabular", "table", name, judge, lambda o, act=act: act(o, np.random.default_rng(0)),
                       cmdp.limit, lambda policy=policy, cmdp=cmdp: finite_truth(cmdp, policy))  # fmt: skip


# The reactor


def reactor_policies():
    """(name, kind, policy): PI controllers good and bad, noisy clones' settings, and what our methods learn."""
    rng = np.random.default_rng(7)
    for _ in range(24):
        setpoint, gain = rng.uniform(343, 357), float(np.exp(rng.uniform(np.log(2), np.log(12))))
        time_constant = rng.uniform(0.6, 2.0)
        yield (
            f"pi {setpoint:.1f} {gain:.1f} {time_constant:.1f}",
            "controller",
            pi_controller(setpoint, gain, time_constant),
        )
    yield from trained("reactor", collect_dataset("reactor", 24_000, seed=50, workers=1), (8.0, 14.0, 20.0, 30.0))


def trained(task, log, limits, steps=1500, seeds=(0, 1)):
    import ringfence

    small = {"hidden": (64, 64), "batch_size": 128}
    methods = [("bc", ringfence.BC(**small)), ("cpq", ringfence.CPQ(**small, cvae_steps=800))]
    for updates in (steps // 3, steps):
        for name, method in methods:
            limits_of = limits[:1] if name == "bc" else limits
            run = ringfence.train(log, method, limits=limits_of, seeds=seeds, steps=updates, progress=False)
            for member, policy in zip(run.members, run.policies, strict=True):
                yield f"{name} {member.limit:g} seed {member.seed} steps {updates}", name, policy
    for limit in limits[:3]:
        run = ringfence.train(log, ringfence.BCSafe(limit=limit, **small), seeds=seeds, steps=steps, progress=False)
        for member, policy in zip(run.members, run.policies, strict=True):
            yield f"bc-safe {limit:g} seed {member.seed} steps {steps}", "bc-safe", policy


def reactor(out, rows=24_000, episodes=100):
    known, evaluator = done(out), Evaluator("reactor", parallel=10)
    judge = Judge(*(collect_dataset("reactor", n, seed=s, workers=1) for n, s in ((rows, 60), (rows // 2, 61))))
    for name, kind, policy in reactor_policies():
        if ("reactor", name) not in known:
            record(out, "reactor", kind, name, judge, policy, 20.0, measured(evaluator, policy, episodes))


# The robots


def robot_policies(task):
    """The shipped behaviours without noise, scaled, and blends of the two."""
    safe, unsafe = (shipped_policy(task, name) for name in ("safe", "unsafe"))
    yield "safe, mode", "behaviour", safe
    yield "unsafe, mode", "behaviour", unsafe
    for share in (0.9, 0.8):
        yield f"safe x {share}", "scaled", lambda o, share=share: share * safe(o)
        yield f"unsafe x {share}", "scaled", lambda o, share=share: share * unsafe(o)
    for share in (0.2, 0.5, 0.8):
        yield f"blend {share}", "blend", lambda o, share=share: share * safe(o) + (1 - share) * unsafe(o)


def robot(out, name, log, episodes=100, rows=60_000):
    task = f"{name}-torque"
    known, evaluator = done(out), Evaluator(task, parallel=10)
    judging, reference = log.hold_out(0.5, 0)
    keep = np.searchsorted(np.cumsum(judging.episode_ends - judging.episode_starts), rows)
    judge = Judge(judging.select_episodes(np.arange(keep)), reference)
    for policy_name, kind, policy in robot_policies(task):
        if (task, policy_name) not in known:
            record(out, task, kind, policy_name, judge, policy, 30.0, measured(evaluator, policy, episodes))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=[], choices=("tabular", "reactor", *ROBOTS))
    parser.add_argument("--logs", type=Path, help="directory of ROBOT.h5, made by `ringfence collect`")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for task in options.tasks:
        if task == "tabular":
            tabular(options.out)
        elif task == "reactor":
            reactor(options.out, episodes=options.episodes)
        else:
            import ringfence

            robot(options.out, task, ringfence.load(options.logs / f"{task}.h5"), options.episodes)
    if options.report:
        from benchmarks.ope_report import report

        report(options.out)


if __name__ == "__main__":
    main()
