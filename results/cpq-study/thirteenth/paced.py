"""The policy's file that the code writes of a state that train.py kept, alone and with a `Pacer`, 20 episodes:

    PYTHONPATH=../../../src:. python paced.py TASK LIMIT SEED LOGS STATES"""

import jax
from rules import limit, seed, session, state, task

from ringfence.deploy import Pacer, Policy
from ringfence.evaluation import Evaluator

session.state, session.policy_steps = jax.tree.map(lambda x: x[None], state), 15000
policy, evaluator = Policy(session.artifact(0)), Evaluator(f"{task}-torque", parallel=10)


def numbers(policy):
    found = evaluator(policy, 20, seed=50000, limit=limit, discount=0.99)
    pace = found.costs / found.lengths
    return f"ret {found.returns.mean():.0f} std {found.returns.std():.0f} disc {found.discounted_costs.mean():.1f} pace {found.costs.sum() / found.lengths.sum():.3f} over {(pace > 0.01 * limit).mean():.2f} maxpace {pace.max():.3f} len {found.lengths.mean():.0f}"


facts = policy.artifact.metadata
print(task, f"{limit:g}", seed, facts.get("handed_out"), facts.get("pacing"), sorted(policy.artifact.networks), flush=True)
print("   handed out", numbers(policy), flush=True)
if "pacing" in facts:
    print("   paced     ", numbers(Pacer(policy)), flush=True)
