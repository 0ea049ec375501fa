"""Activation and dropout between the two products of a feed-forward layer, and what of them is kept."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

# kept for backward, of h and a = dropout(activation(h)), both [rows, inner]. OUTPUT has a bit of each element
# as well, but for relu; CODES are 8 bits of each element of h, with a float32 scale for 128 of them
BOTH, HIDDEN, NEITHER, OUTPUT, CODES = "h and a", "h", "nothing", "a", "codes of h"


class Middle(NamedTuple):
    """The activation between the products, and dropout after it."""

    activation: str
    keep: str
    threshold: int = 0  # of dropout, in 65536ths
    seed: Tensor | None = None  # int64 [1]; None where nothing is dropped

    @property
    def scale(self) -> float:
        """Factor of kept elements: exactly 1 / (1 - the share that is dropped)."""
        return 1 / (1 - self.threshold / 65536) if self.threshold < 65536 else 0.0

    @property
    def branches(self) -> bool:
        """Whether a bit of each element is kept."""
        return self.keep == OUTPUT and self.activation != "relu"


def threshold_of(p: float) -> int:
    """The share of dropout in 65536ths, rounded up. Raises torch's ValueError outside of [0, 1]."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return math.ceil(p * 65536)
