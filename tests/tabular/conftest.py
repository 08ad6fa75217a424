import numpy as np
import pytest

from ringfence.tabular.cmdp import Cmdp

from .random_cmdps import make_cmdp


@pytest.fixture(params=range(10))
def random_cmdp(request: pytest.FixtureRequest) -> tuple[np.random.Generator, Cmdp]:
    """A generator and a CMDP made with it."""
    return make_cmdp(request.param)
