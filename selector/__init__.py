"""Choose the fastest implementation of a layer for its hyperparameters, from measurements.

    import selector

    choice = selector.choose(hidden=512, batch=64)
    print(choice.explain())
    layer = choice.build()

Importing this is light: torch, scikit-learn and SQLAlchemy are imported when they are first needed.
"""

import sys
import warnings
from importlib import import_module, metadata
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from kernel_selector.kernels.contract import (
    Device,
    InvalidHyperparameter,
    Problem,
    SelectorError,
    UnknownDevice,
    UnknownHyperparameter,
    UnknownImplementation,
    UnknownOperator,
    UnsupportedProblem,
)

from .api import choose, evaluate, fits, optimize, pareto, plan, replay, restore, train
from .errors import InvalidRequest, ModelVersionMismatch, NoMeasurements, NothingFits, ServiceError
from .models.inspection.inspect_model import inspect_model
from .models.inspection.report import ModelInspection
from .planning.fits import Fit
from .planning.training_setup import Training
from .profiling.calibration import calibrate
from .profiling.profile import profile
from .profiling.quickstart import quickstart
from .selection.choice import Candidate, Choice
from .selection.client import Client
from .selection.query import Query
from .selection.selector import Selector
from .text.units import format_bytes, format_ms, parse_bytes

__all__ = [
    "Candidate",
    "Choice",
    "Client",
    "Device",
    "Fit",
    "InvalidHyperparameter",
    "InvalidRequest",
    "ModelInspection",
    "ModelVersionMismatch",
    "NoMeasurements",
    "NothingFits",
    "Problem",
    "Query",
    "Selector",
    "SelectorError",
    "ServiceError",
    "Training",
    "UnknownDevice",
    "UnknownHyperparameter",
    "UnknownImplementation",
    "UnknownOperator",
    "UnsupportedProblem",
    "calibrate",
    "choose",
    "evaluate",
    "fits",
    "format_bytes",
    "format_ms",
    "inspect_model",
    "optimize",
    "pareto",
    "parse_bytes",
    "plan",
    "profile",
    "quickstart",
    "replay",
    "restore",
    "train",
]


class _Former(ModuleType):
    """A documented module at its former path, whose names come from where they are now, with a warning."""

    def __init__(self, name: str, now: str, **modules: ModuleType) -> None:
        super().__init__(f"{__name__}.{name}")
        self.__spec__ = ModuleSpec(self.__name__, None, is_package=bool(modules))
        self._now = now
        vars(self).update(modules)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system looks for such names
            raise AttributeError(name)
        text = f"{self.__name__} is {__name__}.{self._now} now."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(import_module(f".{self._now}", __name__), name)


_training = _Former("plans.training", "planning.training_setup")
plans = _Former("plans", "planning", training=_training)
sys.modules[f"{__name__}.plans"], sys.modules[f"{__name__}.plans.training"] = plans, _training
sys.modules[f"{__name__}.layers"] = _Former("layers", "models.layers")


def __dir__() -> list[str]:
    """What users call, without the modules that it comes from."""
    return sorted({*__all__, "layers", "nn", "__doc__", "__version__"})


def __getattr__(name: str) -> Any:
    """`selector.nn` and `selector.layers`, which import torch, are imported when they are first named.

    `selector.__version__` is that of the installed distribution.
    """
    if name in ("layers", "nn"):
        return import_module(".models.layers" if name == "layers" else ".nn", __name__)
    if name == "__version__":
        return metadata.version("kernel-selector")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
