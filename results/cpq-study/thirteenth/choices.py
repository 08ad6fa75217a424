"""What the code's rule would hand out from a state that train.py kept, and what it is worth:

    PYTHONPATH=../../../src:. python choices.py TASK LIMIT SEED LOGS STATES"""

import equinox as eqx
import jax.numpy as jnp
import rules
from rules import always, limit, run, seed, session, state, task

from ringfence.algorithms.cpq_handout import GAINS, HandOut, choice_in_words, expected_of, gains_around_one

method = session.method
growth = method._anchor_growth(state)
end = jnp.asarray(method.cost_of_end(state.limit), jnp.float32)
given = HandOut(state.plant, state.averaged_actor, state.clone, state.starts, state.limit, end, growth)
found = method.hand_out(state)
expected = eqx.filter_jit(expected_of)(given, gains_around_one(growth), int(state.imagined.horizon), 0.99)
print(task, f"{limit:g}", seed, "growth", round(float(growth), 2), "error", round(float(state.plant.error), 4))
for name, values in expected._asdict().items():
    print("   ", name, " ".join(f"{float(v):.4g}" for v in values))
if found is not None:
    words = choice_in_words(found.choice, bool(found.worth_pacing))
    rules.means["handed"] = lambda s: found.actor(s).mean
    print("    handed out:", words, run(always("handed")))
for name in ("actor", "clone", "clone1", "costly"):
    print(f"    {name:8}", run(always(name)), flush=True)
