"""A log of the reactor, and runs on it."""

import pytest

import ringfence
from ringfence import api
from ringfence.behaviour.collect import collect

SMALL = {"hidden": (32,), "batch_size": 64, "learning_rate": 3e-3}


@pytest.fixture(scope="package")
def log_file(tmp_path_factory):
    return collect("reactor", 12_000, tmp_path_factory.mktemp("log") / "reactor.h5", seed=4, workers=1)


@pytest.fixture(scope="package")
def runs(log_file, tmp_path_factory):
    """Behaviour cloning of all and of the safe part, with the same episodes set aside; and one with none."""
    folder = tmp_path_factory.mktemp("runs")
    for name, kind in (("bc", ringfence.BC), ("bc-safe", ringfence.BCSafe)):
        method = kind(limit=20.0, **SMALL)
        api.train(log_file, method, steps=1500, out=folder / name, holdout=0.4, keep_every=700, progress=False)
    api.train(log_file, ringfence.BC(limit=20.0, **SMALL), steps=2, out=folder / "all", progress=False)
    return folder


@pytest.fixture(scope="package")
def for_two_limits(log_file, tmp_path_factory):
    """Behaviour cloning for a limit of 60 and for one of 0.5, which no policy of the reactor keeps."""
    out = tmp_path_factory.mktemp("limits") / "run"
    method = ringfence.BC(**SMALL)
    api.train(log_file, method, limits=[60.0, 0.5], steps=1500, out=out, holdout=0.4, progress=False)
    return out
