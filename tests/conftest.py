"""Every test process has a cache directory of its own, gone when it ends; and what several modules share."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

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


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """For modules whose programs run for milliseconds and compile for seconds. Compiled programs do not pass from such a
    module to others or from others to it: they add floats in another order, and some tests compare with other processes."""
    import jax

    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
