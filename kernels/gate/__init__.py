"""The correctness gate: no implementation is timed before it has passed."""

from .gate import Gate
from .poison import poisoned_memory
from .tolerance import TOLERANCES, Tolerance

__all__ = ["TOLERANCES", "Gate", "Tolerance", "poisoned_memory"]
