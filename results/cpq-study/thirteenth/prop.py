"""The rule that is in the code now, before it was: one response of the high gain to what is left, between two bounds.

    PYTHONPATH=../../../src:. python prop.py TASK LIMIT SEED LOGS STATES SAVER SPENDING"""

import sys

import numpy as np
from kick import acting, phases, show


def prop(saver, high, spending, response, down, up):
    def rule(t, budget, memory):
        fast, slow, rate, wanted = phases(t, budget, memory, spending)
        return acting(saver, fast, slow, np.clip(high + response * (wanted - rate), high - down, high + up))

    return rule


if __name__ == "__main__":
    saver, spending = sys.argv[6], float(sys.argv[7])
    for response, down, up in ((0.2, 0.06, 0.1), (0.3, 0.1, 0.1)):
        show(f"{saver} {spending} prop {response} {down} {up}", prop(saver, 1.15, spending, response, down, up))
