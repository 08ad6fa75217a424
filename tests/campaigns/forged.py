"""Policy files that are whole and signed, with absurd numbers inside: refused, or each action is a number inside the bounds,
or the policy says that it cannot act. So must the guard's action be, always."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ringfence.deploy import Artifact, Guard, Policy
from ringfence.errors import NonFiniteValue, RingfenceError
from tests.deploy.artifacts import NETWORKS, SCORES, random_artifact, random_observations

VALUES = (0.0, -0.0, 1e-45, 1e-38, 1e-20, 1e10, 1e19, 1e25, 9.9e36, 1.1e37, 1e38, 3.4e38)
VECTORS = ("observation_mean", "observation_std", "action_low", "action_high")


def forge(folder: Path, rng: random.Random) -> tuple[str, str]:
    """The outcome of one forged file, and what was forged; an outcome in capitals is a fault."""
    kind = rng.choice(list(NETWORKS))
    honest = random_artifact(kind, SCORES if rng.random() < 0.5 else ())
    names = rng.sample([*VECTORS, *honest.tensors], rng.randint(1, 4))
    what = {name: (rng.choice((-1, 1)) * rng.choice(VALUES), rng.random() < 0.5) for name in names}
    case = f"{kind} with {what}"
    try:
        path = forged(honest, what).save(folder / "forged.safetensors", overwrite=True)
        policy = Policy.load(path)
    except RingfenceError:
        return "refused", case
    rows = random_observations(6, seed=rng.randrange(1000))
    return acts(policy, rows, rng), case


def forged(artifact: Artifact, what: dict[str, tuple[float, bool]]) -> Artifact:
    """The artifact with these values in the named vectors and tensors, in all places or in one."""
    changed: dict[str, Any] = {}
    for name, (value, everywhere) in what.items():
        array = np.array(getattr(artifact, name) if name in VECTORS else artifact.tensors[name])
        array[... if everywhere else (0,) * array.ndim] = value
        changed[name] = array
    vectors = {name: array for name, array in changed.items() if name in VECTORS}
    tensors = {name: array for name, array in changed.items() if name not in VECTORS}
    return replace(artifact, tensors={**artifact.tensors, **tensors}, **vectors)


def acts(policy: Policy, rows: np.ndarray, rng: random.Random) -> str:
    low, high = policy.artifact.action_low, policy.artifact.action_high
    sampled = {"deterministic": False, "rng": np.random.default_rng(rng.randrange(1000))}
    outcome = "acts"
    for given, options in ((rows, {}), (rows, sampled), (rows[0], {}), (rows[1], sampled)):
        try:
            actions = policy(given, **options)
        except NonFiniteValue:
            outcome = "says that it cannot act"
            continue
        if not ((actions >= low) & (actions <= high)).all():  # false of NaN
            return "NO ACTION"
    guard = Guard(policy, fallback=(low.astype(np.float64) + high) / 2)
    guarded = np.array([guard(row) for row in rows])
    return outcome if ((guarded >= low) & (guarded <= high)).all() else "NO GUARDED ACTION"
