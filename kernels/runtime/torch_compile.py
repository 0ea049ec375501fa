"""Functions of torch operations compiled by torch.compile, one copy for each circumstance."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch

from ..contract import Device

LEAST_CAPABILITY = (7, 0)  # of the compiler's own GPU kernels
COPIES = 1024


def refused_by_compiler(device: Device) -> str | None:
    """Reason why nothing is compiled on a device, or None."""
    if device.kind != "cuda":
        return "torch.compile needs a C++ compiler for processors, which is not taken for granted"
    if device.compute_capability is not None and device.compute_capability < LEAST_CAPABILITY:
        return "torch.compile makes kernels for GPUs of compute capability 7.0 or later"
    return None


def unavailable(kind: str) -> str | None:
    """Reason why torch.compile compiles nothing for devices of a kind in this process, or None."""
    if kind == "cuda":
        from torch.utils._triton import has_triton

        return None if has_triton() else "Triton, which torch.compile needs on a GPU, is missing or too old"
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, OSError):  # of a CXX that may not be executed
        needed, given = "C++ compiler, which torch.compile needs on a CPU", os.environ.get("CXX")
        if given is None:
            return f"no {needed}: install g++, or set CXX"
        return f"CXX={given} is no {needed}: install g++ and unset CXX, or set CXX to one"
    return None


def compiled(function: Callable[..., Any], *circumstances: Any) -> Callable[..., Any]:
    """`function`, of a file and without a closure, compiled for one circumstance at its first call.

    Itself where torch.compile traces the caller, which takes it from here.

    Whatever the compiled code may depend on has to be among the circumstances: shapes, strides, dtypes,
    device, who needs a gradient. Of one code object torch compiles few variants and then none, hence the
    copies; a compiled backward pass runs once, as torch.compile has it, and says so.
    """
    return function if torch.compiler.is_compiling() else _copy(function, *circumstances)


@lru_cache(maxsize=COPIES)
def _copy(function: Callable[..., Any], *_circumstances: Any) -> Callable[..., Any]:
    assert isinstance(function, FunctionType)
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    own.__kwdefaults__ = function.__kwdefaults__
    found: Callable[..., Any] = torch.compile(own, dynamic=False, fullgraph=True)
    return found
