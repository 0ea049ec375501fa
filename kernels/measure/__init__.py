"""Measure implementations on this machine: gate first, clock second, in a process that may die.

`python -m kernels.measure lstm hidden=64,128 batch=8` from a checkout, with torch alone installed.
"""

# ruff: noqa: E402 - the filter must stand before the import of torch
import warnings

# torch works without NumPy, and says at its import that it is not there; the child process comes here too
warnings.filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)

from .environment import current_environment, default_torch_device
from .identity import identify
from .policies import COMPARE, ONCE, QUICK, THOROUGH, Policy, UnknownPolicy, policy
from .probe import probe
from .session import Session

__all__ = [
    "COMPARE",
    "ONCE",
    "QUICK",
    "THOROUGH",
    "Policy",
    "Session",
    "UnknownPolicy",
    "current_environment",
    "default_torch_device",
    "identify",
    "policy",
    "probe",
]
