"""`python -m ringfence`."""

import sys

from ringfence.cli import main

sys.exit(main())
