"""What a policy's file says of the choice between several policies. No JAX here: `Run.load` needs none."""

from collections.abc import Mapping
from typing import Any, NamedTuple

# In the metadata of a policy's file; CPQ writes it (`choice_in_words` in `algorithms/cpq_handout.py`)
KEY = "handed_out"


class HandedOutFacts(NamedTuple):
    """Which policy was handed out, and what a model of the plant expects of it."""

    is_clone: bool  # of the log's safe episodes; else it is the averaged actor
    gain: float
    expected_cost: float  # discounted
    can_be_paced: bool = False
    can_take_turns: bool = False

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> "HandedOutFacts | None":
        """None where the file says nothing of a choice, or where somebody edited it and a part is of another type."""
        said = metadata.get(KEY)
        if not isinstance(said, dict):
            return None
        policy, gain, cost = (said.get(key) for key in ("policy", "gain", "expected_cost"))
        if not (isinstance(policy, str) and isinstance(gain, float) and isinstance(cost, float)):
            return None
        can = (bool(said.get(key)) for key in ("can_be_paced", "can_take_turns"))
        return cls(policy == "safe clone", gain, cost, *can)
