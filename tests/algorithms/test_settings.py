"""Settings that make no sense are refused when a method is made."""

import pytest

from ringfence.algorithms import METHODS
from ringfence.errors import InvalidSetting


@pytest.mark.parametrize(
    ("method", "setting", "said"),
    [
        ("cpq", {"alpha": -1.0}, "alpha must be a number of at least 0"),  # Eq. (5) is over alpha >= 0
        ("cpq", {"tau": 2.0}, "tau must be a number above 0, at most 1"),
        ("cpq-paper", {"tau": 0.0}, "tau must be"),
        ("cbpl", {"tau": 1.5}, "tau must be"),
        ("bear-lag", {"tau": -0.1}, "tau must be"),
        ("bcq-lag", {"soft_clipping": 3.0}, "soft_clipping must be a number from 0 to 1"),
    ],
)
def test_a_setting_outside_its_range_is_named_with_the_range(method, setting, said):
    with pytest.raises(InvalidSetting, match=said):
        METHODS[method](**setting)


@pytest.mark.parametrize(
    ("method", "setting"), [("cpq", {"alpha": 0.0}), ("cpq", {"tau": 1.0}), ("bcq-lag", {"soft_clipping": 0.0})]
)
def test_the_ends_of_a_range_belong_to_it(method, setting):
    made = METHODS[method](**setting)
    assert all(getattr(made, name) == value for name, value in setting.items())
