"""docs/add-a-method.md, followed word for word."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ringfence.data import save
from tests.logs import narrow_log

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "add-a-method.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """A copy of the package with the page's file and the page's line, and nothing else."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(
        ROOT / "src", source, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    *file, line = blocks("python")
    algorithms = source / "ringfence" / "algorithms"
    (algorithms / "cautious_bc.py").write_text("\n\n".join(file))
    home = algorithms / "__init__.py"
    anchor = "from ringfence.algorithms.cbpl"
    assert line.startswith("from ringfence.algorithms.cautious_bc")
    home.write_text(home.read_text().replace(anchor, line + anchor, 1))
    return source


def python(extended, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(extended)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True, **options
    ).stdout


@pytest.mark.slow
def test_the_pages_method_trains_through_the_command_line(extended, tmp_path):
    save(narrow_log(200), tmp_path / "log.parquet")
    [commands] = blocks("bash")
    listed, trained = (line.split()[1:] for line in commands.splitlines())
    settings = python(extended, "-m", "ringfence", *listed, cwd=tmp_path)
    assert "weight" in settings
    assert "Cautious behaviour cloning" in python(extended, "-m", "ringfence", "methods", cwd=tmp_path)
    trained[trained.index("weight=2") : trained.index("weight=2")] = ["hidden=[8]", "batch_size=8"]
    python(extended, "-m", "ringfence", *trained, "--steps", "5", cwd=tmp_path)
    code = (
        "import ringfence, numpy as np; policy = ringfence.Policy.load('run/policy.safetensors');"
        "print(policy.metadata['method'], policy(np.zeros(3)).shape, ringfence.CautiousBC.name)"
    )
    assert python(extended, "-c", code, cwd=tmp_path).strip() == "cautious-bc (2,) cautious-bc"


@pytest.mark.slow
def test_the_contract_test_finds_the_pages_method_and_it_passes(extended):
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "-q", "-k", "cautious-bc"]
    said = python(extended, *words, "tests/algorithms/test_contract.py", cwd=ROOT)
    passed = re.search(r"(\d+) passed", said)
    assert passed, said
    promised = (ROOT / "tests" / "algorithms" / "test_contract.py").read_text().count("@every_method")
    assert int(passed[1]) >= promised  # some promises are checked on several logs


@pytest.mark.slow
def test_the_pages_loss_is_what_it_says(extended):
    """Two rows whose costs differ by 1: the cheaper one counts e times as much at weight 1."""
    code = (
        "import jax, jax.numpy as jnp, numpy as np;"
        "from ringfence.algorithms.cautious_bc import weighted_cloning_loss as loss;"
        "from ringfence.algorithms import Batch; from ringfence.networks import TanhGaussianActor, tanh_log_prob;"
        "actor = TanhGaussianActor(1, 1, (4,), key=jax.random.key(0)); s = jnp.ones((2, 1)); a = jnp.array([[0.1], [-0.4]]);"
        "z = jnp.zeros(2); batch = Batch(s, a, z, jnp.array([0.5, 1.5]), s, z, s);"
        "print(float(loss(actor, batch, 1.0)), *map(float, tanh_log_prob(actor(s), a)))"
    )
    value, first, second = map(float, python(extended, "-c", code).split())
    assert value == pytest.approx(-(np.exp(-0.5) * first + np.exp(-1.5) * second) / 2, rel=1e-5)
