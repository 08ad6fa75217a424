"""The methods of osrl-lib, trained as its own trainers do, in the environment of `make bench-peers`.

`train` saves the networks every so many steps, with the seconds since the command; `serve` answers with the actions of what
was saved. Observations are normalised and actions in [-1, 1], as ours are.
"""

import json
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.osrl_cpq import SilentLogger, without_its_logger

OSRL_METHODS = ("CPQ", "BCQL", "BEARL", "COptiDICE")


def episode_limit(limit: float, discount: float, horizon: int) -> float:
    """The cost limit of an episode that the library turns into this bound on the discounted cost."""
    return limit * horizon * (1.0 - discount) / (1.0 - discount**horizon)


def model_of(name: str, data: Any, limit: float, width: int, discount: float, horizon: int) -> Any:
    """The library's model with its own defaults, but for sizes, which are ours, and the limit."""
    without_its_logger()
    from osrl import algorithms

    obs, act = data["observations"].shape[1], data["actions"].shape[1]
    sizes = {"a_hidden_sizes": [width, width], "c_hidden_sizes": [width, width]}
    bound = {"cost_limit": episode_limit(limit, discount, horizon), "episode_len": horizon, "gamma": discount}
    if name == "COptiDICE":
        spread = {
            "observations_std": data["observations"].std(0, keepdims=True),
            "actions_std": data["actions"].std(0, keepdims=True),
        }
        start = float(data["starts"].mean())
        return algorithms.COptiDICE(
            obs, act, 1.0, f_type="softchi", init_state_propotion=start, num_nu=2, num_chi=2, **spread, **sizes, **bound
        )
    more = {"vae_hidden_sizes": width, "sample_action_num": 10, "num_q": 2, "num_qc": 1 if name == "CPQ" else 2}
    return getattr(algorithms, name)(obs, act, 1.0, **more, **sizes, **bound)


def train(
    name: str,
    arrays: str,
    folder: str,
    began: float,
    limit: float,
    steps: int,
    every: int,
    seed: int = 0,
    width: int = 256,
    batch: int = 256,
    discount: float = 0.99,
    horizon: int = 1000,
) -> dict[str, Any]:
    """Train, and save after every `every` steps; the seconds since `began` at which each was saved."""
    import torch

    torch.manual_seed(seed)
    data = dict(np.load(arrays))
    model = model_of(name, data, limit, width, discount, horizon)
    from osrl import algorithms

    trainer = getattr(algorithms, f"{name}Trainer")(model, None, logger=SilentLogger())
    columns = ("observations", "next_observations", "actions", "rewards", "costs", "continues", "starts")
    rows = [torch.from_numpy(data[column]) for column in columns]
    saved: dict[str, Any] = {}
    for step in range(1, steps + 1):
        chosen = torch.randint(0, len(rows[0]), (batch,))
        s, following, a, r, c, continues, starts = (column[chosen] for column in rows)
        if name == "COptiDICE":
            trainer.train_one_step((s, following, a, r, c, 1 - continues, starts))
        else:
            trainer.train_one_step(s, following, a, r, c, 1 - continues)
        if step % every == 0:
            seconds, cpu = time.time() - began, time.process_time()
            np.savez(Path(folder) / f"{step}.npz", **{k: v.numpy() for k, v in model.state_dict().items()})
            saved[str(step)] = {"seconds": seconds, "cpu_seconds": cpu}
    return saved


def serve(name: str, arrays: str, limit: float, width: int = 256, discount: float = 0.99, horizon: int = 1000) -> None:
    """Answer lines of JSON until the input ends: {"load": FILE} or {"observations": [[...], ...]}."""
    import torch

    with redirect_stdout(sys.stderr):  # the library prints when it is imported
        model = model_of(name, dict(np.load(arrays)), limit, width, discount, horizon)
    model.eval()
    for line in sys.stdin:
        asked = json.loads(line)
        if "load" in asked:
            saved = np.load(asked["load"])
            model.load_state_dict({key: torch.from_numpy(saved[key]) for key in saved.files})
            answer: Any = "loaded"
        else:
            observations = np.asarray(asked["observations"], np.float32)
            with torch.no_grad():
                answer = [np.asarray(model.act(row, True, True)[0]).tolist() for row in observations]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(**json.loads(sys.argv[1]))
