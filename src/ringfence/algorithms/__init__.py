"""The methods, one file each. A new one joins by adding its file and a line here."""

from ringfence.algorithms.bc import BC
from ringfence.algorithms.bc_safe import BCSafe
from ringfence.algorithms.bcq_lag import BCQLag
from ringfence.algorithms.bear_lag import BEARLag
from ringfence.algorithms.cbpl import CBPL
from ringfence.algorithms.cpq import CPQ
from ringfence.algorithms.interface import Batch, Method, Sample, Spec, Stage

METHODS: dict[str, type[Method]] = {
    CPQ.name: CPQ,
    BC.name: BC,
    BCSafe.name: BCSafe,
    BCQLag.name: BCQLag,
    BEARLag.name: BEARLag,
    CBPL.name: CBPL,
}

__all__ = ["BC", "CBPL", "CPQ", "METHODS", "BCQLag", "BCSafe", "BEARLag", "Batch", "Method", "Sample", "Spec", "Stage"]
