"""What is handed out of each state that train.py kept, after more and more steps, 20 episodes each:

    PYTHONPATH=../../../src python handed.py LOGS STATES"""

import subprocess
import sys
from pathlib import Path

if len(sys.argv) == 3:
    for path in sorted(Path(sys.argv[2]).glob("*.eqx")):
        task, limit, seed, steps = path.stem.split("-")
        subprocess.run([sys.executable, __file__, task, limit, seed, steps, *sys.argv[1:]], check=True)
else:
    from candidates import found, limit, seed, steps, task, true

    if found is not None:
        print(f"{task} {limit:g} {seed} {steps}", "clone" if found.choice.clone else f"gain {found.choice.gain:.3f}", true(lambda s: found.actor.mode(s)), flush=True)
