"""What CPQ's policy is worth on the reactor after more and more steps, 40 episodes each, beside BC-Safe; stopped by hand after 25,000:

    PYTHONPATH=../../../src python reactor.py"""

import numpy as np
from ringfence import CPQ, BCSafe
from ringfence.behaviour.collect import collect_dataset
from ringfence.evaluation import Evaluator
from ringfence.training.compilation import use_compilation_cache
from ringfence.training.configuration import Member
from ringfence.training.loop import Plan, run
use_compilation_cache()
log = collect_dataset("reactor", 50_000, seed=0, workers=1)
ev = Evaluator("reactor", parallel=10)
def watch_for(name):
    def watch(policy, member):
        f = ev(policy, 40, seed=90_000, limit=member.limit, discount=0.99)
        print(name, member.limit, member.seed, f"ret {f.returns.mean():.1f} disc {f.discounted_returns.mean():.1f} cost {f.discounted_costs.mean():.2f} episode {f.costs.mean():.2f} over {np.mean(f.discounted_costs>member.limit):.2f}", policy.artifact.metadata.get("handed_out",{}).get("policy"), flush=True)
        return {"return": float(f.returns.mean()), "discounted_cost": float(f.discounted_costs.mean())}
    return watch
members = tuple(Member(s, l) for l in (8.0, 20.0) for s in (0, 1))
run(log, Plan(BCSafe(hidden=(128,128)), members[::2], steps=15000, evaluate_every=15000, checkpoint_every=10**9), evaluate=watch_for("bc-safe"), progress=False)
run(log, Plan(CPQ(), members, steps=50000, evaluate_every=12500, checkpoint_every=10**9), evaluate=watch_for("cpq"), progress=False)
