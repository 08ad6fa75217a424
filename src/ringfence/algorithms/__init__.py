"""The methods, one file each. A new one joins by its line among the imports: `METHODS` holds every method that is imported
here."""

from typing import Any

from ringfence.algorithms.batches import Batch as Batch
from ringfence.algorithms.bc import BC as BC
from ringfence.algorithms.bc_safe import BCSafe as BCSafe
from ringfence.algorithms.bcq_lag import BCQLag as BCQLag
from ringfence.algorithms.bear_lag import BEARLag as BEARLag
from ringfence.algorithms.cbpl import CBPL as CBPL
from ringfence.algorithms.cpq import PaperCPQ as PaperCPQ
from ringfence.algorithms.cpq_default import CPQ as CPQ
from ringfence.algorithms.interface import Export as Export
from ringfence.algorithms.interface import Exports
from ringfence.algorithms.interface import Learner as Learner
from ringfence.algorithms.interface import PolicyLearner as PolicyLearner
from ringfence.algorithms.interface import Sample as Sample
from ringfence.algorithms.interface import Spec as Spec
from ringfence.algorithms.interface import Stage as Stage


def _is_method(value: Any) -> bool:
    return isinstance(value, type) and isinstance(getattr(value, "name", None), str) and issubclass(value, Exports)


METHODS: dict[str, type[PolicyLearner]] = {CPQ.name: CPQ}
METHODS |= {value.name: value for value in list(vars().values()) if _is_method(value)}
