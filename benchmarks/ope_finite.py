"""Finite problems for `benchmarks.ope`: the truth is known to machine precision."""

import numpy as np

from ringfence.data import Dataset
from ringfence.evaluation.ope.judge import Judge
from ringfence.tabular.cmdp import deterministic_policy
from ringfence.tabular.examples import garnet, random_policy
from ringfence.tabular.logs import action_indices, embed_actions

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
        source_names=("first", "second")[: len(behaviours)], action_low=[-1], action_high=[1],
    )  # fmt: skip


def sampled(table):
    """The controller of a table of probabilities, on one-hot states."""

    def act(observations, rng):
        choice = (table[observations.argmax(1)].cumsum(1) > rng.random((len(observations), 1))).argmax(1)
        return embed_actions(choice, table.shape[1]).astype(np.float32)

    return act


def finite_truth(cmdp, policy):
    """The expectations exactly; the tail by 4,000 episodes."""
    drawn = finite_log(cmdp, [policy], 4000, np.random.default_rng(1))
    costs = np.sort(drawn.costs.reshape(-1, STEPS) @ DISCOUNT ** np.arange(STEPS))
    tail = {
        "true_share_over": float(np.mean(costs > cmdp.limit)),
        "true_worst_tenth": float(costs[-len(costs) // 10 :].mean()),
    }
    moved = np.einsum("sa,sat->st", policy, cmdp.transition)
    values = np.zeros((2, cmdp.n_states))
    for _ in range(STEPS):
        values = (
            np.stack([(policy * signal).sum(1) for signal in (cmdp.reward, cmdp.cost)]) + DISCOUNT * values @ moved.T
        )
    returned, cost = (float(cmdp.start @ value) for value in values)
    return {"true_return": returned, "true_cost": cost, "true_cost_error": 0.0, "true_episodes": None, **tail}


def tabular(out, record, known, problems=4, policies=12):
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
        judge = Judge(log, reference, discount=DISCOUNT, features=one_hot, behaviours=behaviours, exact=True)
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
