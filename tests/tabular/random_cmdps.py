"""Random CMDPs shared by the tests of this folder; each index is its own seed, so a failure names its case."""

import numpy as np

from ringfence.tabular.cmdp import Cmdp
from ringfence.tabular.examples import garnet


def make_cmdp(seed: int) -> tuple[np.random.Generator, Cmdp]:
    rng = np.random.default_rng(seed)
    size = {"states": int(rng.integers(2, 7)), "actions": int(rng.integers(2, 5))}
    return rng, garnet(rng, **size, discount=float(rng.choice([0.5, 0.8, 0.9])))
