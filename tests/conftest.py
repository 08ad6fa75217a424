"""Every test process has a cache directory of its own, gone when it ends; and what several modules share."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

if "RINGFENCE_CACHE" not in os.environ:
    os.environ["RINGFENCE_CACHE"] = tempfile.mkdtemp(prefix="ringfence-test-cache-")
    atexit.register(shutil.rmtree, os.environ["RINGFENCE_CACHE"], ignore_errors=True)


def pytest_terminal_summary(terminalreporter):
    """Say loudly what was not tested for want of a browser."""
    from tests.browser import NOT_RUN

    left_out = [report for report in terminalreporter.stats.get("skipped", []) if NOT_RUN in str(report.longrepr)]
    if left_out:
        terminalreporter.section("PAGES WERE NOT TESTED IN A BROWSER", sep="!", red=True, bold=True)
        terminalreporter.line(
            f"{len(left_out)} tests did not run: {NOT_RUN}. Install them (Debian: apt-get install chromium "
            "chromium-driver), or name them with CHROMIUM and CHROMEDRIVER."
        )


# Files that take longest, the longest first. `make test` starts them in this order, so that at its end no worker waits for
# a long one of the other.
LONGEST = (
    "training/test_sharding.py",
    "algorithms/test_contract.py",
    "benchmarks/test_benchmarks.py",
    "experiments/test_ray.py",
    "equations/test_kernel_meaning.py",
    "equations/test_neural_against_tabular.py",
    "endtoend/test_kill.py",
    "endtoend/test_cli.py",
    "endtoend/test_readme.py",
    "endtoend/test_tutorial.py",
    "equations/test_cpq.py",
    "training/test_trust.py",
    "training/test_loop.py",
    "training/test_streaming.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    assert all(file.exists() for file in order), "LONGEST names a file that is not there"
    items.sort(key=lambda item: order.get(item.path, len(LONGEST)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Each program is compiled once for all modules, workers and processes that they start."""
    if "jax" in sys.modules:
        from ringfence.training.compilation import use_compilation_cache

        use_compilation_cache()


@pytest.fixture(scope="module")
def quick_compilation() -> None:
    """For modules whose programs run for milliseconds and compile for seconds."""


_compiled_quickly: str | None = None  # the last module that asked for it, while it lasts


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Quick compilation lasts from a module that asks for it to the next that does not. Compiled programs do not pass from
    one kind to the other: they add floats in another order, and some tests compare with other processes."""
    global _compiled_quickly
    module = item.nodeid.split("::")[0]
    if "quick_compilation" in getattr(item, "fixturenames", ()):
        if _compiled_quickly is None:
            _compile_quickly(True)
        _compiled_quickly = module
    elif _compiled_quickly not in (None, module):
        _compile_quickly(False)
        _compiled_quickly = None


def _compile_quickly(quickly: bool) -> None:
    import jax

    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", quickly)
