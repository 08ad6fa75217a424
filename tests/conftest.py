"""Every test process has a cache directory of its own, gone when it ends."""

import atexit
import os
import shutil
import tempfile

if "RINGFENCE_CACHE" not in os.environ:
    os.environ["RINGFENCE_CACHE"] = tempfile.mkdtemp(prefix="ringfence-test-cache-")
    atexit.register(shutil.rmtree, os.environ["RINGFENCE_CACHE"], ignore_errors=True)
