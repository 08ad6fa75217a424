"""Pacers whose high gain follows what is left, on states that train.py kept, before the rule was in the code:

    PYTHONPATH=../../../src:. python kick.py TASK LIMIT SEED LOGS STATES SAVER HIGH SPENDING KICKED TRIM

SAVER (actor or clone) saves; HIGH is the gain that spends, SPENDING what a step is expected to cost with it, KICKED the gain while steps cost
less than the pace, TRIM the response of the gain to what is left (0: none)."""

import sys

import numpy as np
from rules import H, N, limit, pace, run, seed, task


def phases(t, budget, memory, spending, ema=0.05, off=4):
    """Which episodes spend and which must slow down, what their steps cost of late and should cost, in units of the pace."""
    fast, had = memory.setdefault("fast", np.zeros(N, bool)), memory.setdefault("had", np.zeros(N, bool))
    cost = 1.0 - (budget - memory.get("last", budget))  # of the last step
    memory["last"] = budget.copy()
    memory["rate"] = rate = (1 - ema) * memory.get("rate", np.zeros(N)) + ema * cost
    little = budget < off
    had |= ~((budget >= 0) & (budget < off))
    fast |= budget > np.maximum((H - t) * (spending - pace) / pace, 10)
    fast &= ~little
    return fast, little & had & ~fast, rate, 1.0 + budget / max(H - t, 1)


def acting(saver, fast, slow, gain, low=0.7):
    names = ["actor" if f or s else saver for f, s in zip(fast, slow, strict=True)]
    return names, np.where(fast, gain, np.where(slow, low, 1.0))


def kick(saver, high, spending, kicked, trim):
    def rule(t, budget, memory):
        fast, slow, rate, wanted = phases(t, budget, memory, spending)
        gain = np.where(rate < 1.0, kicked, np.clip(high + trim * (wanted - rate), high - 0.06, high + 0.06))
        return acting(saver, fast, slow, gain)

    return rule


def show(name, rule):
    print(task, f"{limit:g}", seed, f"{name:32}", run(rule), flush=True)


if __name__ == "__main__":
    saver, *numbers = sys.argv[6:11]
    show(" ".join([saver, "kick", *numbers]), kick(saver, *map(float, numbers)))
