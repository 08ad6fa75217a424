"""The methods, one file each. A new one joins by adding its file and a line here."""

from ringfence.algorithms.cpq import CPQ
from ringfence.algorithms.interface import Batch, Method, Sample, Spec, Stage

METHODS: dict[str, type[Method]] = {CPQ.name: CPQ}

__all__ = ["CPQ", "METHODS", "Batch", "Method", "Sample", "Spec", "Stage"]
