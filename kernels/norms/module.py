"""nn.LayerNorm and nn.RMSNorm whose rows a function of ours normalises."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..contract import Problem

# (x [..., H], weight [H] or None, bias [H] or None, eps) to y [..., H]
NormFunction = Callable[[Tensor, Tensor | None, Tensor | None, float], Tensor]
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


class LayerNorm(nn.LayerNorm):
    """An nn.LayerNorm over the last axis, whose `function` may be any NormFunction."""

    def __init__(self, problem: Problem, function: NormFunction) -> None:
        super().__init__(**layer_norm_arguments(problem))
        self.function = function
        self.train(problem["mode"] == "training")

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] to y [..., H]; torch's errors for other shapes."""
        if x.shape[-1:] != self.normalized_shape:
            return super().forward(x)  # raises torch's error
        return self.function(x, self.weight, self.bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """An nn.RMSNorm over the last axis, whose `function` may be any NormFunction."""

    def __init__(self, problem: Problem, function: NormFunction) -> None:
        super().__init__(**rms_norm_arguments(problem))
        self.function = function
        self.train(problem["mode"] == "training")

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] to y [..., H]; torch's errors for other shapes."""
        if x.shape[-1:] != self.normalized_shape:
            return super().forward(x)  # raises torch's error
        return self.function(x, self.weight, None, epsilon(self))


def norm_module(problem: Problem, function: NormFunction) -> nn.Module:
    """The module of a problem of layer_norm or rms_norm."""
    return (LayerNorm if problem.operator == "layer_norm" else RMSNorm)(problem, function)


def torch_norm(problem: Problem) -> nn.Module:
    """torch's own module of a problem of layer_norm or rms_norm."""
    if problem.operator == "layer_norm":
        module: nn.Module = nn.LayerNorm(**layer_norm_arguments(problem))
    else:
        module = nn.RMSNorm(**rms_norm_arguments(problem))
    return module.train(problem["mode"] == "training")


def rms_norm_arguments(problem: Problem) -> dict[str, Any]:
    """Arguments of nn.RMSNorm for a problem."""
    return {
        "normalized_shape": problem["hidden"],
        "eps": problem["eps"],
        "elementwise_affine": problem["affine"],
        "dtype": getattr(torch, problem["dtype"]),
    }


def layer_norm_arguments(problem: Problem) -> dict[str, Any]:
    """Arguments of nn.LayerNorm for a problem."""
    return rms_norm_arguments(problem) | {"bias": problem["bias"]}


def epsilon(module: nn.LayerNorm | nn.RMSNorm) -> float:
    """The module's eps; where it is None torch takes that of the dtype that it computes in, float32."""
    return torch.finfo(torch.float32).eps if module.eps is None else module.eps


def output_dtype(x: Tensor, *, rms: bool) -> torch.dtype:
    """Dtype of y: x's, or under autocast that of torch's own norm. Raises TypeError for other dtypes.

    Without it a module that was moved to float64 would compute in float32 and not say so.
    """
    if x.dtype not in FLOATS:
        raise TypeError(f"x has dtype {x.dtype}: expected one of {', '.join(map(str, FLOATS))}.")
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(x.device.type):
        asked = _torchs_dtype if torch.compiler.is_compiling() else _known_dtype
        return asked(x.device.type, x.dtype, rms)
    return x.dtype


def _torchs_dtype(device: str, dtype: torch.dtype, rms: bool) -> torch.dtype:
    """Asked of torch, whose versions and devices differ over rms_norm; layer_norm gives float32."""
    norm = nn.functional.rms_norm if rms else nn.functional.layer_norm
    return norm(torch.ones(1, 1, dtype=dtype, device=device), (1,)).dtype


_known_dtype = cache(_torchs_dtype)


def wants_gradients(*tensors: Tensor | None) -> bool:
    """Whether autograd would record a function of these: without it, a call is one kernel and no graph."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def statistics_for(x: Tensor, rms: bool) -> tuple[Tensor | None, Tensor]:
    """Memory for the mean, where there is one, and 1 / deviation of each row: float32 [rows]."""
    rows = x.numel() // x.size(-1)
    rstd = x.new_empty(rows, dtype=torch.float32)
    return None if rms else torch.empty_like(rstd), rstd
