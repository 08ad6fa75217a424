import sys
import numpy as np
import rules
from rules import *

import ringfence.tasks as T


def kick(saver, high, spending, kicked, ema=0.05, low=0.7, off=4, trim=0.0):
    def rule(t, budget, memory):
        needed = np.maximum((H - t) * (spending - pace) / pace, 10)
        fast = memory.setdefault("fast", np.zeros(N, bool))
        had = memory.setdefault("had", np.zeros(N, bool))
        last = memory.get("last", budget)
        rate = memory.setdefault("rate", np.zeros(N))
        cost = 1.0 - (budget - last)  # of the last step, in units of the pace
        memory["last"] = budget.copy()
        memory["rate"] = rate = rate + ema * (cost - rate)
        little = budget < off
        had |= ~((budget >= 0) & (budget < off))
        fast |= budget > needed
        fast &= ~little
        slow = little & had & ~fast
        wanted = 1.0 + budget / max(H - t, 1)
        g = np.where(rate < 1.0, kicked, high)
        if trim:
            g = np.where(rate >= 1.0, np.clip(high + trim * (wanted - rate), high - 0.06, high + 0.06), kicked)
        names = ["actor" if f or s else saver for f, s in zip(fast, slow)]
        return names, np.where(fast, g, np.where(slow, low, 1.0))

    return rule


def show(name, rule):
    print(task, f"{limit:g}", seed, f"{name:32}", run(rule), flush=True)


