"""What the model of the plant says of the averaged actor and of the clone with a gain, and what is true, on a state that
`../fourteenth/train.py` kept:

    PYTHONPATH=../../../src:../fourteenth python clone_gain.py TASK LIMIT SEED STEPS LOGS STATES

"calm" is without noise, "rough" and "smooth" with that of costs and of returns in the choice, "shaken" with that of the
episodes that show falls: return @ cost, and what is completed. After the bars 20 true episodes."""

import candidates as c
import jax.numpy as jnp
import numpy as np

from ringfence.algorithms.cpq_handout import NOISE, SHAKEN, SHAKEN_EPISODES

growth = float(c.session.method._anchor_growth(c.state))
about = f"{c.task} {c.limit:g} {c.seed} {c.steps}"
POLICIES = {"actor": c.of(), "clone": c.of(1.0), "clone1.03": c.of(1.0, 1.03), "clone1.05": c.of(1.0, 1.05)}
for name, act in POLICIES.items():
    noises = {"calm": (0.0, 32), "smooth": (NOISE / growth, 32), "rough": (NOISE / growth**0.5, 32), "shaken": (SHAKEN, SHAKEN_EPISODES)}
    said = {word: np.asarray(c.imagined(act, jnp.asarray(noise), count)) for word, (noise, count) in noises.items()}
    words = " ".join(f"{word} {x[0]:.0f}@{x[1]:.1f} {x[2]:.2f}" for word, x in said.items())
    print(f"{about} {name:9} {words} || {c.true(act)}", flush=True)
if c.found is not None:
    choice = c.found.choice
    print(f"{about} handed out: {'clone' if choice.clone else 'actor'} x {choice.gain:.3f} {choice.returned:.0f}@{choice.cost:.1f}", flush=True)
