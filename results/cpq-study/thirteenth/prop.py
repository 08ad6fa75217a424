from kick import *

def prop(saver, high, spending, k=0.2, down=0.06, up=0.1, ema=0.05, low=0.7, off=4):
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
        g = np.clip(high + k * (wanted - rate), high - down, high + up)
        names = ["actor" if f or s else saver for f, s in zip(fast, slow)]
        return names, np.where(fast, g, np.where(slow, low, 1.0))
    return rule

import sys
saver, spending = sys.argv[6], float(sys.argv[7])
for k, down, up in ((0.2, 0.06, 0.1), (0.3, 0.1, 0.1)):
    show(f"{saver} {spending} prop {k} {down} {up}", prop(saver, 1.15, spending, k, down, up))
