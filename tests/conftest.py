"""Every test process has a cache directory of its own."""

import os
import tempfile

os.environ.setdefault("RINGFENCE_CACHE", tempfile.mkdtemp(prefix="ringfence-test-cache-"))
