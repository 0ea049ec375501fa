"""Functions that torch.compile has compiled, once for each circumstance of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...runtime import torch_compile as compiling


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
    return compiling.compiled(function, circumstances, constants, torch.is_grad_enabled())
