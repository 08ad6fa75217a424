"""ringfence learns a safe policy from logged data.

    import ringfence

    log = ringfence.load("my_logs.parquet")                 # validated, or an error that says what to do
    run = ringfence.train(log, ringfence.CPQ(limit=30.0))   # one policy per seed and limit
    run.policy.save("policy.safetensors")
    policy = ringfence.Policy.load("policy.safetensors")    # NumPy in, NumPy out; no JAX, no log
    action = policy(observation)
    ringfence.evaluate(policy, "hopper-torque").print()     # where a simulator exists

Names are imported when they are first used, so that `import ringfence` is quick and a deployed policy needs no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ringfence.errors import MissingExtra as _MissingExtra
from ringfence.errors import not_installed as _not_installed

__version__ = "0.1.0"

_HOME = {
    "Artifact": "ringfence.deploy",
    "Dataset": "ringfence.data",
    "Guard": "ringfence.deploy",
    "Limit": "ringfence.limits",
    "Pacer": "ringfence.deploy",
    "Policy": "ringfence.deploy",
    "RingfenceError": "ringfence.errors",
    "Run": "ringfence.training",
    "Turns": "ringfence.deploy",
    "evaluate": "ringfence.evaluation",
    "load": "ringfence.api",
    "resume": "ringfence.api",
    "save": "ringfence.data",
    "train": "ringfence.api",
}

__all__ = [
    "Artifact",
    "Dataset",
    "Guard",
    "Limit",
    "Pacer",
    "Policy",
    "RingfenceError",
    "Run",
    "Turns",
    "__version__",
    "evaluate",
    "load",
    "resume",
    "save",
    "train",
]

if TYPE_CHECKING:
    from ringfence.algorithms import *  # noqa: F403
    from ringfence.api import load, resume, train
    from ringfence.data import Dataset, save
    from ringfence.deploy import Artifact, Guard, Pacer, Policy, Turns
    from ringfence.errors import RingfenceError
    from ringfence.evaluation import evaluate
    from ringfence.limits import Limit
    from ringfence.training import Run


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(_imported(_HOME[name]), name)
    if name[:1].isupper():  # a method, of which `METHODS` is the list
        methods = _methods()
        if name in methods:
            return methods[name]
    raise AttributeError(f"module 'ringfence' has no attribute {name!r}; it has {', '.join(__all__)} and the methods")


def __dir__() -> list[str]:
    try:
        return [*__all__, *_methods()]
    except _MissingExtra:  # where only policies are run
        return list(__all__)


def _methods() -> dict[str, Any]:
    return {kind.__name__: kind for kind in _imported("ringfence.algorithms").METHODS.values()}


def _imported(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if missing := _not_installed(error):
            raise missing from error
        raise
