"""Norms that torch.compile has compiled, one copy for each circumstance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..runtime import torch_compile as compiling


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of a first tensor and more, compiled at the first call of each shape; seconds then."""
    return partial(_call, function)


def _call(function: Callable[..., Any], x: Tensor, *more: Any) -> Any:
    circumstances = (x.shape, x.dtype, x.device, torch.is_grad_enabled())
    return compiling.compiled(function, *circumstances)(x, *more)
