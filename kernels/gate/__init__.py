"""The correctness gate: no implementation is timed before it has passed."""

from .gate import Gate
from .poison import poisoned_memory
from .revision import REVISION
from .tolerance import TOLERANCES, Tolerance

__all__ = ["REVISION", "TOLERANCES", "Gate", "Tolerance", "poisoned_memory"]
