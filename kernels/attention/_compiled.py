"""Functions that torch.compile has compiled, once for each circumstance of a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..contract import Device

LEAST_CAPABILITY = (7, 0)  # of the compiler's own GPU kernels


def compiled(
    function: Callable[..., Any], tensors: tuple[Tensor | None, ...], *constants: Any
) -> Callable[..., Any]:
    """`function`, one of a file, compiled for tensors of these shapes, strides and dtypes, and for constants.

    A shape gets seconds of compilation at its first call. A copy of the function is compiled for each: of
    one code object torch compiles few variants, and then none.
    """
    circumstances = tuple(
        None
        if one is None
        else (one.shape, one.stride(), one.dtype, one.device, one.requires_grad, one.data_ptr() % 16)
        for one in tensors
    )
    return _compiled(function, circumstances, constants, torch.is_grad_enabled())


def refused_by_compiler(device: Device) -> str | None:
    """Why nothing is compiled for a device, or None."""
    if device.kind != "cuda":
        return "torch.compile needs a C++ compiler for processors, which is not taken for granted"
    if device.compute_capability is not None and device.compute_capability < LEAST_CAPABILITY:
        return "torch.compile makes kernels for GPUs of compute capability 7.0 or later"
    return None


@lru_cache(maxsize=256)
def _compiled(function: Callable[..., Any], *_circumstances: Any) -> Callable[..., Any]:
    assert isinstance(function, FunctionType)
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    made: Callable[..., Any] = torch.compile(own, dynamic=False, fullgraph=True)
    return made
