"""What a cost limit means.

Inside ringfence a limit is a bound on the expected discounted cost from each state, as in the CPQ paper. People
may give it in two other ways. All three describe the same steady cost c per step over a horizon of H steps:

    per step     c
    per episode  c H
    discounted   c (1 - discount^H) / (1 - discount)      (c / (1 - discount) when H is infinite)

The conversion happens here and nowhere else.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from ringfence.errors import InvalidSetting
from ringfence.values import LARGEST, is_number, to_float32

if TYPE_CHECKING:
    import numpy as np

LimitKind = Literal["discounted", "episode", "step"]
DISCOUNT = 0.99  # of rewards and costs, unless another is given


@dataclass(frozen=True)
class Limit:
    """A cost limit: `discounted` is what the algorithms see; `per_step` and `per_episode` say it in other words.

    >>> limit = Limit.of(300, "episode", discount=0.99, horizon=1000)
    >>> round(limit.discounted, 2), round(limit.per_step, 2), round(limit.per_episode)
    (30.0, 0.3, 300)
    """

    discounted: float
    discount: float = DISCOUNT
    horizon: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.discount < 1:
            raise InvalidSetting(f"discount must be a number from 0 up to (but not) 1, not {self.discount}")
        if not self.horizon > 0:
            raise InvalidSetting(f"horizon must be a positive number of steps, not {self.horizon}")
        if not 0 <= self.discounted <= LARGEST:
            raise InvalidSetting(f"limit must be a finite cost of at least 0 and at most 3.4e38, not {self.discounted}")

    @classmethod
    def of(
        cls, value: float, kind: LimitKind = "discounted", *, discount: float = DISCOUNT, horizon: float = math.inf
    ) -> "Limit":
        """A limit given as a discounted sum, per episode (needs the horizon) or per step."""
        if kind not in ("discounted", "episode", "step"):
            raise InvalidSetting(f"limit kind must be 'discounted', 'episode' or 'step', not {kind!r}")
        if kind == "episode" and math.isinf(horizon):
            raise InvalidSetting("a limit per episode needs the episode's horizon in steps")
        steps = cls(0.0, discount, horizon).discounted_steps
        scale = {"discounted": 1.0, "step": steps, "episode": steps / horizon}[kind]
        return cls(value * scale, discount, horizon)

    @property
    def discounted_steps(self) -> float:
        """The discounted number of steps in the horizon: what a cost of 1 per step adds up to."""
        return discounted_steps(self.discount, self.horizon)

    @property
    def per_step(self) -> float:
        return self.discounted / self.discounted_steps

    @property
    def per_episode(self) -> float:
        """Infinite when the horizon is."""
        return self.per_step * self.horizon if self.discounted else 0.0

    def __str__(self) -> str:
        episode = (
            f"{self.per_episode:.4g} per episode of {self.horizon:.0f} steps"
            if math.isfinite(self.horizon)
            else "unbounded per episode (no horizon known)"
        )
        return f"{self.discounted:.4g} discounted (at {self.discount:g}) = {self.per_step:.4g} per step = {episode}"


def check_limit(limit: Any) -> None:
    """Raise unless it can be a bound on a cost."""
    if not is_number(limit) or limit < 0:
        raise InvalidSetting(f"limit must be a finite cost of at least 0, not {limit!r}")


def check_range(limits: Any) -> None:
    """Raise unless `limits` are the two ends of a range of limits."""
    numbers = isinstance(limits, list | tuple) and len(limits) == 2 and all(map(is_number, limits))
    if not (numbers and limits[0] >= 0 and to_float32(limits[0]) < to_float32(limits[1])):
        raise InvalidSetting(
            f"a range of limits is two different finite costs of at least 0, the smaller first, such as 20 60, not "
            f"{' '.join(map(str, limits)) if isinstance(limits, list | tuple) else limits!r}"
        )


def scaled_to_range(limit: Any, limits: tuple[float, float]) -> Any:
    """A limit, or an array of them, as a network takes it that was trained for this range: from -1 to 1 over it.

    >>> scaled_to_range(20.0, (20.0, 60.0)), scaled_to_range(50.0, (20.0, 60.0))
    (-1.0, 0.5)
    """
    least, greatest = limits
    return 2.0 * (limit - least) / (greatest - least) - 1.0


def discounted_steps(discount: float, horizon: float) -> float:
    """1 + discount + discount^2 + ...: as many terms as the horizon has steps."""
    return float((1.0 - discount**horizon) / (1.0 - discount))


@overload
def over_horizon(infinite: float, discount: float, horizon: float) -> float: ...
@overload
def over_horizon(infinite: float, discount: float, horizon: "np.ndarray") -> "np.ndarray": ...
def over_horizon(infinite: float, discount: float, horizon: Any) -> Any:
    """The part of a discounted sum over an infinite horizon that falls into its first `horizon` steps, at a steady pace; an
    array for an array of horizons."""
    return infinite * (1.0 - discount**horizon)


def horizon_words(discount: float, horizon: float) -> str:
    """How much of a sum over an infinite horizon falls into the first `horizon` steps: "over 50 steps it is ..."."""
    part = f"{over_horizon(1.0, discount, horizon):.3g}"
    return "as good as the same" if part == "1" else f"{part} times as much at a steady pace"
