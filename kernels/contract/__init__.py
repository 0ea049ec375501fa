"""The plain data that crosses folder lines: no torch, no GPU, the standard library alone."""

from .device import Device
from .environment import Environment
from .errors import (
    AmbiguousDevice,
    AmbiguousHyperparameter,
    BrokenImplementation,
    CorruptRecord,
    InvalidHyperparameter,
    MeasurementFailed,
    SelectorError,
    UnknownDevice,
    UnknownHyperparameter,
    UnknownImplementation,
    UnknownOperator,
    UnsupportedDevice,
    UnsupportedProblem,
)
from .hyperparameter import Boolean, Hyperparameter, Integer, Number, OneOf
from .implementation import Implementation, Work
from .operator import Inputs, Operator
from .problem import Problem
from .record import GateResult, Memory, Record, RecordReader, Status
from .space import Space
from .timing import Timing

__all__ = [
    "AmbiguousDevice",
    "AmbiguousHyperparameter",
    "Boolean",
    "BrokenImplementation",
    "CorruptRecord",
    "Device",
    "Environment",
    "GateResult",
    "Hyperparameter",
    "Implementation",
    "Inputs",
    "Integer",
    "InvalidHyperparameter",
    "MeasurementFailed",
    "Memory",
    "Number",
    "OneOf",
    "Operator",
    "Problem",
    "Record",
    "RecordReader",
    "SelectorError",
    "Space",
    "Status",
    "Timing",
    "UnknownDevice",
    "UnknownHyperparameter",
    "UnknownImplementation",
    "UnknownOperator",
    "UnsupportedDevice",
    "UnsupportedProblem",
    "Work",
]
