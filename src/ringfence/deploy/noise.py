"""Where a sampled policy's randomness comes from."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Noise(Protocol):
    """A NumPy `Generator`, or a `RowNoise`. The first axis of `size` is the batch."""

    def standard_normal(self, size: tuple[int, ...]) -> np.ndarray: ...

    def random(self, size: tuple[int, ...]) -> np.ndarray: ...


class RowNoise:
    """One generator per row of the batch, so that a row's noise does not depend on its neighbours."""

    # Annotations are strings because NumPy loads `random`, 15 ms, when it is named.
    def __init__(self, generators: "Sequence[np.random.Generator]"):
        self.generators = list(generators)

    def standard_normal(self, size: tuple[int, ...]) -> np.ndarray:
        return np.stack([generator.standard_normal(size[1:]) for generator in self._of(size)])

    def random(self, size: tuple[int, ...]) -> np.ndarray:
        return np.stack([generator.random(size[1:]) for generator in self._of(size)])

    def _of(self, size: tuple[int, ...]) -> "list[np.random.Generator]":
        if size[0] != len(self.generators):
            raise ValueError(f"noise for {size[0]} rows asked of {len(self.generators)} generators")
        return self.generators
